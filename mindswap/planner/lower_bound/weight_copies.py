"""Copies of weights that a policy avoids, as the lower bound grants them.

A policy avoids a copy if it recomputes all operators of forward that read it (`graph.analysis.weight_copies`). That
frees the copy, and forward does not make it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from mindswap.graph.analysis.weight_copies import find_copy_readers, find_weight_copies
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Node
from mindswap.simulator.step_model import StepModel


def time_weight_copies(model: StepModel, layer_ops: Sequence[Node]) -> dict[int, int]:
    """Return the copies of weights that a policy may avoid.

    Args:
        model: step model.
        layer_ops: operators of a layer.

    Returns:
        Index of the operator in `layer_ops` -> its duration in ns. Empty with a single micro-step, which copies none.
    """
    graph = model.captured.graph
    copies = find_weight_copies(graph) if model.weights.rule.is_summed else frozenset()
    copied_ops = [op for op, node in enumerate(layer_ops) if node.name in copies and find_copy_readers(graph, node)]
    if not copied_ops:
        return {}
    works = dict(zip((node.name for node in graph.forward), measure_work(graph)[0], strict=True))
    return {op: model.costs.operator_ns(layer_ops[op], works[layer_ops[op].name]) for op in copied_ops}


def find_required_recomputes(
    model: StepModel,
    layer_ops: Sequence[Node],
    copied_ops: Iterable[int],
    saved_outputs: Mapping[int, Set[int]],
) -> Iterator[tuple[int, int]]:
    """Yield (copy, reader): a policy avoids the copy only if backward recomputes the reader.

    Backward recomputes a reader that is set to recompute if it needs the output. It certainly does if the output is
    saved for backward and only the reader is a holder of it.

    Args:
        model: step model.
        layer_ops: operators of a layer.
        copied_ops: indices of operators that copy weights.
        saved_outputs: operator -> its outputs that backward reads, no other layer, and of which it is the only holder.
    """
    ops = {node.name: op for op, node in enumerate(layer_ops)}
    for copy in copied_ops:
        for reader in find_copy_readers(model.captured.graph, layer_ops[copy]):
            op = ops.get(reader.name)
            if op is not None and saved_outputs.get(op):
                yield copy, op
