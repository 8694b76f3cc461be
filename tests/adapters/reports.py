"""What layers of several configurations keep, compiled in one process of their own."""

import json

from tests import forked
from tests.adapters.graphs import ROOT


def inspect_jobs(jobs: list[dict]) -> list[dict]:
    """Reports of `rank_reports.py`."""
    command = ["-m", "tests.adapters.rank_reports"]
    result = forked.run(command, input=json.dumps(jobs), cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)
