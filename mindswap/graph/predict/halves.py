"""Which operators of backward zero_bubble_v computes apart from the rest. Pure.

Source: `DetachBackward::DetachDxAndDwGraph`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/detach_backward.cc
(mindspore-ai/mindspore_test, 0b71b3f): the matrix product whose result is added to the sum of a gradient. A cast
between the two is taken away on Ascend (`RemoveCastBeforeAssignAdd`, parallel/pass/remove_cast_before_assign_add.cc).
"""

from mindswap.graph.model import Graph
from mindswap.graph.ops import MATMUL_OPS

__all__ = ["find_weight_gradients"]


def find_weight_gradients(graph: Graph) -> frozenset[str]:
    """Names of the matrix products that give a gradient of a weight and nothing else, and of what follows on them."""
    if not graph.backward or graph.backward[-1].op != "MakeTuple":
        return frozenset()
    handed_out = graph.backward[-1].name
    users: dict[str, set[str]] = {}
    for node in graph.backward:
        for name in node.inputs:
            users.setdefault(name, set()).add(node.name)
    ends_there = {handed_out}  # operators whose results go into gradients of weights only
    for node in reversed(graph.backward):
        if users.get(node.name) and users[node.name] <= ends_there:
            ends_there.add(node.name)
    found: set[str] = set()
    for node in graph.backward:
        is_product = node.op in MATMUL_OPS and not node.is_duplicate
        if node.name in ends_there - {handed_out} and (is_product or found.intersection(node.inputs)):
            found.add(node.name)
    return frozenset(found)
