"""The layer of operators that no cell owns: `x + y` or `ops.gelu(x)` in `construct`.

MindSpore parses `construct` of a class once. What is written there as a function has the scope of the first cell of
that class in all of them; primitives that are attributes of a cell have their own. So an operator without a path of
its own belongs where the data says:

    layer 0         layer 1
    norm up gelu +  norm up gelu +      `+` reads the layer that it ends, `norm` of the next reads it
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mindswap.graph.model import Node
from mindswap.graph.ops import WEIGHT_OPS
from mindswap.graph.sharding.gather import weight_name

BEFORE = -1


def place_untagged(nodes: Sequence[Node], layer_list: str) -> tuple[Node, ...]:
    """Forward, in execution order, with every operator in its layer.

    One that could be in two layers is where the first of its kind is: at the begin of its layer, or at the end.
    `layer_list` is the name of the list that holds the layers, in the names of weights.
    """
    layers: dict[str, int] = {}
    readers = _first_reader(nodes)
    starts: dict[str, bool] = {}
    placed = []
    for node in nodes:
        if node.op in WEIGHT_OPS:
            named = _layer_of_weight(weight_name(node), layer_list)
            source = layers.get(node.inputs[0]) if node.inputs else None
            layer = named if named is not None else node.layer_index if source in (None, BEFORE) else source
            node = replace(node, layer_index=layer)
        elif not node.paths and node.layer_index is not None:
            read = max((layers.get(name, BEFORE) for name in node.inputs), default=BEFORE)
            kind = node.name.rpartition(":")[0]  # what MindSpore calls one place in the code, before its number
            is_start = starts.setdefault(kind, read < node.layer_index)
            reader = readers.get(node.name, node.layer_index)
            is_behind = read == BEFORE or (is_start and reader > read)
            node = replace(node, layer_index=reader if is_behind else read)
        layers[node.name] = BEFORE if node.layer_index is None else node.layer_index
        placed.append(node)
    return tuple(placed)


def _first_reader(nodes: Iterable[Node]) -> dict[str, int]:
    """Value -> the first layer in which an operator with a path of its own reads it, directly or through others."""
    first: dict[str, int] = {}
    for node in reversed(tuple(nodes)):
        own = node.layer_index if node.paths else first.get(node.name)
        if own is not None:
            for name in node.inputs:
                first[name] = min(own, first.get(name, own))
    return first


def _layer_of_weight(name: str, layer_list: str) -> int | None:
    """Index behind the name of the list in the name of a weight, as cells give it to their parameters."""
    found = re.search(rf"(?:^|\.){re.escape(layer_list)}\.(\d+)(?:\.|$)", name)
    return int(found[1]) if found else None
