"""Request for a proof: the runs to make and their options."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mindswap.features.prove.worker_runs import RayPlace
from mindswap.runtime.short_run import RunOptions

TITLES = {
    "off": "nothing swapped, nothing recomputed",
    "yaml": "as the configuration asks",
    "plan": "a plan of mindswap",
}


@dataclass(frozen=True)
class ProofRequest:
    """Request for a proof."""

    folder: Path  # output folder
    config: Path  # the user's file
    variants: tuple[str, ...]  # names of the runs, of `TITLES`
    options: RunOptions  # options of each run
    budget_bytes: int | None  # memory budget of the plan; None for `simulations.DEFAULT_BUDGET_PERCENT`
    wants_synthetic_data: bool  # use synthetic data although the configuration has data
    device_words: tuple[str, ...]  # command line options of the simulated device
    report_status: Callable[[str], None]  # prints a line for the user
    cluster: RayPlace | None = None  # nodes of the training; None for this machine

    def file(self, name: str) -> Path:
        """Return the path of the configuration of a run."""
        return self.folder / f"{name}.yaml"
