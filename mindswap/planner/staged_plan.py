"""Search a plan for the pipeline stages of a recorded step of MindFormers 2.x."""

from collections.abc import Sequence
from dataclasses import replace

from mindswap.planner.problem import Plan, PlanProblem
from mindswap.planner.solver.search import Interruptible, Progress
from mindswap.planner.traced_plan import ActionSearch, plan_of_search, plan_traced
from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator.traced_step import TracedStepModel


def plan_staged(
    problem: PlanProblem,
    stages: Sequence[TracedStepModel],
    progress: Progress = lambda: None,
    less_bytes: Sequence[int] = (),
) -> Plan:
    """Search the best policy of each pipeline stage alone, and join them: a stage's memory is that of its own layers.

    Args:
        problem: problem of all stages.
        stages: model of each stage.
        progress: see `plan_traced`.
        less_bytes: what the budget of each stage is lowered by; empty for nothing.
    """
    less_bytes = less_bytes or [0] * len(stages)
    plan, of_stages = _plan_stages(problem, stages, progress, [problem.host_bytes] * len(stages), less_bytes)
    if plan.host_bytes > problem.host_bytes and not plan.is_interrupted:
        # Together they take more than the node has: each stage gets less of what it takes, by the same factor.
        shares = [each.host_bytes * problem.host_bytes // plan.host_bytes for each in of_stages]
        plan, _ = _plan_stages(problem, stages, progress, shares, less_bytes)
    return plan


def _plan_stages(
    problem: PlanProblem,
    stages: Sequence[TracedStepModel],
    progress: Progress,
    host_bytes: Sequence[int],
    less_bytes: Sequence[int],
) -> tuple[Plan, list[Plan]]:
    """Return the plan of all stages, and those of each, given the host memory for a card of each stage."""
    alone = replace(problem, num_cards_per_node=1)
    if problem.allow.swap:  # mindswap's executor runs in all stages once one of them swaps
        stages = [stage.with_swap_elsewhere() for stage in stages]
    plans = [
        plan_traced(replace(alone, model=stage, host_bytes=size, budget_bytes=problem.budget_bytes - less), progress)
        for stage, size, less in zip(stages, host_bytes, less_bytes, strict=True)
    ]
    search = ActionSearch(problem, Interruptible(progress))
    plan = plan_of_search(
        search, join_policies([plan.policy for plan in plans]), any(plan.is_interrupted for plan in plans)
    )
    num_evaluations = plan.num_evaluations + sum(plan.num_evaluations for plan in plans)
    return replace(plan, num_evaluations=num_evaluations), plans


def join_policies(policies: Sequence[Policy]) -> Policy:
    """Return the policy of layers that several policies name; swaps of the same cells have the largest distance."""
    layer_swap: dict[int, set[int]] = {}
    op_swap: dict[str, tuple[set[int], int]] = {}
    recomputed: dict[str, set[int]] = {}
    for policy in policies:
        for layer_entry in policy.layer_swap:
            layer_swap.setdefault(layer_entry.prefetch, set()).update(layer_entry.layers.indices or ())
        for entry in policy.op_swap:
            layers, prefetch = op_swap.get(entry.pattern, (set(), 1))
            op_swap[entry.pattern] = layers | set(entry.layers.indices or ()), max(prefetch, entry.prefetch)
        for module in policy.select_recompute:
            recomputed.setdefault(module.pattern, set()).update(module.layers.indices or ())
    full = {layer for policy in policies for layer in policy.layer_recompute.indices or ()}
    return Policy(
        is_swap_enabled=True,
        layer_swap=tuple(LayerSwap(Layers(sorted(layers)), prefetch) for prefetch, layers in layer_swap.items()),
        op_swap=tuple(OpSwap(path, Layers(sorted(layers)), prefetch) for path, (layers, prefetch) in op_swap.items()),
        layer_recompute=Layers(sorted(full)),
        select_recompute=tuple(OpRecompute(path, Layers(sorted(layers))) for path, layers in recomputed.items()),
    )
