"""Recomputed operators that communication hides: in backward, and of recomputed operators."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mindswap.graph.ops import COMMUNICATION_OPS, VALUE_PASSING_OPS, is_kernel
from mindswap.graph.ring_attention import RING
from mindswap.graph.storage import first_reader_positions
from mindswap.planner.lower_bound.captured_layer import CapturedLayer, closure, inputs_of


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


def find_overlapping_ops(
    layer: CapturedLayer, communication_ns: Sequence[int], has_halves: bool
) -> dict[int, frozenset[int]]:
    """Return `TensorGraph.overlapping_ops`.

    The first reader of a recomputed operator's output also reads other tensors; their producers may be recomputed after
    the operator, while it communicates. If it communicates before or during its computation, the operator and its
    producers count as well.
    """
    inputs, producers, first_users = inputs_of(layer.producers, layer.reads), layer.producers, layer.saved
    overlapping = {}
    for op in (op for op, time_ns in enumerate(communication_ns) if time_ns):
        users = {user for tensor, user in first_users.items() if producers[tensor] == op}
        read_with = [producers[tensor] for tensor, user in first_users.items() if user in users]
        readers = [reader for reader, read in inputs.items() if op in read]
        co_inputs = [other for reader in readers for other in inputs[reader]]
        own_producers = closure([op], inputs)
        collectives = layer.model.captured.collectives.get(layer.nodes[op].name, ())
        is_early = any(each.is_before or each.kind == RING for each in collectives)
        overlapping[op] = closure([*read_with, *co_inputs], inputs) - own_producers
        overlapping[op] |= own_producers if is_early else frozenset()
        if has_halves:
            overlapping[op] = frozenset(range(len(communication_ns)))
    return overlapping


def find_gaps(layer: CapturedLayer, has_halves: bool) -> Iterable[CommunicationGap]:
    """Yield the communication gaps of backward: from a collective to the first reader of its result.

    A recomputed operator precedes the first reader of its output, or of outputs computed from it.
    """
    model, graph, inputs = layer.model, layer.graph, inputs_of(layer.producers, layer.reads)
    first_reader = first_reader_positions(graph.backward, VALUE_PASSING_OPS, lambda node: is_kernel(node.op))
    for position, node in enumerate(graph.backward):
        name = node.origin if node.is_duplicate else node.name
        collectives = [
            c for c in model.captured.collectives.get(name, ()) if not c.is_before or node.op in COMMUNICATION_OPS
        ]
        if not (idle_ns := sum(map(model.collective_ns, collectives))):
            continue
        last = first_reader.get(node.name, position)
        read_in_gap = (tensor for tensor, user in layer.saved.items() if position < user <= last)
        first_read_ops = frozenset(layer.producers[tensor] for tensor in read_in_gap)
        read_before = frozenset(tensor for tensor, user in layer.saved.items() if user <= position)
        if ops := closure(first_read_ops, inputs):
            is_any = (ops, frozenset[int]()) if has_halves else (first_read_ops, read_before)
            yield CommunicationGap(idle_ns, tuple(ops), *is_any)
