"""Copies and casts of weights that each micro-batch makes."""

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import VALUE_PASSING_OPS, WEIGHT_OPS, is_kernel
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.storage import StorageKind, resolve_storage


def find_weight_copies(graph: Graph) -> frozenset[str]:
    """Return the names of forward operators that copy a weight and keep the copy until backward.

    If backward reads a weight in the type in which it is stored, each of several micro-batches copies the weight. Where
    only recomputed operators read the copy in forward, backward calls them with the weight itself, and nothing is
    copied (docs/internals/notes.md#weights-copied-for-backward).
    """
    saved_names = {entry.forward_name for entry in graph.saved}
    return frozenset(
        node.name
        for node in graph.forward
        if node.op == "TensorMove" and node.name in saved_names and not _has_recomputed_readers(graph, node)
    )


def find_weight_casts(graph: Graph) -> frozenset[str]:
    """Return the names of operators of layers that read weights only, mostly casts; AllGathers do not count."""

    def reads_activations(node: Node) -> bool:
        return any(resolve_storage(graph, name).kind is StorageKind.ACTIVATION for name in node.inputs)

    return frozenset(
        node.name
        for node in graph.forward
        if node.layer_index is not None and is_kernel(node.op) and node.op not in WEIGHT_OPS
        if not is_gathering(node) and not reads_activations(node)
    )


def find_copy_readers(graph: Graph, copy: Node) -> tuple[Node, ...]:
    """Return the kernels of forward that read the copy of a weight."""
    pending, readers = [copy.name], dict[str, Node]()
    while pending:
        for reader in graph.index.forward_readers.get(pending.pop(), ()):
            if reader.op in VALUE_PASSING_OPS:
                pending.append(reader.name)
            elif is_kernel(reader.op):
                readers[reader.name] = reader
    return tuple(readers.values())


def _has_recomputed_readers(graph: Graph, copy: Node) -> bool:
    """Return whether forward reads the copy of a weight, and only by recomputed operators."""
    readers = find_copy_readers(graph, copy)
    return bool(readers) and all(reader.is_recomputed for reader in readers)
