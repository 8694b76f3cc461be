"""Positions in the execution order of MindSpore's Ascend backend, which `backward_prefetch` counts.

The backend launches more than kernels: a Reshape has a position although it runs nothing, and communication along
another than the first dimension has a Split and a Concat. A fused kernel has one position
(docs/internals/notes.md#positions-in-the-execution-order).
"""

from collections.abc import Iterator, Sequence

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import COMPILER_OPS, FUSED_OPS, FUSED_READERS, REDISTRIBUTION_OPS, VIEW_OPS, is_kernel
from mindswap.graph.passes.fusion import adds_zero, is_along_first, is_moved

LAUNCHED_VIEWS = VIEW_OPS - COMPILER_OPS
# AllGather and StridedSlice between three Reshapes.
NUM_OF_ALL_TO_ALL = 5
# Split and Concat.
NUM_OF_REORDERING = 2
# Operators between members of a kernel at most, to look for what depends on one and feeds the other.
MAX_DISTANCE = 200
# Note of a step whose rotary embeddings were compiled as operators on halves, where the backend has one BatchMatMul.
ROTATION_NOTE = "compiled with use_rope_slice: True, because BatchMatMul does not broadcast on CPU"


def count_view(graph: Graph, node: Node) -> int:
    """Return the number of positions of an operator without a kernel; 0 for one that the backend does not launch.

    A Reshape whose output is smaller than its input stands for a ReduceScatter: in backward as the gradient of one that
    gathers, in forward after a partial sum.
    """
    if node.op not in LAUNCHED_VIEWS or not node.inputs:
        return 0
    operand = graph.index.nodes.get(node.inputs[0])
    is_scattering = operand is not None and len(operand.outputs) == 1 and operand.size_bytes > node.size_bytes
    return 1 + NUM_OF_REORDERING * is_scattering


def count_kernel(graph: Graph, node: Node) -> int:
    """Return the number of positions of an operator with a kernel of its own."""
    if node.op not in REDISTRIBUTION_OPS:
        return 1
    if node.op == "AllToAll":
        return NUM_OF_ALL_TO_ALL
    operand = graph.index.nodes.get(node.inputs[0])
    if node.op != "AllGather" or operand is None or is_along_first(graph, node):
        return 1
    is_reshaping = len(operand.outputs) == 1 and len(operand.outputs[0].shape) != len(node.outputs[0].shape)
    return 1 + NUM_OF_REORDERING + is_reshaping


def find_joined(graph: Graph) -> frozenset[str]:
    """Return the operators that are part of the kernel of a later one, which has the position of both.

    Their output may be written to memory nevertheless, for other readers (`fusion.find_unwritten`).
    """
    return frozenset(name for nodes in (graph.forward, graph.backward) for name in _joined(nodes))


def find_rotations(graph: Graph) -> frozenset[str]:
    """Return the operators on halves of rotary embeddings, and their gradients.

    The operator that joins the halves, and that which splits its gradient, stand for the BatchMatMul of the backend.
    """
    nodes = [node for node in (*graph.forward, *graph.backward) if "rotary" in node.cell_path]
    widths: dict[str, int] = {}  # of a head, by cell
    for node in nodes:
        widths[node.cell_path] = max(widths.get(node.cell_path, 0), _width(node))
    narrow = {node.name for node in nodes if len(node.outputs) == 1 and _width(node) < widths[node.cell_path]}
    of_narrow = {node.name for node in nodes if len(node.outputs) == 1 and not narrow.isdisjoint(node.inputs)}
    return frozenset(narrow | of_narrow)


def _width(node: Node) -> int:
    """Return the last dimension of the first output; 0 for none."""
    return node.outputs[0].shape[-1] if node.outputs and node.outputs[0].shape else 0


def _joined(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield the operators of one pass that a later one joins."""
    position = {node.name: at for at, node in enumerate(nodes)}
    members = {node.name: node.inputs for node in nodes if node.op == "MakeTuple"}
    members |= {node.name: node.inputs[:1] for node in nodes if adds_zero(node)}  # the backend removes it
    for at, reader in enumerate(nodes):
        if reader.op not in FUSED_READERS or adds_zero(reader):
            continue
        for name in (member for value in reader.inputs for member in members.get(value, (value,))):
            before = position.get(name, at)
            node = nodes[before]
            is_near = before < at < before + MAX_DISTANCE
            if is_near and node.op in FUSED_OPS and not is_moved(node, reader) and not _feeds(nodes[before : at + 1]):
                yield name


def _feeds(nodes: Sequence[Node]) -> bool:
    """Return whether the last operator depends on the first one through one that is not fused with them."""
    first, *between, last = nodes
    reached, outside = {first.name}, set[str]()
    for node in between:
        is_fusable = node.op in FUSED_READERS or not (is_kernel(node.op) or node.op in LAUNCHED_VIEWS)
        if not outside.isdisjoint(node.inputs) or (not is_fusable and not reached.isdisjoint(node.inputs)):
            outside.add(node.name)
        elif not reached.isdisjoint(node.inputs):
            reached.add(node.name)
    return not outside.isdisjoint(last.inputs)
