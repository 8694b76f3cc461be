"""Full recompute of groups of layers (Megatron's uniform N) where it fits and the plan does not, or is slower."""

from collections.abc import Iterator
from dataclasses import replace

from mindswap.config.pipeline_layout import LayoutError
from mindswap.features.plan.pynative import is_model_2x
from mindswap.features.simulate import LoadedStep
from mindswap.planner.evaluate import Evaluation, evaluate
from mindswap.planner.problem import Compared, Objective, Plan, PlanProblem
from mindswap.policy.coverage import FULL_RECOMPUTE
from mindswap.policy.model import ALL_LAYERS, Layers, Policy

# Layers in a group. More hold more activations at once and save ever fewer outputs: of 80 outputs that wait, groups of
# 2 leave 40 and groups of 8 leave 10.
SIZES = (2, 3, 4, 6, 8)


def with_groups(step: LoadedStep, problem: PlanProblem, plan: Plan) -> Plan:
    """Return the plan, or full recompute of groups of layers if that fits and the plan does not or takes longer.

    A layer that does not keep its output is recomputed up to that output, so groups take longer than full recompute:
    they are simulated only where the plan does not fit or takes longer than that. Each one becomes a row of the table.

    Args:
        step: the planned step.
        problem: problem of the plan.
        plan: the plan of the search.
    """
    full = next((row for row in plan.compared if row.baseline == FULL_RECOMPUTE), None)
    is_faster = plan.fits and full is not None and plan.step_time_ns <= full.step_time_ns
    if full is None or is_faster or plan.is_interrupted or not _is_possible(step, problem):
        return plan
    candidates = [(size, policy, evaluate(problem, policy)) for size, policy in _group_policies(step, problem)]
    rows = tuple(
        Compared(f"full recompute, groups of {size}", entry.step_time_ns, entry.peak_bytes, entry.fits)
        for size, _, entry in candidates
    )
    plan = replace(plan, compared=(*plan.compared, *rows), num_evaluations=plan.num_evaluations + len(candidates))
    fitting = [(policy, entry) for _, policy, entry in candidates if entry.fits]
    if not fitting:
        return plan
    policy, fastest = min(fitting, key=lambda candidate: candidate[1].step_time_ns)
    return _planned(plan, policy, fastest) if not plan.fits or fastest.step_time_ns < plan.step_time_ns else plan


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
    return replace(
        plan,
        fits=True,
        policy=policy,
        step_time_ns=evaluation.step_time_ns,
        stage_peak_bytes=evaluation.stage_peak_bytes,
        host_bytes=evaluation.host_bytes,
        lower_bound_ns=None,
        smallest_budget_bytes=min(plan.budget_bytes, evaluation.peak_bytes),
        least_budget_bytes=min(plan.least_budget_bytes, evaluation.peak_bytes),
        is_coupled=False,
    )
