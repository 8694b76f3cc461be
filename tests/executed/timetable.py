"""Allocation and release of each piece of device memory, by the rules of MindSpore's Ascend backend.

Worked out from the compiled graph alone. Sources, MindSpore 2.9:

- exec_order_builder.cc, EnqueueReadyNodes (order `bfs`, the default): what is not a kernel, and the only reader of a
  value, comes first, so a copy out of one of several outputs runs behind its maker. (offload_activation.cc,
  AddDependForMoveOut, ties other copies to the first reader; these are tied to none, and the frontend has them last.)
- acl_stream_assign.cc, AddDelayedSendRecvKernel: the compute stream waits for a copy out after the operator that stands
  three times `backward_prefetch` places (kDefaultDelayFactor, also in the machine code of the 2.9.0 wheel) behind it in
  the execution order, copies counted; where that is a copy, after the next operator; at the end after the last one.
  The memory is free then, if nobody reads it later.
- insert_pre_fetch_depend.cc, CalExecutionOrder: a copy in stands behind the operator that is `backward_prefetch + 1`
  places before the first that reads it, copies not counted, and never before the operator behind the copy out. Memory
  is taken when it starts. Where there are not so many operators, nothing holds it back but the copy out.

Copies take no time here. An operator is one that the device runs something for: views and tuples do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import VIEW_OPS
from tests.executed.order import find_repeats, find_shared, has_kernel, weight_reads

DELAY_FACTOR = 3


@dataclass(frozen=True)
class TimedOperator:
    """One operator where it runs."""

    node: Node
    is_forward: bool
    # pieces of memory of its outputs; None for an output without bytes or one that is a result of the step
    makes: tuple[str | None, ...]
    reads: tuple[str, ...]  # pieces of memory that it reads


@dataclass(frozen=True)
class Fetch:
    """A copy back to the device: `MoveTo` in backward, the value on the host that it brings, the memory it takes."""

    node: Node
    source: str
    buffer: str


@dataclass(frozen=True)
class StepTimetable:
    """Events at each operator."""

    operators: tuple[TimedOperator, ...]  # forward, then backward
    num_forward: int
    fetches: tuple[tuple[Fetch, ...], ...]  # before each operator
    offloads: tuple[tuple[Node, ...], ...]  # after each operator, the `MoveTo` whose copies leave
    releases: tuple[tuple[str, ...], ...]  # after each operator, pieces of memory that are given back
    # values that are another value under another name: repeats of masks, and what backward is handed
    aliases: Mapping[str, str]
    num_repeats: int = 0  # operators that run once here and several times on the device


def make_timetable(graph: Graph, results: Iterable[str] = ()) -> StepTimetable:
    """The timetable of a compiled step with lazy_inline on.

    `results` are values of backward that the step returns: gradients, which count with the weights.
    """
    return _Planner(graph, frozenset(results)).plan()


class _Planner:
    def __init__(self, graph: Graph, results: frozenset[str]):
        self.graph = graph
        self.weights = weight_reads(graph)
        self.shared = find_shared(graph)
        repeats = find_repeats(graph, self.shared)
        self.aliases = {**graph.index.forward_names, **repeats}
        self.nodes = graph.index.nodes
        self.num_repeats = sum(has_kernel(self.nodes[name], self.weights) for name in repeats)
        self.in_backward = {node.name for node in graph.backward}
        self.known: dict[str, tuple[str | None, ...]] = {}
        self.results = {buffer for name in results for buffer in self.buffers(name) if buffer}

    def plan(self) -> StepTimetable:
        forward = self._forward_order()
        backward = [node for node in self.graph.backward if self._runs(node)]
        kernels = [node for node in forward if node.op != "MoveTo"] + backward
        num_forward = len(kernels) - len(backward)
        place = {node.name: index for index, node in enumerate(kernels)}
        reads = [self._reads(node) for node in kernels]
        # What backward makes and nobody reads is a gradient of a weight, or nothing at all.
        results = self.results.difference(*reads)
        operators = []
        last_use: dict[str, int] = {}
        for index, (node, read) in enumerate(zip(kernels, reads, strict=True)):
            makes = tuple(None if buffer in results else buffer for buffer in self.buffers(node.name))
            operators.append(TimedOperator(node, index < num_forward, makes, read))
            last_use |= {used: index for used in (*makes, *read) if used is not None}

        outs = {node.name: position for position, node in enumerate(forward) if node.op == "MoveTo"}
        fetches = self._fetches(operators, forward, outs)
        fetched: dict[str, list[Node]] = {}
        for fetch, start in fetches:
            fetched.setdefault(kernels[start].name, []).append(fetch.node)
        # All operators and copies as the device gets them.
        order = [each for node in (*forward, *backward) for each in (*fetched.get(node.name, ()), node)]
        exec_place = {node.name: position for position, node in enumerate(order)}
        offloads: list[list[Node]] = [[] for _ in kernels]
        for name, position in outs.items():
            node = forward[position]
            before = next(other for other in reversed(forward[:position]) if other.op != "MoveTo")
            offloads[place[before.name]].append(node)
            wait = self._wait(exec_place[name] + DELAY_FACTOR * node.num_prefetch_ops, order, place)
            for copied in self.buffers(node.inputs[0]):
                if copied is not None:
                    last_use[copied] = max(last_use[copied], wait)
        releases: list[list[str]] = [[] for _ in kernels]
        for buffer, index in last_use.items():
            releases[index].append(buffer)
        starts: list[list[Fetch]] = [[] for _ in kernels]
        for fetch, index in fetches:
            starts[index].append(fetch)
        happens = (tuple(map(tuple, starts)), tuple(map(tuple, offloads)), tuple(map(tuple, releases)))
        return StepTimetable(tuple(operators), num_forward, *happens, self.aliases, self.num_repeats)

    def _runs(self, node: Node) -> bool:
        return has_kernel(node, self.weights) and node.name not in self.aliases

    def _forward_order(self) -> list[Node]:
        """Operators and copies out; what all layers share first, but for what makes the first of their inputs."""
        nodes = [node for node in self.graph.forward if self._runs(node) or node.op == "MoveTo"]
        of_layers = (i for i, node in enumerate(nodes) if node.layer_index is not None and not self._is_shared(node))
        layer = next(of_layers, 0)
        order = nodes[:layer] + sorted(nodes[layer:], key=lambda node: not self._is_shared(node))
        for copy in [node for node in order if node.op == "MoveTo"]:  # of one maker the last runs first: push_front
            source = self.nodes.get(copy.inputs[0])
            if source is not None and source.op == "TupleGetItem":
                order.remove(copy)
                order.insert(order.index(self.nodes[source.inputs[0]]) + 1, copy)
        return order

    def _is_shared(self, node: Node) -> bool:
        return node.name in self.shared and node.op != "MoveTo"

    def buffers(self, name: str) -> tuple[str | None, ...]:
        """The device memory behind a value, one piece for each output of its operator; none for weights and inputs."""
        if name not in self.known:
            self.known[name] = self._find_buffers(name)
        return self.known[name]

    def _find_buffers(self, name: str) -> tuple[str | None, ...]:
        if name in self.aliases:
            return self.buffers(self.aliases[name])
        node = self.nodes.get(name)
        if node is None or name in self.weights:
            return ()
        if node.op in VIEW_OPS:
            return self.buffers(node.inputs[0])
        if node.op == "TupleGetItem":
            index = self.graph.constants.get(node.inputs[1], 0)
            return self.buffers(node.inputs[0])[index : index + 1]
        if node.op == "MakeTuple":
            return tuple((self.buffers(entry) or (None,))[0] for entry in node.inputs)
        if node.op == "MoveTo":
            return (f"{name}#0",) if name in self.in_backward else ()
        if not has_kernel(node, self.weights):
            return ()
        return tuple(f"{name}#{index}" if known.size_bytes else None for index, known in enumerate(node.outputs))

    def _reads(self, node: Node) -> tuple[str, ...]:
        return tuple(dict.fromkeys(buffer for name in node.inputs for buffer in self.buffers(name) if buffer))

    def _fetches(
        self, operators: Sequence[TimedOperator], forward: Sequence[Node], outs: Mapping[str, int]
    ) -> list[tuple[Fetch, int]]:
        """Copies in, each with the operator before which it starts, in order of their start."""
        first_user: dict[str, int] = {}
        for index, operator in enumerate(operators):
            for buffer in operator.reads:
                first_user.setdefault(buffer, index)
        found = []
        for node in self.graph.backward:
            if node.op != "MoveTo" or f"{node.name}#0" not in first_user:
                continue
            out = self.aliases.get(node.inputs[0], node.inputs[0])
            # The first operator behind the copy out.
            earliest = sum(other.op != "MoveTo" for other in forward[: outs[out]])
            behind = first_user[f"{node.name}#0"] - 1 - node.num_prefetch_ops
            start = max(behind, earliest) + 1 if behind >= 0 else earliest
            found.append((Fetch(node, out, f"{node.name}#0"), start))
        return sorted(found, key=lambda entry: entry[1])

    @staticmethod
    def _wait(position: int, order: Sequence[Node], place: Mapping[str, int]) -> int:
        """The operator after which the compute stream waits for a copy out."""
        for node in order[min(position, len(order) - 1) :]:
            if node.name in place:
                return place[node.name]
        return len(place) - 1


# Device memory that is really taken, given back and poisoned.


# NaN in every floating point type, -1 or the largest number in every integer type.
POISON = 0xFF


class ExecutedMemory:
    """Pieces of memory by name; each is one array, which views of it share.

    What is given back is filled with poison and stays readable: whoever still reads it computes with poison, as with
    memory that has another owner by then.
    """

    def __init__(self, alignment_bytes: int = 1) -> None:
        """Every piece takes a multiple of `alignment_bytes`, as in MindSpore's pool."""
        self.alignment_bytes = alignment_bytes
        self.live_bytes = 0
        self._arrays: dict[str, np.ndarray] = {}
        self._live: set[str] = set()

    def take(self, name: str, array: np.ndarray) -> None:
        """Memory with this content; the array becomes the memory's own."""
        if name in self._live:
            raise ValueError(f"{name} is taken already")
        self._arrays[name] = array
        self._live.add(name)
        self.live_bytes += self._taken_bytes(array)

    def give_back(self, name: str, poison: bool = True) -> None:
        """Not taken any more. What was never taken is ignored: its owner has not come yet."""
        if name not in self._live:
            return
        self._live.remove(name)
        array = self._arrays[name]
        self.live_bytes -= self._taken_bytes(array)
        if poison and array.size:
            array.reshape(-1).view(np.uint8)[:] = POISON

    def is_live(self, name: str) -> bool:
        """Whether the memory has what its owner put there."""
        return name in self._live

    def read(self, name: str) -> np.ndarray | None:
        """The content, poison if it was given back; None if it was never taken."""
        return self._arrays.get(name)

    def _taken_bytes(self, array: np.ndarray) -> int:
        return -(-array.nbytes // self.alignment_bytes) * self.alignment_bytes
