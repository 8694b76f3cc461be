"""Masks of Dropout as the Ascend backend keeps them: one bit for each element.

The CPU kernel of `Dropout` gives a mask of the type of its input. On Ascend it becomes `DropoutGenMask`, whose mask is
one bit for each element, in whole units of 128 bits (docs/internals/notes.md#masks-of-dropout).
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.units import ceil_div

MASK_OUTPUT = 1
BITS_PER_UNIT, BYTES_PER_UNIT = 128, 16


def with_bit_masks(graph: Graph) -> Graph:
    """Return the step with masks of Dropout of the size that they have on Ascend, to be called after sharding."""
    return replace(
        graph, forward=_with_bit_masks(graph.forward, graph), backward=_with_bit_masks(graph.backward, graph)
    )


def is_mask(graph: Graph, node: Node) -> bool:
    """Return whether an operator of forward reads the mask of a `Dropout`."""
    if node.op != "TupleGetItem" or graph.constants.get(node.inputs[1]) != MASK_OUTPUT:
        return False
    source = graph.index.forward_nodes.get(node.inputs[0])
    return source is not None and source.op == "Dropout"


def _with_bit_masks(nodes: Iterable[Node], graph: Graph) -> tuple[Node, ...]:
    masks: dict[str, TensorType] = {}
    changed = []
    for node in nodes:
        if node.op == "Dropout" and len(node.outputs) > MASK_OUTPUT:
            mask = masks[node.name] = _bit_mask(node.outputs[0])
            node = replace(node, outputs=(node.outputs[0], mask, *node.outputs[MASK_OUTPUT + 1 :]))
        elif node.op == "TupleGetItem" and graph.constants.get(node.inputs[1]) == MASK_OUTPUT:
            mask_type = masks.get(node.inputs[0])
            node = replace(node, outputs=(mask_type,)) if mask_type is not None else node
        changed.append(node)
    return tuple(changed)


def _bit_mask(known: TensorType) -> TensorType:
    return TensorType.of((ceil_div(math.prod(known.shape), BITS_PER_UNIT) * BYTES_PER_UNIT,), "uint8")
