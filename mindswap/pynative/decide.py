"""Policy -> which storages of a trace leave the device. Pure."""

from collections.abc import Sequence

from mindswap.policy.resolve import LayerDecisions
from mindswap.pynative.schedule import Distance, Unit
from mindswap.pynative.trace import Operator, Trace


def decide(trace: Trace, layers: Sequence[LayerDecisions], unit: Unit = Unit.OPERATORS) -> dict[int, Distance]:
    """Prefetch distance of each storage that a policy names, in this unit.

    As in graph mode a storage goes with the operator that makes it: an entry that names the operator, or a cell around
    it, takes it along. Functions that no cell holds (`x + y`, `mint.matmul`) go with their cell. What no operator was
    seen to make (on CPU a kernel copies a view before it uses it) goes with the operator that saves it.
    """
    found = {}
    for save in trace.saves:
        maker = trace.storages[save.storage].maker
        operator = trace.operators[save.operator if maker is None else maker]
        if operator.layer_index is None or save.storage in found:
            continue
        count = _prefetch(layers[operator.layer_index], operator)
        if count is not None:
            found[save.storage] = Distance(count, unit)
    return found


def _prefetch(layer: LayerDecisions, operator: Operator) -> int | None:
    """Distance that a policy asks of an operator; of several that cannot be told apart, all must be named.

    Recompute does not count: in PyNative mode the layer that runs again is recorded as it runs.
    """
    distances = [layer.of(path).named_prefetch for path in operator.paths]
    known = [distance for distance in distances if distance is not None]
    return min(known) if len(known) == len(distances) else None
