"""Real captures for tests, compiled in a process of their own: MindFormers builds one family of models per process."""

import subprocess
import sys
from pathlib import Path

import pytest

from mindswap.session.step import load_step
from mindswap.simulate.step_model import StepModel


def capture_apart(config: Path, cache: Path) -> StepModel:
    """The step of a configuration; a child compiles it into the cache, and it is read from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINDSWAP_CACHE", str(cache))
        command = [sys.executable, "-m", "mindswap", "simulate", "--json", str(config)]
        subprocess.run(command, capture_output=True, check=False, timeout=300)
        return load_step(str(config)).model
