"""The operator tables that ship with the package are what real MindFormers gives."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.strength import is_nightly

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).resolve().parents[1]
TABLES = sorted(path.stem for path in (ROOT / "mindswap" / "data" / "families").glob("*.json"))
BY_DAY = ["deepseek3", "glm2"]  # a newer model with experts and dense layers, and a legacy one of few variants


def test_there_are_tables_of_these():
    assert set(BY_DAY) < set(TABLES)


@pytest.mark.parametrize("family", TABLES if is_nightly() else BY_DAY)
def test_the_table_is_up_to_date(family):
    command = [sys.executable, str(ROOT / "tools" / "make_family_tables.py"), "--check", "--only", family]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert (result.returncode, result.stderr) == (0, "")
