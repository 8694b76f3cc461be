"""Section of the step of each operator of a graph.

Sections are numbered in forward order, here with n layers:

    section      -1        0        1      ...    n - 1       n
             | before | layer 0 | layer 1 | ... | layer n-1 | behind |
    forward  ------------------------------------------------------->
    backward <-------------------------------------------------------
"""

from collections.abc import Sequence, Set

from mindswap.errors import SimulationError
from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import is_kernel


def count_layers(graph: Graph) -> int:
    """Layers of a compiled step.

    Raises:
        SimulationError: if it has none.
    """
    indices = [node.layer_index for node in graph.forward if node.layer_index is not None]
    if not indices:
        raise SimulationError("the compiled step has no transformer layers")
    return 1 + max(indices)


def forward_sections(graph: Graph, num_layers: int) -> list[int]:
    """Sections of forward; outside the layers, behind them from the first operator on that reads them for good.

    Layers may go on behind that: the compiler lists what routers of experts add to the loss at the end.
    """
    nodes = graph.forward
    reads: set[str] = set()  # of a layer, or outside the layers and reads one
    for node in nodes:
        if node.layer_index is not None or any(name in reads for name in node.inputs):
            reads.add(node.name)
    feeds: set[str] = set()  # read by a layer
    for node in reversed(nodes):
        # What hands forward's values over to backward is no operator, in whatever scope the compiler made it.
        if (node.layer_index is not None and is_kernel(node.op)) or node.name in feeds:
            feeds.update(node.inputs)
    ends = reads - feeds
    is_end = (node.layer_index is None and is_kernel(node.op) and node.name in ends for node in nodes)
    first = next((position for position, is_it in enumerate(is_end) if is_it), len(nodes))
    return [
        node.layer_index if node.layer_index is not None else (num_layers if position >= first else -1)
        for position, node in enumerate(nodes)
    ]


def find_early(graph: Graph, sections: Sequence[int], num_layers: int) -> frozenset[str]:
    """Operators behind the layers that run when forward begins.

    The backend's order of execution goes on from what is made to all that it makes ready. Labels that are cut out of
    the same input as the tokens (legacy models have one input) are ready at once, and so is what follows from them
    alone: OneHot has its memory through all layers. Labels that are an input of their own come when the loss asks for
    them. Both seen in `execute_order.csv` of dry runs of 2.9.0.
    """
    inputs = {name for name, known in graph.types.items() if len(known.shape) == 2}
    inputs -= {saved.backward_name for saved in graph.saved}
    first: set[str] = set()
    for node, section in zip(graph.forward, sections, strict=True):
        first.update(inputs.intersection(node.inputs) if section < 0 else ())
    made = graph.index.forward_nodes
    early: set[str] = set()
    for node, section in zip(graph.forward, sections, strict=True):
        if section == num_layers:
            own = [name for name in node.inputs if name in made or name in first]
            if own and all(name in first or name in early for name in own):
                early.add(node.name)
    return frozenset(early)


def backward_sections(graph: Graph, num_layers: int, behind: Set[str]) -> list[int]:
    """Backward goes down the layers; a layer begins with the first gradient of one of its own operators.

    What runs again belongs where it is needed first. The gradient of an operator behind the layers belongs there
    even if the compiler lists it later: it lists the gradient that the head gives a weight tied to the embedding
    just before the sum with that of the embedding, while the backend runs operators as soon as they can.

    Args:
        graph: the compiled step.
        num_layers: number of its layers.
        behind: operators of forward that are behind the layers.
    """
    behind_values = {saved.backward_name for saved in graph.saved if saved.forward_name in behind}
    sections: list[int] = []
    places: dict[str, int] = {}  # section of what backward makes
    current = num_layers

    def reads_behind(node: Node) -> bool:
        made = [places[name] for name in node.inputs if name in places]
        is_after = bool(made) and all(section == num_layers for section in made)
        return is_after or not behind_values.isdisjoint(node.inputs)

    for node in graph.backward:
        if node.layer_index is None and (node.origin in behind or (not node.origin and reads_behind(node))):
            section = num_layers
        else:
            if is_kernel(node.op) and not node.is_duplicate:
                if node.layer_index is not None:
                    current = min(current, node.layer_index)
                elif current == 0:
                    current = -1
            section = current
        sections.append(section)
        places[node.name] = section
    needed: dict[str, int] = {}  # section of the first operator that reads a value
    for position in range(len(sections) - 1, -1, -1):
        node = graph.backward[position]
        if node.is_duplicate or node.op == "MoveTo" or not is_kernel(node.op):
            sections[position] = needed.get(node.name, sections[position])
        section = sections[position]
        for name in node.inputs:
            if needed.get(name, -2) < section:
                needed[name] = section
    return _shared_from_behind(graph, sections, num_layers, {saved.backward_name for saved in graph.saved})


def _shared_from_behind(graph: Graph, sections: list[int], num_layers: int, saved: Set[str]) -> list[int]:
    """Sections with values behind the layers that follow from the loss alone and are the same for all of them.

    The gradient of what routers add to the loss is such a value: the compiler makes it once.
    """
    places = {node.name: section for node, section in zip(graph.backward, sections, strict=True)}
    follows: set[str] = set()
    of_loss = {name for name, section in places.items() if section == num_layers}
    for node in graph.backward:
        own = [name for name in node.inputs if name in places]
        if own and of_loss.issuperset(own) and saved.isdisjoint(node.inputs):
            follows.add(node.name)
            of_loss.add(node.name)
    if all(places[name] in (-1, num_layers) for name in follows):  # most often
        return sections
    lowest: dict[str, int] = {}  # section of the last reader
    shared: set[str] = set()
    for node in reversed(graph.backward):
        place = places[node.name]
        if node.name in follows and 0 <= place < num_layers and lowest.get(node.name, place) < place - 1:
            shared.add(node.name)
        for name in node.inputs:
            lowest[name] = min(lowest.get(name, place), -1 if node.name in shared else place)
    return [num_layers if node.name in shared else places[node.name] for node in graph.backward]
