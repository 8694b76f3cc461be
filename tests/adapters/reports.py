"""Reports of several configurations, compiled in one process of their own."""

import json
import subprocess
import sys

from tests.adapters.graphs import ROOT


def inspect_jobs(jobs: list[dict]) -> list[dict]:
    """Reports of `rank_reports.py`."""
    command = [sys.executable, "-m", "tests.adapters.rank_reports"]
    result = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)
