"""Traversal of a compiled step: the operators of each segment, and the tensors that they produce and read."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.saved_tensors import Label, Names
from mindswap.graph.analysis.work import Work, WorkMeter
from mindswap.graph.layer_paths import find_weight_gradients
from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import COMMUNICATION_OPS, VIEW_OPS, WRITING_OPS, is_kernel
from mindswap.graph.passes.fusion import Fusion, find_fusions, find_unwritten
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.passes.interleaved_halves import RING, list_rounds
from mindswap.simulator.layer_block import BlockOp, Consumers, ring_buffers, ring_ops
from mindswap.simulator.program import NO_OP, OpKind
from mindswap.simulator.segments import backward_sections, count_layers, find_early, forward_sections


class Place(NamedTuple):
    """An operator list: forward, backward, or the once-run part of a segment. Positions are indices in it."""

    section: int
    is_forward: bool
    is_once: bool = False


class UntimedOp(NamedTuple):
    """An operator without its duration, which is computed when the block of its segment is requested."""

    node: Node
    label: Label
    kind: OpKind
    wait_op: int  # this field and the next two are those of `BlockOp`
    wait_once: int
    is_weight: bool


# Indices of the fields of `Consumers`.
LAST_FORWARD, FIRST_BACKWARD, LAST_BACKWARD, FIRST_INPUT, FIRST_WEIGHT = map(
    Consumers._fields.index, ("last_forward", "first_backward", "last_backward", "first_input", "first_weight")
)
UNUSED = Consumers()[:-1]  # without `last_once`


@dataclass(eq=False, slots=True)
class StepTensor:
    """A tensor of the step, updated while the graph is read."""

    label: Label  # label of its producer
    type: TensorType  # shape, dtype and bytes
    place: Place  # operator list of its producer
    made_at: int  # position of its producer in that list
    is_again: bool  # produced by a recomputed operator
    uses: dict[int, list[int]] = field(default_factory=dict)  # segment -> fields of `Consumers` without the last
    last_once: int = NO_OP  # last use by an operator that runs once
    is_read: bool = False  # some operator reads it
    collective: int = NO_OP  # position of the collective on it that its readers wait for
    prefetch: list[int] = field(default_factory=list)  # `backward_prefetch` of each of its copies to the host
    has_keeper: bool = False  # backward saves it under a name that is not offloaded
    is_gradient: bool = False  # backward returns it
    is_one_way: bool = False  # offloaded and never prefetched
    is_early: bool = False  # live from the start of forward
    is_early_later: bool = False  # live from the start of forward in every micro-batch but the first

    @property
    def section(self) -> int:
        """Segment of its producer."""
        return self.place.section

    def uses_in(self, section: int) -> Consumers:
        """Return the positions at which a segment reads it."""
        last_once = self.last_once if section == self.section else NO_OP
        return Consumers._make((*self.uses.get(section, UNUSED), last_once))

    def note_use(self, place: Place, position: int, is_weight: bool) -> None:
        """Record a read by the operator at a position of an operator list."""
        self.is_read = True
        if place.is_once:
            self.last_once = position
            return
        uses = self.uses.get(place.section)
        if uses is None:
            uses = self.uses[place.section] = list(UNUSED)
        if place.is_forward:
            uses[LAST_FORWARD] = position
            return
        for first in (FIRST_BACKWARD, FIRST_WEIGHT if is_weight else FIRST_INPUT):  # the field of the last use follows
            if uses[first] == NO_OP:
                uses[first] = position
            uses[first + 1] = position


@dataclass(eq=False)
class StepReader:
    """Read forward, then backward, and assign every operator and every use to a segment of the step.

    Raises:
        SimulationError: if the step has no layers.
    """

    graph: Graph  # this field and the next seven are arguments of `BlockMaker`
    operator_ns: Callable[[Node, Work], int]
    label: Callable[[Node], Names]
    collectives: Mapping[str, tuple[Collective, ...]]
    collective_ns: Callable[[Collective], int]
    once: Set[str]
    is_fused: bool
    is_swapping: bool = False
    copied: Set[str] = frozenset()  # copies of weights that occupy memory
    static: Set[str] = frozenset()  # operators on constants, computed once in a step: `graph.constants`
    ops: dict[Place, list[BlockOp | UntimedOp]] = field(default_factory=dict)  # in execution order
    tensors: list[StepTensor] = field(default_factory=list)  # in order of production
    values: dict[str, tuple[StepTensor | None, ...]] = field(default_factory=dict)  # value -> its tensors, by output
    unwritten: set[str] = field(default_factory=set)  # values internal to a fused kernel
    early: Set[str] = frozenset()  # operators after the layers that run at the start of forward
    # Forward operators that read weights only, mostly casts. If they are marked for recompute in a step without swap,
    # they still run once: recompute.cc adds control dependencies only to copies that read a forward value, so the
    # backend merges the copy with the original. It does not in a step with swap
    # (docs/internals/notes.md#recomputed-weight-casts).
    of_weights: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.num_layers = count_layers(self.graph)  # compiled layers
        self.weight_nodes = find_weight_gradients(self.graph)

    def read(self) -> None:
        """Read all operators of the graph, forward first."""
        graph, saved = self.graph, self.graph.saved
        sections = forward_sections(graph, self.num_layers)
        unwritten = find_unwritten(graph) if self.is_fused else {}
        self._note_unwritten(unwritten, graph.forward, sections)
        self.early = find_early(graph, sections, self.num_layers)
        for node, section in zip(graph.forward, sections, strict=True):
            self._read(node, Place(section, True, node.name in self.once))
        for value in saved:
            self.values[value.backward_name] = self.values.get(value.forward_name, ())
        behind = {
            node.name for node, section in zip(graph.forward, sections, strict=True) if section == self.num_layers
        }
        sections = backward_sections(graph, self.num_layers, behind)
        self._note_unwritten(unwritten, graph.backward, sections)
        for node, section in zip(graph.backward, sections, strict=True):
            self._read(node, Place(section, False))
        self._note_copies()
        self._note_gradients()

    def ops_of(self, place: Place) -> tuple[BlockOp, ...]:
        """Return the operators of a list in execution order, with durations."""
        return tuple(self._timed(op, place) if isinstance(op, UntimedOp) else op for op in self.ops.get(place, ()))

    def _timed(self, op: UntimedOp, place: Place) -> BlockOp:
        node, work = op.node, self._work(op.node, place)
        pieces = tuple([self.operator_ns(node, replace(work, flops=flops)) for flops in work.piece_flops])
        duration_ns = sum(pieces) // len(pieces) if pieces else self.operator_ns(node, work)
        return BlockOp(
            label=op.label,
            kind=op.kind,
            duration_ns=duration_ns,
            wait_op=op.wait_op,
            op=node.op,
            wait_once=op.wait_once,
            is_weight=op.is_weight,
            piece_ns=pieces,
        )

    def _work(self, node: Node, place: Place) -> Work:
        work = self._meter.measure(node, place.is_forward)
        return self._fusions[not place.is_forward].fuse(node, work) if self.is_fused else work

    @functools.cached_property
    def _meter(self) -> WorkMeter:
        return WorkMeter(self.graph)

    @functools.cached_property
    def _fusions(self) -> tuple[Fusion, Fusion]:
        return find_fusions(self.graph)

    def _note_unwritten(self, unwritten: Mapping[str, str], nodes: Sequence[Node], sections: Sequence[int]) -> None:
        """Record values internal to a fused kernel.

        Fusion does not cross segments, and a collective reads its operand from memory.
        """
        place = {node.name: section for node, section in zip(nodes, sections, strict=True)}
        self.unwritten.update(
            name
            for name, reader in unwritten.items()
            if name in place and place[name] == place.get(reader) and name not in self.collectives
        )

    def _read(self, node: Node, place: Place) -> None:
        if node.name in self.static:
            return
        if node.op in VIEW_OPS or node.op == "MoveTo":
            self.values[node.name] = self.values.get(node.inputs[0], ())
        elif node.op == "TupleGetItem":
            members = self.values.get(node.inputs[0], ())
            index = self.graph.constants.get(node.inputs[1], 0)
            self.values[node.name] = members[index : index + 1]
        elif node.op == "MakeTuple":
            self.values[node.name] = tuple((self.values.get(name) or (None,))[0] for name in node.inputs)
        elif node.op == "TensorMove" and not self.values.get(node.inputs[0]) and node.name not in self.copied:
            return  # copy of a weight: readers use the weight itself
        elif node.is_duplicate and node.origin in self.of_weights and not self.is_swapping:
            self.values[node.name] = self.values[node.origin]
        elif is_kernel(node.op):
            self._run(node, place)

    def _run(self, node: Node, place: Place) -> None:
        """Append an operator with its communication; record its reads and outputs.

        Communication runs on the other stream: before the operator, which then waits for it, or after the operator,
        whose readers then wait for it (`StepTensor.collective`).
        """
        ops = self.ops.setdefault(place, [])
        label, read = self._label(node, place), list(self._tensors_of(node.inputs))
        is_weight = not place.is_forward and node.name in self.weight_nodes
        known = self.collectives.get(node.origin if node.is_duplicate else node.name, ())
        begin = self._made_at(node, place) if known else NO_OP
        waits = [
            _communicate(ops, label, c.kind, self.collective_ns(c), begin, is_weight) for c in known if c.is_before
        ]
        after = [(c.kind, self.collective_ns(c)) for c in known if not c.is_before and c.kind != RING]
        position = len(ops)
        wait_once = NO_OP
        if place.is_forward and not read and not is_gathering(node) and self.static.isdisjoint(node.inputs):
            self.of_weights.add(node.name)
        for tensor in read:
            tensor.note_use(place, position, is_weight)
            if tensor.collective != NO_OP and tensor.place == place:
                waits.append(tensor.collective)
            elif tensor.place.is_once and tensor.place == place._replace(is_once=True):
                wait_once = max(wait_once, tensor.collective)
        if node.op in COMMUNICATION_OPS:  # an explicit communication node
            # No collective: its result is the one of an earlier communication, so it takes no time.
            duration_ns = after.pop()[1] if after else 0
            _communicate(ops, label, node.op, duration_ns, NO_OP, is_weight)
        else:
            kind = OpKind.FORWARD if place.is_forward else OpKind.RECOMPUTE if node.is_duplicate else OpKind.BACKWARD
            own = UntimedOp(node, label, kind, max(waits, default=NO_OP), wait_once, is_weight)
            exchange = next((c for c in known if c.kind == RING), None)
            ops += [own] if exchange is None else self._run_ring(own, place, position, exchange, read)
        outputs = self._make_outputs(node, label, place, position, read)
        for name, duration_ns in after:
            _communicate(ops, label, name, duration_ns, NO_OP, is_weight)
        if ops[-1].kind is OpKind.COLLECTIVE:
            for tensor in outputs:
                tensor.collective = len(ops) - 1

    def _run_ring(
        self, own: UntimedOp, place: Place, begin: int, exchange: Collective, read: Sequence[StepTensor]
    ) -> list[BlockOp]:
        """Expand ring attention into its rounds, and record its buffers."""
        node, work = own.node, self._work(own.node, place)
        operands, is_forward = work.inputs[:3], node.op == "FlashAttentionScore"
        statistic = self.graph.index.forward_nodes.get(node.origin, node).outputs[0].size_bytes
        rounds = list_rounds(is_forward, exchange.num_ranks, work.flops, operands, statistic, self.is_fused)

        def time_ns(kernel: Work, op: str) -> int:
            return self.operator_ns(replace(node, op=op), replace(kernel, inputs=operands))

        ops = ring_ops(self._timed(own, place), rounds, begin, time_ns, self.collective_ns(exchange))
        size_bytes = ring_buffers(operands, is_forward)
        buffers = StepTensor(f"{own.label} ring", TensorType((), "", size_bytes), place, begin, False)
        self.tensors.append(buffers)
        for tensor in (buffers, *read):
            tensor.note_use(place, begin + len(ops) - 1, False)
        return ops

    def _make_outputs(
        self, node: Node, label: Label, place: Place, position: int, read: Sequence[StepTensor]
    ) -> list[StepTensor]:
        is_again = node.is_duplicate and not place.is_forward
        if node.name in self.unwritten:  # its readers read the inputs of the fused kernel
            self.values[node.name] = tuple(dict.fromkeys(read))
            return []
        is_early, is_early_later = node.name in self.early, _is_early_later(node, place, read)
        outputs = tuple(
            StepTensor(label, known, place, position, is_again, is_early=is_early, is_early_later=is_early_later)
            if known.size_bytes
            else None
            for known in (() if node.op in WRITING_OPS else node.outputs)
        )
        self.values[node.name] = outputs
        made = [tensor for tensor in outputs if tensor is not None]
        self.tensors += made
        return made

    def _tensors_of(self, names: Sequence[str]) -> Iterator[StepTensor]:
        return (tensor for name in names for tensor in self.values.get(name, ()) if tensor is not None)

    def _made_at(self, node: Node, place: Place) -> int:
        """Return the position of the last producer of the first operand, if that is in the same pass and segment."""
        known = list(self._tensors_of(node.inputs[:1]))
        is_here = all((tensor.section, tensor.place.is_forward) == place[:2] for tensor in known)
        return max(tensor.made_at for tensor in known) if known and is_here else NO_OP

    def _label(self, node: Node, place: Place) -> Label:
        if place.is_forward:
            return self.label(node)
        origin = self.graph.index.forward_nodes.get(node.origin)
        if origin is not None:
            return self.label(origin)
        return Names.of(f"{node.cell_path}.{node.op}".strip("."))

    def _note_copies(self) -> None:
        read_in_backward = {name for node in self.graph.backward for name in node.inputs}
        nodes = self.graph.index.forward_nodes
        for saved in self.graph.saved:
            if saved.backward_name not in read_in_backward:
                continue
            copy = nodes.get(saved.forward_name)
            for tensor in self._tensors_of((saved.forward_name,)):
                if copy is not None and copy.op == "MoveTo":
                    tensor.prefetch.append(int(copy.attributes["backward_prefetch"]))  # type: ignore[call-overload]
                else:
                    tensor.has_keeper = True
        for copy in self.graph.index.one_way_copies:
            for tensor in self._tensors_of(copy.inputs[:1]):
                if all(uses[FIRST_BACKWARD] == NO_OP for uses in tensor.uses.values()):
                    tensor.prefetch.append(int(copy.attributes["backward_prefetch"]))  # type: ignore[call-overload]
                    tensor.is_one_way = True

    def _note_gradients(self) -> None:
        """Mark weight gradients: backward returns the gradients of its free variables as one tuple."""
        last = self.graph.backward[-1] if self.graph.backward else None
        if last is not None and last.op == "MakeTuple":
            for tensor in self._tensors_of((last.name,)):
                tensor.is_gradient = not tensor.place.is_forward


def _is_early_later(node: Node, place: Place, read: Sequence[StepTensor]) -> bool:
    """Return whether the operator casts a weight that is all-gathered once in a step.

    From the second micro-batch on, the backend launches all of these casts at the start of forward
    (docs/internals/notes.md#casts-of-gathered-weights).
    """
    is_cast = node.op == "Cast" and place.is_forward and not place.is_once
    return is_cast and bool(read) and all(tensor.place.is_once for tensor in read)


def _communicate(
    ops: list[BlockOp | UntimedOp], label: Label, kind: str, duration_ns: int, begin: int, is_weight: bool
) -> int:
    """Append a collective that starts after the operator at `begin` (`NO_OP`: the last one); return its position."""
    wait_op = len(ops) - 1 if begin == NO_OP else begin
    ops.append(BlockOp(f"{label} {kind}", OpKind.COLLECTIVE, duration_ns, wait_op, kind, is_weight=is_weight))
    return len(ops) - 1
