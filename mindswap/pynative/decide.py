"""Policy -> which storages of a trace leave the device. Pure."""

from collections.abc import Sequence

from mindswap.policy.actions import LayerActions
from mindswap.pynative.schedule import Distance, Unit
from mindswap.pynative.trace import Operator, Trace

__all__ = ["decide"]


def decide(trace: Trace, actions: Sequence[LayerActions], unit: Unit = Unit.OPERATORS) -> dict[int, Distance]:
    """Prefetch distance of each storage that a policy names.

    As in graph mode a storage goes with the operator that makes it: an entry that names the operator, or a cell around
    it, takes it along. Functions that no cell holds (`x + y`, `mint.matmul`) go with their cell. What no operator was
    seen to make (on CPU a kernel copies a view before it uses it) goes with the operator that saves it.

    Args:
        trace: the step.
        actions: what the policy does to each layer, from `applier.actions.plan_layer`.
        unit: what the distances of the policy count.
    """
    found = {}
    for save in trace.saves:
        maker = trace.storages[save.storage].maker
        operator = trace.operators[save.operator if maker is None else maker]
        if operator.layer_index is None or save.storage in found:
            continue
        count = _prefetch(actions[operator.layer_index], operator)
        if count is not None:
            found[save.storage] = Distance(count, unit)
    return found


def _prefetch(actions: LayerActions, operator: Operator) -> int | None:
    """Distance that a policy asks of an operator; of several entries the last that names it decides."""
    *cell, names = operator.path
    paths = [(*cell, name) for name in names.split("|")]
    count = actions.layer_prefetch
    for swap in actions.op_swaps:
        named = swap.match.path
        if all(path[: len(named)] == named for path in paths):
            count = swap.num_prefetch_ops
    return count
