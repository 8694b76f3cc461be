"""Experts in a captured step: names that the capture replaced, and what has the sizes of one rank already.

`adapters.graph.experts` says what they stand for.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from mindswap.graph.model import HOST_COPY, Graph, Node
from mindswap.graph.ops import FIRST_INPUT_OPS

TO_LOCAL, FROM_LOCAL, EXCHANGE = "ToLocal", "FromLocal", "ExchangeTokens"
# Attribute of a primitive that stands for another: the name of that one.
NAME_MARK = "mindswap_name"
# Name that a gradient has, for the primitive that its forward operator stands for.
GRADIENT_NAMES = {"IndexSelect": {"UnsortedSegmentSum": "InplaceIndexAddExt"}}
# An exchange has its name on a rank as an attribute, with the ranks of its group.
KIND, NUM_RANKS, STRIDE = "kind", "num_ranks", "stride"


def rank_name(node: Node) -> str:
    """Its operator in the step of one rank."""
    if node.op == EXCHANGE:
        return str(node.attributes[KIND])
    return "Reshape" if node.op in (TO_LOCAL, FROM_LOCAL) else node.op


def is_exchange(node: Node) -> bool:
    """True for communication of experts, under whichever name."""
    return KIND in node.attributes and NUM_RANKS in node.attributes


def num_copies(num_tokens: int, num_experts: int, top_k: int, num_ranks: int, num_groups: int, top_groups: int) -> int:
    """Copies of tokens that a rank sends out where each goes once to every rank that has an expert of it.

    Assumed: all choices of experts are as likely. A token takes `top_groups` of the groups of experts, and `top_k`
    experts of those (`n_group` and `topk_group` of DeepSeek-V3; 1 and 1 without groups).

    Args:
        num_tokens: of the rank.
        num_ranks: of expert parallelism, each with as many experts.
    """
    own, in_group = num_experts // num_ranks, num_experts // num_groups
    own_groups, allowed = max(1, own // in_group), in_group * top_groups
    missed = Fraction(0)
    for taken in range(min(own_groups, top_groups) + 1):
        share = math.comb(own_groups, taken) * math.comb(num_groups - own_groups, top_groups - taken)
        others = allowed - taken * min(own, in_group)
        missed += Fraction(
            share * math.comb(others, top_k), math.comb(num_groups, top_groups) * math.comb(allowed, top_k)
        )
    return math.ceil(num_tokens * num_ranks * (1 - missed))


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


class RankLocalValues:
    """The values that have the sizes of one rank as they were compiled: what is between ToLocal and FromLocal."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def add(self, node: Node, forward_names: Mapping[str, str]) -> bool:
        """Add what a node makes if it is such a value, and say so; nodes come in the order of execution.

        `forward_names` has what backward calls a value of forward -> its name there.
        """
        inputs = node.inputs[:1] if node.op in FIRST_INPUT_OPS else node.inputs
        is_local = node.op == TO_LOCAL or (
            node.op != FROM_LOCAL and any(forward_names.get(name, name) in self.names for name in inputs)
        )
        # A scalar is the same for all ranks: the loss of the router goes through the whole model.
        is_local = is_local and node.has_tensor_output
        if is_local:
            self.names.add(node.name)
        return is_local
