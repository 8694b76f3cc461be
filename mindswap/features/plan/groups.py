"""Full recompute of groups of layers (Megatron's uniform N) where it fits and the plan does not, or is slower."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from mindswap.config.pipeline_layout import LayoutError
from mindswap.errors import SimulationError
from mindswap.features.plan.pynative import is_model_2x
from mindswap.features.plan.written_policies import WrittenPolicies
from mindswap.features.simulate import LoadedStep
from mindswap.planner.build_plan import with_policy
from mindswap.planner.evaluate import Evaluation
from mindswap.planner.problem import Compared, Objective, Plan, PlanProblem
from mindswap.policy.coverage import FULL_RECOMPUTE
from mindswap.policy.model import ALL_LAYERS, Layers, Policy

# Layers in a group. More hold more activations at once and save ever fewer outputs: of 80 outputs that wait, groups of
# 2 leave 40 and groups of 8 leave 10.
SIZES = (2, 3, 4, 6, 8)


def with_groups(written: WrittenPolicies, plan: Plan) -> Plan:
    """Return the plan, or full recompute of groups of layers if that fits and the plan does not or takes longer.

    A layer that does not keep its output is recomputed up to that output, so groups take longer than full recompute:
    they are simulated only where the plan does not fit or takes longer than that. Each one becomes a row of the table.
    If nothing fits, the plan is the policy that needs the least memory.

    Args:
        written: evaluates policies as they are written, which groups are with `swap: True`.
        plan: the plan of the search.
    """
    full = next((row for row in plan.compared if row.baseline == FULL_RECOMPUTE), None)
    is_faster = plan.fits and full is not None and plan.step_time_ns <= full.step_time_ns
    if full is None or is_faster or plan.is_interrupted or not _is_possible(written.step, written.problem):
        return plan
    candidates = list(_evaluated(written))
    rows = tuple(
        Compared(f"full recompute, groups of {size}", entry.step_time_ns, entry.peak_bytes, entry.fits)
        for size, _, entry in candidates
    )
    plan = replace(plan, compared=(*plan.compared, *rows), num_evaluations=plan.num_evaluations + len(candidates))
    plan = replace(plan, least_budget_bytes=unrefuted_least_bytes(plan))
    fitting = [candidate for candidate in candidates if candidate[2].fits]
    if fitting:
        _, policy, entry = min(fitting, key=lambda candidate: candidate[2].step_time_ns)
        return _planned(plan, policy, entry) if not plan.fits or entry.step_time_ns < plan.step_time_ns else plan
    if plan.fits or not candidates:
        return plan
    _, policy, entry = min(candidates, key=lambda candidate: candidate[2].peak_bytes)
    return _planned(plan, policy, entry) if entry.peak_bytes < plan.smallest_budget_bytes else plan


def _evaluated(written: WrittenPolicies) -> Iterator[tuple[int, Policy, Evaluation]]:
    """Yield size, policy and evaluation of groups, without those that cannot be simulated."""
    for size, policy in _group_policies(written.step, written.problem):
        with suppress(SimulationError):
            yield size, policy, written.evaluate(policy)


def unrefuted_least_bytes(plan: Plan) -> int:
    """Return a lower bound of the device memory of all policies.

    That of the planner is one of policies that keep the outputs of layers. Where groups need less, static memory is.
    """
    is_refuted = any(row.peak_bytes < plan.least_budget_bytes for row in plan.compared)
    return max(plan.stage_static_bytes) if is_refuted else plan.least_budget_bytes


def _is_possible(step: LoadedStep, problem: PlanProblem) -> bool:
    """Return whether MindSpore compiles recompute across layers of this model, and a plan may use it."""
    if is_model_2x(step.model) or step.path is None or not step.document.is_legacy:
        return False
    is_allowed = problem.allow.recompute and not problem.allow.pinned and problem.objective is Objective.TIME
    return is_allowed and not step.model.layers.reads_caches and not step.model.layers.prediction


def _group_policies(step: LoadedStep, problem: PlanProblem) -> Iterator[tuple[int, Policy]]:
    """Yield the number of layers of a group, and the policy; groups begin anew with each chunk of a stage."""
    num_layers = step.model.captured.num_layers
    try:
        chunks = [cell.layers for cell in step.model.settings.pipeline.layout(num_layers).cells()]
    except LayoutError:
        return
    for size in SIZES:
        inner = [index for layers in chunks for position, index in enumerate(layers[:-1]) if (position + 1) % size]
        if inner and size <= max(map(len, chunks)):
            groups = Policy(True, layer_recompute=ALL_LAYERS, output_recompute=Layers(tuple(sorted(inner))))
            yield size, problem.with_switches(groups)


def _planned(plan: Plan, policy: Policy, evaluation: Evaluation) -> Plan:
    """Return the plan with this policy. The bounds are those of layers that keep their outputs, so it has none."""
    peak_bytes = evaluation.peak_bytes
    return replace(
        with_policy(plan, policy, evaluation),
        fits=evaluation.fits,
        lower_bound_ns=None if evaluation.fits else plan.lower_bound_ns,
        smallest_budget_bytes=min(plan.budget_bytes, peak_bytes) if evaluation.fits else peak_bytes,
        is_coupled=False,
    )
