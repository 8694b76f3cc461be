"""Order in which MindSpore finds the readers of a tensor.

Where readers want a Reshape in different splits, the first one decides (`FindNextLayout` of step_parallel.cc). Their
order is that of the graph manager, which visits operators from the end of the graph, the last input first
(`FuncGraphManager::AcquireNodes`): in a layer the branch before shortcuts around it.
"""

from collections.abc import Mapping, Sequence

from mindswap.graph.model import Node


def order_of_visits(nodes: Sequence[Node]) -> Mapping[str, int]:
    """Return when the graph manager visits each operator.

    Args:
        nodes: operators of a function in execution order; the last one is its output.

    Returns:
        Name -> number of operators that are visited before it.
    """
    by_name = {node.name: node for node in nodes}
    visits: dict[str, int] = {}
    pending = [node.name for node in nodes]  # those that the output does not depend on follow, last first
    while pending:
        name = pending.pop()
        if name in by_name and name not in visits:
            visits[name] = len(visits)
            pending += by_name[name].inputs
    return visits
