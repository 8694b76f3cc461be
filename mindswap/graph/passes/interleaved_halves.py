"""Execution order of layers that compute in two halves, so that communication of one overlaps computation of the other.

MindSpore orders each pair of communications of the two halves (micro_interleaved_order_control.cc): one half computes
until it communicates, then the other half does, and so on alternately. Recomputed operators are excluded there
(`kAttrDuplicated`) and here. This pass orders each layer separately, whereas MindSpore also orders across layers: here
a half that ends a layer with communication waits for it at the boundary.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import groupby

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import CONCAT_GRADIENT_OPS

# Halves of a layer that calls the same cells for each of them (`fine_grain_interleave`).
#
# MindSpore gives an operator one id for all its calls. The gradients of both halves therefore carry the id of both
# forward operators, and only their inputs show to which half they belong.

# Cell that slices a half from a tensor: llama_interleave.py, `interleave1_inputs`, `interleave2_inputs`.
CUTTING_CELL = re.compile(r"(?:^|\.)interleave\d*_inputs\.(\d+)$")
JOINING_OP = "Concat"


class Branches:
    """Half that each value belongs to; None for values of both halves.

    Args:
        forward: operators in execution order.
        aliases: name in backward of each saved value -> its name in forward.
        constants: integer constants by name, which select members of tuples.
    """

    def __init__(self, forward: Iterable[Node], aliases: Mapping[str, str], constants: Mapping[str, int]):
        self._constants = constants
        self._of: dict[str, int | None] = {}
        self._join_gradients: set[str] = set()  # gradients of a join; each of their members belongs to one half
        for node in forward:
            match = _slice_of_half(node)
            self._of[node.name] = int(match[1]) if match else self._of_inputs(node)
        for backward_name, forward_name in aliases.items():
            self._of[backward_name] = self._of.get(forward_name)

    def __getitem__(self, name: str) -> int | None:
        return self._of.get(name)

    def add(self, node: Node, origins: Iterable[Node]) -> None:
        """Add an operator of backward after its inputs; it may be the gradient of one of `origins`."""
        half = self._of_inputs(node)
        if node.op in CONCAT_GRADIENT_OPS and any(origin.op == JOINING_OP for origin in origins):
            self._join_gradients.add(node.name)
        elif half is None and node.op == "TupleGetItem" and node.inputs[0] in self._join_gradients:
            half = self._constants.get(node.inputs[1], 0)
        self._of[node.name] = half

    def _of_inputs(self, node: Node) -> int | None:
        """Return the half of the inputs; None if they belong to both."""
        halves = {branch for name in node.inputs if (branch := self._of.get(name)) is not None}
        return halves.pop() if len(halves) == 1 else None


def _slice_of_half(node: Node) -> re.Match[str] | None:
    """Match the cell of an operator that slices a half from a tensor; group 1 is the index of the half."""
    return CUTTING_CELL.search(node.cell_path) if node.op == "StridedSlice" else None


def has_halves(graph: Graph) -> bool:
    """Return whether layers of the graph compute in two halves."""
    return any(map(_slice_of_half, graph.forward))


def order_halves(graph: Graph, communicating_first: Set[str], communicating_after: Set[str]) -> Graph:
    """Return the graph with the halves of each layer in alternating order; unchanged if no layer has halves.

    Args:
        graph: the step of one rank.
        communicating_first: operators that wait for communication before they compute.
        communicating_after: operators whose output is communicated.
    """
    if not has_halves(graph):
        return graph
    branches = Branches(graph.forward, graph.index.forward_names, graph.constants)
    origins = graph.index.forward_nodes
    for node in graph.backward:
        branches.add(node, [origins[node.origin]] if node.origin in origins else [])
    passes = []
    for nodes in (graph.forward, graph.backward):
        ordered: list[Node] = []
        for _, run in groupby(nodes, key=lambda node: node.layer_index):
            layer_nodes = list(run)
            stops = set(_stops(layer_nodes, branches, communicating_first, communicating_after))
            ordered += _HalfScheduler(layer_nodes, branches, stops).order() if stops else layer_nodes
        passes.append(tuple(ordered))
    return replace(graph, forward=passes[0], backward=passes[1])


def _stops(nodes: Sequence[Node], branches: Branches, first: Set[str], after: Set[str]) -> Iterator[str]:
    """Yield the operators of a half that wait for communication: the first reader of each communicated value."""
    sent = {node.name for node in nodes if (node.origin if node.is_duplicate else node.name) in after}
    for node in nodes:
        if node.is_duplicate or branches[node.name] is None:
            continue
        waits = [name for name in node.inputs if name in sent]
        sent.difference_update(waits)
        if waits or node.name in first:
            yield node.name


class _HalfScheduler:
    """Orders the operators of one layer in one pass.

    Operators that belong to no half run as late as possible before a half needs them (casts of weights), and as early
    as possible if they join halves (sums of gradients).
    """

    def __init__(self, nodes: Sequence[Node], branches: Branches, stops: Set[str]):
        self.nodes = nodes
        self.by_name = {node.name: node for node in nodes}
        self.stops = stops
        self.half = {node.name: None if node.is_duplicate else branches[node.name] for node in nodes}
        self.queues = [[node for node in nodes if self.half[node.name] == half] for half in (0, 1)]
        self.joins = list(self._find_joins())
        self.done: dict[str, Node] = {}

    def _find_joins(self) -> Iterator[Node]:
        """Yield the operators of no half that depend on a half, in order: a sum reads a tuple of the halves' values."""
        joined: set[str] = set()
        for node in self.nodes:
            is_of_halves = any(self.half.get(name) is not None or name in joined for name in node.inputs)
            if self.half[node.name] is None and is_of_halves:
                joined.add(node.name)
                yield node

    def order(self) -> list[Node]:
        """Return all operators in alternating order; in their original order if dependencies do not allow it."""
        may_pass = [False, False]
        while len(self.done) < len(self.nodes):
            before = len(self.done)
            is_waiting = [self._run(half, may_pass) for half in (0, 1)]
            if len(self.done) == before and not any(is_waiting) and not self._run_next_shared():
                return list(self.nodes)
        return list(self.done.values())

    def _run(self, half: int, may_pass: list[bool]) -> bool:
        """Advance one half as far as possible; return whether it stopped for communication."""
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
            for node in self._ready(self.joins):
                self.done[node.name] = node
        return False

    def _needed(self, node: Node) -> list[Node] | None:
        """Return the operators of no half that must run before a node; None if it depends on the other half."""
        needed: dict[str, Node] = {}

        def visit(name: str) -> bool:
            source = self.by_name.get(name)
            if source is None or name in self.done or name in needed:
                return True
            if self.half[name] is not None or not all(visit(input_name) for input_name in source.inputs):
                return False
            needed[name] = source
            return True

        return list(needed.values()) if all(visit(name) for name in node.inputs) else None

    def _ready(self, nodes: Iterable[Node]) -> Iterator[Node]:
        for node in nodes:
            is_due = node.name not in self.done and self.half[node.name] is None
            if is_due and all(name in self.done or name not in self.by_name for name in node.inputs):
                yield node

    def _run_next_shared(self) -> bool:
        node = next(self._ready(self.nodes), None)
        self.done |= {node.name: node} if node is not None else {}
        return node is not None
