"""Layers that compute in two halves, in the order that lets communication of one hide behind the other.

MindSpore gives every pair of communications of the two halves an order (micro_interleaved_order_control.cc): one half
computes until it communicates, then the other does the same meanwhile, and so on in turn. Operators that run again in
backward are left out of it there (`kAttrDuplicated`), and here. What is here layer by layer goes on across two layers
there: a half that ends a layer with communication waits for it at the border.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import CONCAT_GRADIENT_OPS
from mindswap.graph.sharding.splits import read_strategy

# Halves of a layer that calls the same cells for each of them (`fine_grain_interleave`).
#
# MindSpore keeps one id for an operator however often the model calls it. So the gradients of both halves carry the id
# of both forward operators, and only what they read tells whose they are.

# The cell that cuts a half out of a tensor: llama_interleave.py, `interleave1_inputs`, `interleave2_inputs`.
CUTTING_CELL = re.compile(r"(?:^|\.)interleave\d+_inputs\.(\d+)$")
JOINING_OP = "Concat"


class Branches:
    """The half that each value is computed for; None for what is of the whole.

    `aliases` has the names in forward of what it hands over, `constants` which member of a tuple is taken.
    """

    def __init__(self, forward: Iterable[Node], aliases: Mapping[str, str], constants: Mapping[str, int]):
        self._constants = constants
        self._of: dict[str, int | None] = {}
        self._cut: set[str] = set()  # gradients of a join: their members are of one half each
        for node in forward:
            cut = _slice_of_half(node)
            self._of[node.name] = int(cut[1]) if cut else self._of_inputs(node)
        for backward_name, forward_name in aliases.items():
            self._of[backward_name] = self._of.get(forward_name)

    def __getitem__(self, name: str) -> int | None:
        return self._of.get(name)

    def add(self, node: Node, origins: Iterable[Node]) -> None:
        """Place an operator of backward behind all that it reads; it may be the gradient of one of `origins`."""
        own = self._of_inputs(node)
        if node.op in CONCAT_GRADIENT_OPS and any(origin.op == JOINING_OP for origin in origins):
            self._cut.add(node.name)
        elif own is None and node.op == "TupleGetItem" and node.inputs[0] in self._cut:
            own = self._constants.get(node.inputs[1], 0)
        self._of[node.name] = own

    def _of_inputs(self, node: Node) -> int | None:
        """That of all inputs that have one; None where they differ: halves are put together."""
        found = {branch for name in node.inputs if (branch := self._of.get(name)) is not None}
        return found.pop() if len(found) == 1 else None


def _slice_of_half(node: Node) -> re.Match[str] | None:
    """What cuts a half out of a tensor; its group is the half."""
    return CUTTING_CELL.search(node.cell_path) if node.op == "StridedSlice" else None


def order_halves(graph: Graph, communicating_first: Set[str], communicating_after: Set[str]) -> Graph:
    """The step of one rank with the halves of each layer in turn; without halves it comes back as it is.

    Operators communicate before they compute, or what they made.
    """
    if not any(map(_slice_of_half, graph.forward)):
        return graph
    branches = Branches(graph.forward, graph.index.forward_names, graph.constants)
    origins = graph.index.forward_nodes
    for node in graph.backward:
        branches.add(node, [origins[node.origin]] if node.origin in origins else [])
    passes = []
    for nodes in (graph.forward, graph.backward):
        ordered: list[Node] = []
        for _, run in groupby(nodes, key=lambda node: node.layer_index):
            part = list(run)
            stops = set(_stops(part, branches, communicating_first, communicating_after))
            ordered += _HalfScheduler(part, branches, stops).order() if stops else part
        passes.append(tuple(ordered))
    return replace(graph, forward=passes[0], backward=passes[1])


def _stops(nodes: Sequence[Node], branches: Branches, first: Set[str], after: Set[str]) -> Iterator[str]:
    """Operators of a half that wait for communication: of each communication the first that reads it."""
    sent = {node.name for node in nodes if (node.origin if node.is_duplicate else node.name) in after}
    for node in nodes:
        if node.is_duplicate or branches[node.name] is None:
            continue
        waits = [name for name in node.inputs if name in sent]
        sent.difference_update(waits)
        if waits or node.name in first:
            yield node.name


class _HalfScheduler:
    """Puts the operators of one layer and pass in order.

    Operators of the whole run as late as a half needs them (casts of weights), and as soon as they can where they put
    halves together (sums of gradients).
    """

    def __init__(self, nodes: Sequence[Node], branches: Branches, stops: Set[str]):
        self.nodes = nodes
        self.by_name = {node.name: node for node in nodes}
        self.stops = stops
        self.half = {node.name: None if node.is_duplicate else branches[node.name] for node in nodes}
        self.queues = [[node for node in nodes if self.half[node.name] == half] for half in (0, 1)]
        self.joins = [node for node in nodes if any(self.half.get(name) is not None for name in node.inputs)]
        self.done: dict[str, Node] = {}

    def order(self) -> list[Node]:
        """All operators; as they were if there is no such order."""
        may_pass = [False, False]
        while len(self.done) < len(self.nodes):
            before = len(self.done)
            is_waiting = [self._run(half, may_pass) for half in (0, 1)]
            if len(self.done) == before and not any(is_waiting) and not self._run_next_shared():
                return list(self.nodes)
        return list(self.done.values())

    def _run(self, half: int, may_pass: list[bool]) -> bool:
        """One half as far as it comes; whether it stopped for communication."""
        queue = self.queues[half]
        while queue:
            if queue[0].name in self.stops and not may_pass[half]:
                may_pass[half] = True
                return True
            needed = self._needed(queue[0])
            if needed is None:
                return False
            may_pass[half] = False
            self.done |= {node.name: node for node in (*needed, queue.pop(0))}
            self.done |= {node.name: node for node in self._ready(self.joins)}
        return False

    def _needed(self, node: Node) -> list[Node] | None:
        """Operators of the whole that have to run before a node; None if it has to wait for the other half."""
        found: dict[str, Node] = {}

        def visit(name: str) -> bool:
            source = self.by_name.get(name)
            if source is None or name in self.done or name in found:
                return True
            if self.half[name] is not None or not all(visit(other) for other in source.inputs):
                return False
            found[name] = source
            return True

        return list(found.values()) if all(visit(name) for name in node.inputs) else None

    def _ready(self, nodes: Iterable[Node]) -> Iterator[Node]:
        for node in nodes:
            is_due = node.name not in self.done and self.half[node.name] is None
            if is_due and all(name in self.done or name not in self.by_name for name in node.inputs):
                yield node

    def _run_next_shared(self) -> bool:
        node = next(self._ready(self.nodes), None)
        self.done |= {node.name: node} if node is not None else {}
        return node is not None


# Ring attention: what one attention of `use_ring_attention` is on a rank of n that share a sequence.
#
# MindSpore runs it as n attentions of the rank's own queries (frontend/parallel/pass/flash_sp.cc,
# `CreateReplaceRingAttentionGraphBySendRecv`): first with its own keys and values, then with those that come round the
# ring from the rank before, while the next ones travel. Their results are joined by the largest scores and the sums of
# exponents. Backward goes round once more, from the last keys and values that came (overlap_grad_ring_attention.cc,
# `StaticOverlapGradRingAttention`): it reads the joined result only, so a rank keeps what one attention over its own
# part would. Beside keys and values their gradients travel then.
#
# A rank counts as the last one, as it sees all that comes; the others wait for it. For the first of its rounds the mask
# leaves the lower half of the pairs. What a rank must not see is skipped (`SetFAInputs`: a band of no width).

# Kind of a collective: a rank sends to the next one and receives from the one before, one after the other.
RING = "SendReceive"
RING_ATTRIBUTE = "enable_ring_attention"
# Where batch, heads and sequence are in the strategy of queries, by layout number: BSH and BNSD, the two that it takes.
HEADS_AND_SEQUENCE = {3: (2, 1), 4: (1, 2)}


@dataclass(frozen=True)
class RingKernel:
    """A kernel beside attention, with the bytes that it reads and writes."""

    op: str
    moved_bytes: int


@dataclass(frozen=True)
class Round:
    """One of the attentions."""

    before: tuple[RingKernel, ...]  # kernels before the exchange: what came is taken apart, what goes is put together
    num_gradient_reductions: int  # exchanges that go on meanwhile
    flops: int  # of attention
    after: tuple[RingKernel, ...]  # kernels that join the result with that of the rounds before


def ring_axes(graph: Graph, node: Node) -> tuple[int, int]:
    """Ranks of the ring of an attention or its gradient, and the ranks from one to the next; 1 and 1 for no ring."""
    forward = node if node.op == "FlashAttentionScore" else graph.index.forward_nodes.get(node.origin, node)
    strategy = read_strategy(forward.attributes)
    if forward.attributes.get(RING_ATTRIBUTE) is not True or not strategy:
        return 1, 1
    heads, sequence = HEADS_AND_SEQUENCE[len(strategy[0])]
    return strategy[0][sequence], strategy[0][heads]


def ring_flops(flops: int, num_queries: int, num_ranks: int) -> int:
    """Of the last of n ranks, each with s queries: s s pairs in n - 1 rounds, s (s + 1) / 2 in the first one.

    `flops` are those of all pairs of its own queries and keys.
    """
    return flops * (num_ranks - 1) + flops * (num_queries + 1) // (2 * num_queries)


def list_rounds(
    is_forward: bool, num_ranks: int, flops: int, operands: Sequence[TensorType], statistic_bytes: int, is_fused: bool
) -> tuple[Round, ...]:
    """All rounds of attention, or of its gradient, in the order in which a rank runs them.

    Args:
        flops: of all of it on the last rank.
        operands: queries, keys, values on this rank.
        statistic_bytes: the largest scores, or the sums, as attention gives them.
        is_fused: jit_level O1 makes one kernel of element-wise operators that follow each other.
    """
    query, pair = operands[0].size_bytes, operands[1].size_bytes + operands[2].size_bytes
    take, give = RingKernel("Split", 2 * pair), RingKernel("Concat", 2 * pair)
    causal = flops // (2 * num_ranks - 1)  # half of the pairs of the others
    whole = (flops - causal) // max(num_ranks - 1, 1)
    joined = tuple(_join(query, statistic_bytes, is_fused))
    rounds = []
    for number in range(num_ranks):
        is_first, is_last = number == 0, number == num_ranks - 1
        if is_forward:
            before = (take,) * (not is_first) + (give,) * (not is_last)
            rounds.append(Round(before, int(not is_last), causal if is_first else whole, joined * (not is_first)))
        else:
            # Gradients of the round before are put together and leave; keys and values for the next one come.
            before = (give,) if is_first else (give, take)
            after = (RingKernel("Add", 3 * query), take, RingKernel("Add", 3 * pair)) if not is_first else ()
            rounds.append(Round(before, (not is_last) + (not is_first), causal if is_last else whole, after))
    return tuple(rounds)


def _join(query: int, statistic: int, is_fused: bool) -> Iterator[RingKernel]:
    """`UpdateAttentionOutput`: new largest scores and sums, the share of both results, their weighted sum.

    The statistics have eight equal columns; one of them is spread over the size of a head.
    """
    if is_fused:
        yield RingKernel("Mul", 8 * statistic)  # four read, four written
    else:
        for op, number, operands in (
            ("Maximum", 1, 2), ("Sub", 2, 2), ("Exp", 2, 1), ("Mul", 2, 2), ("Add", 1, 2), ("RealDiv", 2, 2),
        ):  # fmt: skip
            yield from (RingKernel(op, (operands + 1) * statistic) for _ in range(number))
    for _ in range(2):
        yield RingKernel("Split", 2 * statistic)
        yield RingKernel("Cast", 3 * statistic // 16)
        yield RingKernel("Transpose", statistic // 8)
        yield RingKernel("Tile", query)
    if is_fused:
        yield RingKernel("Add", 5 * query)
    else:
        yield from (RingKernel("Mul", 3 * query), RingKernel("Mul", 3 * query), RingKernel("Add", 3 * query))
