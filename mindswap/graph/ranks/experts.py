"""Experts in a captured step: names that the capture replaced, and what has the sizes of one rank already. Pure.

`adapters.experts` says what they stand for.
"""

from collections.abc import Mapping
from dataclasses import replace

from mindswap.graph.model import HOST_COPY, Graph, Node
from mindswap.graph.ops import FIRST_INPUT_OPS

__all__ = ["EXCHANGE", "FROM_LOCAL", "NAME_MARK", "RANK_NAMES", "TO_LOCAL", "LocalNames", "restore_names"]

TO_LOCAL, FROM_LOCAL, EXCHANGE = "ToLocal", "FromLocal", "ExchangeTokens"
# Attribute of a primitive that stands for another: the name of that one.
NAME_MARK = "mindswap_name"
# Name that a gradient has, for the primitive that its forward operator stands for.
GRADIENT_NAMES = {"IndexSelect": {"UnsortedSegmentSum": "InplaceIndexAddExt"}}
# Names in the step of one rank.
RANK_NAMES = {TO_LOCAL: "Reshape", FROM_LOCAL: "Reshape", EXCHANGE: "AlltoAllV"}


def restore_names(graph: Graph) -> Graph:
    """Operators that stand for others under the names of those."""
    marked = {node.name: str(node.attributes[NAME_MARK]) for node in graph.forward if NAME_MARK in node.attributes}
    # The dispatchers copy how many tokens go where to the host, and keep that copy from being made again.
    counts = (node for node in graph.forward if node.op == "MoveTo" and node.attributes.get("recompute") is False)
    marked |= {node.name: HOST_COPY for node in counts}
    if not marked:
        return graph
    forward = tuple(replace(node, op=marked[node.name]) if node.name in marked else node for node in graph.forward)
    return replace(graph, forward=forward, backward=tuple(_restored(node, marked) for node in graph.backward))


def _restored(node: Node, marked: Mapping[str, str]) -> Node:
    if NAME_MARK in node.attributes:  # runs again
        return replace(node, op=str(node.attributes[NAME_MARK]))
    names = GRADIENT_NAMES.get(marked.get(node.origin, ""), {})
    return replace(node, op=names[node.op]) if node.op in names else node


class LocalNames:
    """The values that have the sizes of one rank as they were compiled: what is between ToLocal and FromLocal."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def add(self, node: Node, forward_names: Mapping[str, str]) -> bool:
        """Whether a node makes such a value; nodes come in the order of execution.

        Args:
            node: of forward or backward.
            forward_names: what backward calls a value of forward -> its name there.
        """
        inputs = node.inputs[:1] if node.op in FIRST_INPUT_OPS else node.inputs
        is_local = node.op == TO_LOCAL or (
            node.op != FROM_LOCAL and any(forward_names.get(name, name) in self.names for name in inputs)
        )
        # A scalar is the same for all ranks: the loss of the router goes through the whole model.
        is_local = is_local and any(_num_elements(known.shape) > 1 for known in node.outputs)
        if is_local:
            self.names.add(node.name)
        return is_local


def _num_elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
