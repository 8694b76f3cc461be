"""Experts in a captured step: operators that stand-ins replaced, and values that have the sizes of one rank.

The stand-ins are in `adapters.graph.experts` and `adapters.graph.expert_exchange`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from mindswap.graph.model import HOST_COPY, Graph, Node
from mindswap.graph.ops import FIRST_INPUT_OPS

TO_LOCAL, FROM_LOCAL, EXCHANGE = "ToLocal", "FromLocal", "ExchangeTokens"
# Attribute of a stand-in: type of the operator that it replaces.
NAME_MARK = "mindswap_name"
# For a replaced forward operator: type of its gradient -> type that the real gradient has.
GRADIENT_NAMES = {"IndexSelect": {"UnsortedSegmentSum": "InplaceIndexAddExt"}}
# Attributes of an exchange: its type on a rank, and its group of ranks.
KIND, NUM_RANKS, STRIDE = "kind", "num_ranks", "stride"


def rank_name(node: Node) -> str:
    """Return the type of an operator on one rank."""
    if node.op == EXCHANGE:
        return str(node.attributes[KIND])
    return "Reshape" if node.op in (TO_LOCAL, FROM_LOCAL) else node.op


def is_exchange(node: Node) -> bool:
    """Return whether the operator is communication between experts, under any name."""
    return KIND in node.attributes and NUM_RANKS in node.attributes


def num_copies(num_tokens: int, num_experts: int, top_k: int, num_ranks: int, num_groups: int, top_groups: int) -> int:
    """Return the expected number of token copies that a rank sends, one to each rank with an expert of the token.

    All choices of experts are assumed to be equally likely. A token selects `top_groups` of the groups of experts, and
    `top_k` experts from those (`n_group` and `topk_group` of DeepSeek-V3; both 1 without groups).

    Args:
        num_tokens: tokens of the rank.
        num_experts: experts of all ranks.
        top_k: experts of each token.
        num_ranks: expert parallel ranks, each with the same number of experts.
        num_groups: groups of experts.
        top_groups: groups of each token.
    """
    num_local, in_group = num_experts // num_ranks, num_experts // num_groups
    num_local_groups, allowed = max(1, num_local // in_group), in_group * top_groups
    missed = Fraction(0)
    for num_taken in range(min(num_local_groups, top_groups) + 1):
        share = math.comb(num_local_groups, num_taken) * math.comb(
            num_groups - num_local_groups, top_groups - num_taken
        )
        num_remote = allowed - num_taken * min(num_local, in_group)
        missed += Fraction(
            share * math.comb(num_remote, top_k), math.comb(num_groups, top_groups) * math.comb(allowed, top_k)
        )
    return math.ceil(num_tokens * num_ranks * (1 - missed))


def restore_names(graph: Graph) -> Graph:
    """Return the graph with stand-ins renamed to the operators that they replace."""
    marked = {node.name: str(node.attributes[NAME_MARK]) for node in graph.forward if NAME_MARK in node.attributes}
    # The token dispatchers copy the token counts to the host and exclude that copy from recompute.
    counts = (node for node in graph.forward if node.op == "MoveTo" and node.attributes.get("recompute") is False)
    marked |= {node.name: HOST_COPY for node in counts}
    if not marked:
        return graph
    forward = tuple(replace(node, op=marked[node.name]) if node.name in marked else node for node in graph.forward)
    return replace(graph, forward=forward, backward=tuple(_restored(node, marked) for node in graph.backward))


def _restored(node: Node, marked: Mapping[str, str]) -> Node:
    if NAME_MARK in node.attributes:  # recomputed
        return replace(node, op=str(node.attributes[NAME_MARK]))
    names = GRADIENT_NAMES.get(marked.get(node.origin, ""), {})
    return replace(node, op=names[node.op]) if node.op in names else node


class RankLocalValues:
    """Values compiled with the sizes of one rank: those between ToLocal and FromLocal."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def add(self, node: Node, forward_names: Mapping[str, str]) -> bool:
        """Add the output of a node if it is local to a rank, and return whether it is.

        Args:
            node: nodes must be passed in execution order.
            forward_names: name in backward of each saved value -> its name in forward.
        """
        inputs = node.inputs[:1] if node.op in FIRST_INPUT_OPS else node.inputs
        is_local = node.op == TO_LOCAL or (
            node.op != FROM_LOCAL and any(forward_names.get(name, name) in self.names for name in inputs)
        )
        # A scalar is equal on all ranks: the loss of the router passes through the entire model.
        is_local = is_local and node.has_tensor_output
        if is_local:
            self.names.add(node.name)
        return is_local
