"""Build a plan from a policy and its evaluation."""

from dataclasses import replace
from typing import Any, NamedTuple

from mindswap.planner.evaluate import Evaluation
from mindswap.planner.lower_bound import BoundInputs, least_budget_bytes, min_step_ns
from mindswap.planner.problem import Plan, PlanProblem
from mindswap.policy.model import Policy
from mindswap.simulator.memory import profile_memory
from mindswap.units import format_bytes


class BoundError(AssertionError):
    """A plan refutes the lower bound: an internal error of the planner, not a result to show."""


class Bounds(NamedTuple):
    """Lower bounds of all policies of a problem."""

    step_ns: int | None  # step time within the budgets; None if no policy fits
    memory_bytes: int  # device memory

    @classmethod
    def of(cls, bound_inputs: BoundInputs, problem: PlanProblem) -> "Bounds":
        """Compute the bounds of a problem."""
        limits = problem.host_bytes_per_card, problem.allow
        step_ns = min_step_ns(bound_inputs, problem.budget_bytes, *limits)
        return cls(step_ns, least_budget_bytes(bound_inputs, *limits))


def plan_of(
    problem: PlanProblem, bounds: Bounds | None, keep_ns: int, policy: Policy, evaluation: Evaluation, **search: Any
) -> Plan:
    """Build a plan from a policy and its evaluation.

    Args:
        problem: problem that the policy solves.
        bounds: its lower bounds; None if there are none but keeping everything and the static memory.
        keep_ns: step time if everything is kept.
        policy: best policy.
        evaluation: its evaluation on the whole step.
        search: further fields of `Plan`, about the search.

    Raises:
        BoundError: the policy refutes the bound, which is an error of ours.
    """
    static_bytes = tuple(static.total_bytes for static in problem.model.static)
    fixed = None if bounds is None else problem.model.layers.fixed  # steps of MindFormers 2.x have no pins
    if bounds is None:
        bounds = Bounds(None if evaluation.fits else keep_ns, max(static_bytes))
    elif evaluation.fits:
        _require_bound(evaluation, *bounds)
    peak_bytes = evaluation.peak_bytes
    return Plan(
        fits=evaluation.fits,
        policy=policy.combined_with(fixed) if fixed is not None else policy,
        step_time_ns=evaluation.step_time_ns,
        stage_peak_bytes=evaluation.stage_peak_bytes,
        stage_static_bytes=static_bytes,
        host_bytes=evaluation.host_bytes,
        budget_bytes=problem.budget_bytes,
        unconstrained_ns=keep_ns,
        lower_bound_ns=bounds.step_ns,
        smallest_budget_bytes=min(problem.budget_bytes, peak_bytes) if evaluation.fits else peak_bytes,
        least_budget_bytes=bounds.memory_bytes,
        host_budget_bytes=problem.host_bytes,
        holders=memory_by_operator(evaluation),
        **search,
    )


def with_policy(plan: Plan, policy: Policy, evaluation: Evaluation) -> Plan:
    """Return a plan with another policy and all that its evaluation says; bounds and comparisons stay."""
    return replace(
        plan,
        policy=policy,
        step_time_ns=evaluation.step_time_ns,
        stage_peak_bytes=evaluation.stage_peak_bytes,
        host_bytes=evaluation.host_bytes,
        holders=memory_by_operator(evaluation),
    )


def _require_bound(evaluation: Evaluation, bound_ns: int | None, least_bytes: int) -> None:
    """Require that a policy that fits refutes no bound.

    Raises:
        BoundError: it does; with both figures.
    """
    time_ns, peak_bytes = evaluation.step_time_ns, evaluation.peak_bytes
    if bound_ns is None:
        raise BoundError(f"the bound says that no policy fits, but one fits in {format_bytes(peak_bytes)}")
    if time_ns < bound_ns:
        raise BoundError(f"the bound says that no policy is faster than {bound_ns} ns, but one takes {time_ns} ns")
    if peak_bytes < least_bytes:
        raise BoundError(f"the bound says that every policy needs {least_bytes} bytes, but one needs {peak_bytes}")


def memory_by_operator(evaluation: Evaluation) -> tuple[tuple[str, int], ...]:
    """Return the memory of the stage with the highest peak, at that peak, by operator; static memory is one entry."""
    stage = max(range(len(evaluation.stage_peak_bytes)), key=lambda s: evaluation.stage_peak_bytes[s])
    timeline = evaluation.step.timeline
    profile = profile_memory(timeline, stage)
    intervals, labels = timeline.program.intervals, timeline.program.labels
    static_bytes = evaluation.step.static[stage].total_bytes
    sizes: dict[str, int] = {"weights, optimizer states, accumulated gradients": static_bytes}
    for position in profile.holders:
        label = str(labels[intervals.label[position]])
        sizes[label] = sizes.get(label, 0) + int(intervals.size_bytes[position])
    return tuple(sorted(sizes.items(), key=lambda entry: -entry[1]))
