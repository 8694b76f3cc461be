"""Real captures for tests, compiled in a process of their own: MindFormers builds one family of models per process."""

from pathlib import Path

from mindswap.api.step import load_step
from mindswap.simulator.step_model import StepModel
from tests import forked


def capture_apart(config: Path) -> StepModel:
    """The step of a configuration; a child compiles it into the cache of all tests, and it is read from there."""
    forked.run(["-m", "mindswap", "simulate", "--json", str(config)], timeout=1200)
    return load_step(str(config)).model
