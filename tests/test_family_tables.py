"""The operator tables that ship with the package are what real MindFormers gives."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).resolve().parents[1]


def test_the_tables_are_up_to_date():
    command = [sys.executable, str(ROOT / "tools" / "make_family_tables.py"), "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert (result.returncode, result.stderr) == (0, "")
