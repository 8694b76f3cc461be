"""Copies of weights that a policy avoids, as the lower bound grants them.

A policy avoids a copy if it recomputes all operators of forward that read it (`graph.analysis.weight_copies`). That
frees the copy, and forward does not make it.
"""

from collections.abc import Collection, Iterable, Iterator

from mindswap.graph.analysis.weight_copies import find_copy_readers, find_weight_copies
from mindswap.graph.analysis.work import measure_work
from mindswap.planner.lower_bound.captured_layer import CapturedLayer


def time_weight_copies(layer: CapturedLayer) -> dict[int, int]:
    """Return the copies of weights that a policy may avoid: operator -> its duration in ns.

    Empty with a single micro-step, which copies none.
    """
    graph, model = layer.graph, layer.model
    copies = find_weight_copies(graph) if model.weights.rule.is_summed else frozenset()
    copied = {op: node for op, node in enumerate(layer.nodes) if node.name in copies and find_copy_readers(graph, node)}
    works = dict(zip((node.name for node in graph.forward), measure_work(graph)[0], strict=True)) if copied else {}
    return {op: model.costs.operator_ns(node, works[node.name]) for op, node in copied.items()}


def find_required_recomputes(
    layer: CapturedLayer, copied_ops: Iterable[int], saved_ops: Collection[int]
) -> Iterator[tuple[int, int]]:
    """Yield (copy, reader): a policy avoids the copy only if backward recomputes the reader.

    Backward recomputes a reader that is set to recompute if it needs the output. It certainly does if the output is
    saved for backward and only the reader is a holder of it.

    Args:
        layer: the layer.
        copied_ops: operators that copy weights.
        saved_ops: operators with an output that backward reads, no other layer, and of which it is the only holder.
    """
    for copy in copied_ops:
        for reader in find_copy_readers(layer.graph, layer.nodes[copy]):
            if (op := layer.ops.get(reader.name)) in saved_ops and op is not None:
                yield copy, op
