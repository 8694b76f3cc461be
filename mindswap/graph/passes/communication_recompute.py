r"""Operators that decide whether backward repeats a redistribution (`recompute_comm_op`, `select_comm_recompute`).

MindSpore's step_parallel.cc redistributes a tensor in one of two ways. A Reshape that changes the split becomes the
communication, and its own attribute decides (`StepReplace`). Otherwise the communication is inserted before the reader:
the attribute of the reader decides, or else that of the operator that made the tensor, through operators without a
strategy of their own, such as casts (`InsertRedistribution`). So `.*\.norm`, the default of MindFormers, repeats the
AllGather after a norm only where no Reshape stands between the norm and the product that reads it
(docs/internals/notes.md#inserted-communication).
"""

from collections.abc import Iterator

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import ORDERING_OPS, REDISTRIBUTION_OPS, SPLIT_PASSING_OPS, TUPLE_OPS
from mindswap.graph.sharding.split_table import ARRIVAL_SUFFIX

_WITHOUT_STRATEGY = SPLIT_PASSING_OPS | TUPLE_OPS | ORDERING_OPS


def deciding_operators(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield the operators whose attribute decides about a redistribution; none for other operators.

    Args:
        graph: the step of one rank.
        node: operator of forward.
    """
    if node.op not in REDISTRIBUTION_OPS:
        return
    if not node.name.endswith(ARRIVAL_SUFFIX):
        yield node
        return
    if node.op == "Slice":  # inserted before a norm; the slice needs as much memory as the tensor that it is made from
        return
    # Of several inserted communications of one tensor the compiler keeps the last (merge_comm.cc).
    yield from graph.index.forward_readers.get(node.name, ())[-1:]
    producer = graph.index.forward_nodes.get(node.inputs[0])
    while producer is not None and producer.op in _WITHOUT_STRATEGY:
        producer = graph.index.forward_nodes.get(producer.inputs[0])
    if producer is not None:
        yield producer
