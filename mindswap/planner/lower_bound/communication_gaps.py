"""Recomputed operators that communication hides: in backward, and of recomputed operators."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from mindswap.graph.model import Node
from mindswap.graph.ops import COMMUNICATION_OPS, VALUE_PASSING_OPS, is_kernel
from mindswap.graph.ring_attention import RING
from mindswap.graph.storage import first_reader_positions
from mindswap.planner.lower_bound.tensor_reads import closure, inputs_of
from mindswap.simulator.step_model import StepModel


@dataclass(frozen=True)
class CommunicationGap:
    """Idle time of the compute stream during communication, and the recomputed operators that may fill it."""

    idle_ns: int  # upper limit of the idle time
    ops: tuple[int, ...]  # operators that may be recomputed in the gap
    # of these, the operators whose outputs backward itself first reads in the gap; others run there for one of them
    first_read_ops: frozenset[int]
    read_before: frozenset[int] = frozenset()  # tensors that backward reads before the gap

    def only_for(self, producers: Sequence[int], reads: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
        """Return, by operator, the operators that are recomputed in the gap only if it is, itself included."""
        readers: dict[int, set[int]] = {op: set() for op in self.ops}
        for op, tensor in reads:
            if op in readers and producers[tensor] in readers:
                readers[producers[tensor]].add(op)
        free = {op: op_readers for op, op_readers in readers.items() if op_readers and op not in self.first_read_ops}
        groups: dict[int, set[int]] = {}
        for op in self.ops:
            group: set[int] = set()
            more = {op}
            while more:
                group |= more
                more = {reader for reader, op_readers in free.items() if reader not in group and op_readers <= group}
            groups[op] = group
        return groups


def is_early(model: StepModel, node: Node) -> bool:
    """Return whether the operator communicates before or during its computation."""
    return any(c.is_before or c.kind == RING for c in model.captured.collectives.get(node.name, ()))


def find_overlapping_ops(
    communication_ns: Sequence[int],
    first_users: Mapping[int, int],
    producers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    early_ops: Set[int],
    has_halves: bool,
) -> dict[int, frozenset[int]]:
    """Return `TensorGraph.overlapping_ops`.

    The first reader of a recomputed operator's output also reads other tensors; their producers may be recomputed after
    the operator, while it communicates. If it communicates before or during its computation (`early_ops`), the
    operator and its producers count as well.
    """
    inputs = inputs_of(producers, reads)
    overlapping = {}
    for op in (op for op, time_ns in enumerate(communication_ns) if time_ns):
        users = {first_users[tensor] for tensor in first_users if producers[tensor] == op}
        read_with = [producers[tensor] for tensor, user in first_users.items() if user in users]
        readers = [reader for reader, read in inputs.items() if op in read]
        co_inputs = [other for reader in readers for other in inputs[reader]]
        producers_of_others = closure([*read_with, *co_inputs], inputs)
        own_producers = closure([op], inputs)
        overlapping[op] = producers_of_others - own_producers | (own_producers if op in early_ops else frozenset())
        if has_halves:
            overlapping[op] = frozenset(range(len(communication_ns)))
    return overlapping


def find_gaps(
    model: StepModel,
    first_users: Mapping[int, int],
    producers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    has_halves: bool,
) -> Iterable[CommunicationGap]:
    """Yield the communication gaps of backward: from a collective to the first reader of its result.

    A recomputed operator precedes the first reader of its output, or of outputs computed from it.
    """
    graph, inputs = model.captured.graph, inputs_of(producers, reads)
    first_reader = first_reader_positions(graph.backward, VALUE_PASSING_OPS, lambda node: is_kernel(node.op))
    for position, node in enumerate(graph.backward):
        name = node.origin if node.is_duplicate else node.name
        collectives = [
            c for c in model.captured.collectives.get(name, ()) if not c.is_before or node.op in COMMUNICATION_OPS
        ]
        if not (idle_ns := sum(map(model.collective_ns, collectives))):
            continue
        last = first_reader.get(node.name, position)
        first_read_ops = frozenset(producers[tensor] for tensor, user in first_users.items() if position < user <= last)
        ops = closure(first_read_ops, inputs)
        read_before = frozenset(tensor for tensor, user in first_users.items() if user <= position)
        if ops:
            yield (
                CommunicationGap(idle_ns, tuple(ops), ops, frozenset())
                if has_halves
                else CommunicationGap(idle_ns, tuple(ops), first_read_ops, read_before)
            )
