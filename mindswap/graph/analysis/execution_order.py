"""Positions in the execution order of MindSpore's Ascend backend, which `backward_prefetch` counts.

The backend launches more than kernels: a Reshape has a position although it runs nothing, and communication along
another than the first dimension has a Split and a Concat. A fused kernel has one position
(docs/internals/notes.md#positions-in-the-execution-order).
"""

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import COMPILER_OPS, REDISTRIBUTION_OPS, VIEW_OPS
from mindswap.graph.passes.fusion import is_along_first

LAUNCHED_VIEWS = VIEW_OPS - COMPILER_OPS
# AllGather and StridedSlice between three Reshapes.
NUM_OF_ALL_TO_ALL = 5
# Split and Concat.
NUM_OF_REORDERING = 2


def count_view(graph: Graph, node: Node) -> int:
    """Return the number of positions of an operator without a kernel; 0 for one that the backend does not launch.

    A Reshape of backward whose output is smaller than its input is the gradient of one that gathers.
    """
    if node.op not in LAUNCHED_VIEWS or not node.inputs:
        return 0
    operand = graph.index.nodes.get(node.inputs[0])
    is_scattering = operand is not None and len(operand.outputs) == 1 and operand.size_bytes > node.size_bytes
    return 1 + NUM_OF_REORDERING * is_scattering


def count_kernel(graph: Graph, node: Node) -> int:
    """Return the number of positions of an operator with a kernel that is not fused into that of its reader."""
    if node.op not in REDISTRIBUTION_OPS:
        return 1
    if node.op == "AllToAll":
        return NUM_OF_ALL_TO_ALL
    operand = graph.index.nodes.get(node.inputs[0])
    if node.op != "AllGather" or operand is None or is_along_first(graph, node):
        return 1
    is_reshaping = len(operand.outputs) == 1 and len(operand.outputs[0].shape) != len(node.outputs[0].shape)
    return 1 + NUM_OF_REORDERING + is_reshaping
