"""Which operators of backward zero_bubble_v computes apart from the rest.

Source: `DetachBackward::DetachDxAndDwGraph`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/detach_backward.cc
(mindspore-ai/mindspore_test, 0b71b3f): the matrix product whose result is added to the sum of a gradient. A cast
between the two is taken away on Ascend (`RemoveCastBeforeAssignAdd`, parallel/pass/remove_cast_before_assign_add.cc).
"""

from mindswap.graph.model import Graph
from mindswap.graph.ops import GRADIENT_PASSING_OPS, MATMUL_OPS


def find_weight_gradients(graph: Graph) -> frozenset[str]:
    """Names of the matrix products that give a gradient of a weight, and of what is between them and its sum."""
    if not graph.backward or graph.backward[-1].op != "MakeTuple":
        return frozenset()
    handed_out = graph.backward[-1].name
    between = {handed_out}  # operators that only pass gradients on
    found: set[str] = set()
    for node in reversed(graph.backward):
        users = graph.index.readers.get(node.name, ())
        if not users or not all(user.name in between for user in users):
            continue
        if node.op in MATMUL_OPS and not node.is_duplicate:
            found.add(node.name)
        elif node.op in GRADIENT_PASSING_OPS:
            between.add(node.name)
    for node in graph.backward:
        if node.name in between and node.name != handed_out and found.intersection(node.inputs):
            found.add(node.name)
    return frozenset(found)
