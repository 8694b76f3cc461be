"""An adaptive run as text and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mindswap.report.tables import attributes, format_table
from mindswap.training.adaptive.model import Attempt, State
from mindswap.units import format_bytes, format_time


def count_lost_steps(attempts: Sequence[Attempt]) -> list[int]:
    """Steps of each attempt that the next one did again."""
    next_begins = [*(attempt.first_step for attempt in attempts[1:]), None]
    pairs = zip(attempts, next_begins, strict=False)
    return [max(0, attempt.last_step - first) if first is not None else 0 for attempt, first in pairs]


def format_summary(state: State) -> str:
    """One row per attempt, then what was learned."""
    if not state.attempts:
        return state.exit_reason or "nothing was started yet"
    lost = count_lost_steps(state.attempts)
    header = [
        "attempt", "plan", "budget", "predicted peak", "measured", "predicted step", "measured", "steps", "lost",
        "ended",
    ]  # fmt: skip
    rows = [_row(attempt, steps) for attempt, steps in zip(state.attempts, lost, strict=True)]
    correction = state.corrections
    lines = [
        format_table(header, rows),
        "",
        f"restarts: {state.num_restarts} of {state.settings.max_restarts} allowed, {sum(lost)} steps done again; "
        f"memory {format_bytes(state.settings.memory_bytes)}, budget now {format_bytes(state.budget_bytes)}",
        f"corrections of the model: peak {_signed(correction.static_offset_bytes)}, "
        f"compute {correction.compute_permille / 1000:.2f} x, links {correction.link_permille / 1000:.2f} x",
    ]
    if state.out_of_memory:
        lines.append(f"excluded (out of memory): {', '.join(state.out_of_memory)} (out of memory)")
    lines.append("predicted figures are simulated")
    if state.exit_reason:
        lines.append(state.exit_reason)
    return "\n".join(lines)


def _row(attempt: Attempt, num_lost: int) -> list[str]:
    plan = attempt.plan
    steps = f"{attempt.first_step}-{attempt.last_step}" + (f"/{attempt.num_steps}" if attempt.num_steps else "")
    return [
        str(attempt.number),
        plan.key,
        format_bytes(plan.budget_bytes),
        format_bytes(plan.peak_bytes),
        "" if attempt.measured_peak_bytes is None else format_bytes(attempt.measured_peak_bytes),
        format_time(plan.step_time_ns) if plan.step_time_ns else "",
        "" if attempt.measured_step_ns is None else format_time(attempt.measured_step_ns),
        steps,
        str(num_lost),
        attempt.outcome.value,
    ]


def _signed(size_bytes: int) -> str:
    return ("-" if size_bytes < 0 else "+") + format_bytes(abs(size_bytes))


def summary_to_json(state: State, is_at_work: bool) -> dict[str, Any]:
    """For machines: sizes in bytes, times in ns."""
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
        "attempt": attempt.number,
        "plan": attempt.plan.key,
        "budget_bytes": attempt.plan.budget_bytes,
        "predicted_peak_bytes": attempt.plan.peak_bytes,
        "measured_peak_bytes": attempt.measured_peak_bytes,
        "predicted_step_ns": attempt.plan.step_time_ns,
        **attributes(attempt, "measured_step_ns first_step last_step num_steps"),
        "steps_lost": num_lost,
        "outcome": attempt.outcome.value,
        "reason": attempt.reason,
    }
