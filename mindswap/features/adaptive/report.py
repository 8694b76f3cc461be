"""Report of an adaptive run as text and JSON."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from operator import attrgetter
from typing import Any

from mindswap.report.tables import attributes, format_table
from mindswap.runtime.attempt.model import Attempt, State
from mindswap.units import format_bytes, format_signed, format_time

# Key of `--json`, column, attribute of the attempt, and how it is written.
FIGURES: tuple[tuple[str, str, str, Callable[[Any], str]], ...] = (
    ("attempt", "attempt", "number", str),
    ("plan", "plan", "plan.key", str),
    ("budget_bytes", "budget", "plan.budget_bytes", format_bytes),
    ("predicted_peak_bytes", "predicted peak", "plan.peak_bytes", format_bytes),
    ("measured_peak_bytes", "measured", "measured_peak_bytes", format_bytes),
    ("predicted_step_ns", "predicted step", "plan.step_time_ns", format_time),
    ("measured_step_ns", "measured", "measured_step_ns", format_time),
)


def count_lost_steps(attempts: Sequence[Attempt]) -> list[int]:
    """Return the number of steps of each attempt that the next one repeated."""
    num_repeated = [max(0, attempt.last_step - following.first_step) for attempt, following in pairwise(attempts)]
    return [*num_repeated, 0] if attempts else []


def format_summary(state: State) -> str:
    """Format one row per attempt, then the corrections."""
    if not state.attempts:
        return state.exit_reason or "nothing was started yet"
    lost = count_lost_steps(state.attempts)
    header = [*(column for _, column, *_ in FIGURES), "steps", "lost", "ended"]
    rows = [_row(attempt, steps) for attempt, steps in zip(state.attempts, lost, strict=True)]
    correction = state.corrections
    lines = [
        format_table(header, rows),
        "",
        f"restarts: {state.num_restarts} of {state.settings.max_restarts} allowed, {sum(lost)} steps repeated; "
        f"memory {format_bytes(state.settings.memory_bytes)}, budget now {format_bytes(state.budget_bytes)}",
        f"corrections of the model: peak {format_signed(correction.static_offset_bytes)}, "
        f"compute {correction.compute_permille / 1000:.2f} x, links {correction.link_permille / 1000:.2f} x",
    ]
    if state.out_of_memory:
        lines.append(f"excluded (out of memory): {', '.join(state.out_of_memory)} (out of memory)")
    lines.append("predicted figures are simulated")
    if state.exit_reason:
        lines.append(state.exit_reason)
    return "\n".join(lines)


def _row(attempt: Attempt, num_lost: int) -> list[str]:
    steps = f"{attempt.first_step}-{attempt.last_step}" + (f"/{attempt.num_steps}" if attempt.num_steps else "")
    figures = [(attrgetter(name)(attempt), form) for _, _, name, form in FIGURES]
    return [*(form(value) if value else "" for value, form in figures), steps, str(num_lost), attempt.outcome.value]


def summary_to_json(state: State, is_at_work: bool) -> dict[str, Any]:
    """Return the state as JSON data; sizes in bytes, times in ns."""
    lost = count_lost_steps(state.attempts)
    return {
        "at_work": is_at_work,
        "memory_bytes": state.settings.memory_bytes,
        "budget_bytes": state.budget_bytes,
        "restarts": state.num_restarts,
        "max_restarts": state.settings.max_restarts,
        "steps_lost": sum(lost),
        "is_stable": state.is_stable,
        "out_of_memory": list(state.out_of_memory),
        "corrections": asdict(state.corrections),
        "attempts": [_attempt_to_json(attempt, steps) for attempt, steps in zip(state.attempts, lost, strict=True)],
        "reason": state.exit_reason,
    }


def _attempt_to_json(attempt: Attempt, num_lost: int) -> dict[str, Any]:
    return {
        **{key: attrgetter(name)(attempt) for key, _, name, _ in FIGURES},
        **attributes(attempt, "first_step last_step num_steps reason"),
        "steps_lost": num_lost,
        "outcome": attempt.outcome.value,
    }
