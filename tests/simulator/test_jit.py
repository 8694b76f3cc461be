"""Compiled loops work where nothing can be kept on disk."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from mindswap.simulator.engine_state import compiled

ROOT = Path(__file__).resolve().parents[2]


def test_a_function_without_a_file_is_compiled_all_the_same():
    # Numba finds no place to keep code whose source is in no file, and raises if asked to keep it.
    names = {}
    exec(compile("def double(number):\n    return 2 * number\n", "<nowhere>", "exec"), names)
    double = compiled(names["double"])
    assert double(21) == 42
    assert double.signatures  # compiled, not interpreted


def test_a_loop_that_allocates_is_refused():
    # Its arrays are not counted, so what it allocates would never be freed.
    with pytest.raises(numba.core.errors.TypingError, match="NRT required but not enabled"):
        compiled(lambda size: np.empty(size))(3)


@pytest.mark.long
def test_what_an_earlier_version_left_on_disk_is_made_anew(tmp_path):
    """Its index names a class that is gone: numba itself fails with an AttributeError."""
    program = """
from typing import NamedTuple
from mindswap.simulator.engine_state import compiled

class {name}(NamedTuple):
    number: int

@compiled
def double(pair):
    return 2 * pair.number

print(double({name}(21)), list(double.stats.cache_hits.values()))
"""
    # Python runs what it compiled before where a source is as long, and of the same second: the names are not.
    for name, found in (("First", "42 []"), ("First", "42 [1]"), ("Second", "42 []"), ("Second", "42 [1]")):
        (tmp_path / "kept.py").write_text(program.format(name=name))
        result = subprocess.run(
            [sys.executable, "-c", "import kept"], cwd=tmp_path, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "NUMBA_CACHE_DIR": str(tmp_path / "nb")},
        )  # fmt: skip
        assert result.stdout.strip() == found
