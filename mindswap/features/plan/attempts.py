"""Rows and JSON of a plan and its dry run, for both forms of MindFormers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mindswap.features.plan.step_plan import StepPlan
from mindswap.units import format_time


class PlanAttempt(Protocol):
    """A plan and its dry run, of whichever form."""

    @property
    def requested_bytes(self) -> int:
        """Budget of the planner."""

    @property
    def plan(self) -> StepPlan:
        """The plan."""

    @property
    def failure(self) -> str:
        """Error of the dry run."""

    @property
    def fits(self) -> bool:
        """Return whether the plan fits in the dry run."""


def attempt_row(attempt: PlanAttempt, measured_bytes: Sequence[int | None]) -> tuple[str, ...]:
    """Return the cells of an attempt: budget, step time, simulated peak, measured sizes, whether it fits."""
    sizes = (attempt.requested_bytes, attempt.plan.peak_bytes, *measured_bytes)
    requested, *others = ("-" if size is None else f"{size / 2**20:.0f} MiB" for size in sizes)
    return (requested, format_time(attempt.plan.step_time_ns), *others, "yes" if attempt.fits else "NO")


def attempt_to_json(attempt: PlanAttempt, dry_run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an attempt as plain data for `--json`, with the data of its dry run."""
    return {
        "asked_bytes": attempt.requested_bytes,
        "step_time_ns": attempt.plan.step_time_ns,
        "planned_peak_bytes": attempt.plan.peak_bytes,
        "fits": attempt.fits,
        "failure": attempt.failure or None,
        "dry_run": dry_run,
    }
