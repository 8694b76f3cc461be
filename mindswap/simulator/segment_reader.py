"""Traversal of a compiled step: the operators of each segment, and the tensors that they produce and read."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.execution_order import find_joined, find_rotations
from mindswap.graph.analysis.saved_tensors import Label, Names
from mindswap.graph.analysis.work import Work, WorkMeter
from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import COMMUNICATION_OPS, VIEW_OPS, WRITING_OPS, is_kernel
from mindswap.graph.passes.fusion import Fusion, adds_zero, find_fusions, find_unwritten
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.passes.half_gradients import MERGED_MARK
from mindswap.graph.ring_attention import RING, list_rounds
from mindswap.simulator.execution_positions import PositionCounter, with_gradient_launch
from mindswap.simulator.layer_block import BlockOp
from mindswap.simulator.memory_parts import TensorRole
from mindswap.simulator.program import NO_OP, OpKind
from mindswap.simulator.ring_attention import ring_buffers, ring_ops
from mindswap.simulator.segments import backward_segments, count_layers, find_start_operators, forward_segments
from mindswap.simulator.step_tensors import FIRST_BACKWARD, OpList, StepTensor, UntimedOp
from mindswap.simulator.tensor_roles import RoleFinder

# Collectives that MindSpore inserts after a partial sum. They write into a tensor of their own.
SUMMING_KINDS = frozenset({"AllReduce", "ReduceScatter"})


@dataclass(eq=False)
class StepReader:
    """Read forward, then backward, and assign every operator and every use to a segment of the step.

    Raises:
        SimulationError: if the step has no layers.
    """

    graph: Graph  # this field and the next seven are arguments of `BlockBuilder`
    operator_ns: Callable[[Node, Work], int]
    label: Callable[[Node], Names]
    collectives: Mapping[str, tuple[Collective, ...]]
    collective_ns: Callable[[Collective], int]
    per_step_operators: Set[str]
    is_fused: bool
    is_merging_casts: bool = True  # recomputed casts of weights run once: see `of_weights`
    copied: Set[str] = frozenset()  # copies of weights that occupy memory
    static: Set[str] = frozenset()  # operators on constants, computed once in a step: `graph.constants`
    is_single: bool = False  # the step has one micro-batch
    has_gradient_launches: bool = False  # gradients of weights are reduced over ranks or accumulated
    has_rotation_products: bool = False  # a rotary embedding is one product in the backend: `ROTATION_NOTE`
    # position of the layer of an operator in a segment of several layers, by name; 0 for those that are not in it
    layer_offsets: Mapping[str, int] = field(default_factory=dict)
    ops: dict[OpList, list[BlockOp | UntimedOp]] = field(default_factory=dict)  # in execution order
    offsets: dict[OpList, list[int]] = field(default_factory=dict)  # of these operators, by `layer_offsets`
    tensors: list[StepTensor] = field(default_factory=list)  # in order of production
    values: dict[str, tuple[StepTensor | None, ...]] = field(default_factory=dict)  # value -> its tensors, by output
    unwritten: set[str] = field(default_factory=set)  # values internal to a fused kernel
    start_operators: Set[str] = frozenset()  # operators after the layers that run at the start of forward
    # Forward operators that read weights only, mostly casts. If they are marked for recompute in a step of one
    # micro-batch without swap, they still run once: recompute.cc adds control dependencies only to copies that read a
    # forward value, so the backend merges the copy with the original. It does not in a step with swap or several
    # micro-batches (docs/internals/notes.md#recomputed-weight-casts).
    of_weights: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.num_layers = count_layers(self.graph)  # compiled layers
        self.roles = RoleFinder(self.graph, self.num_layers)
        joined = find_joined(self.graph) if self.is_fused else frozenset[str]()
        joined |= find_rotations(self.graph) if self.has_rotation_products else frozenset()
        self.counter = PositionCounter(self.graph, joined, self.is_single)

    def read(self) -> None:
        """Read all operators of the graph, forward first."""
        graph, saved = self.graph, self.graph.saved
        segments = forward_segments(graph, self.num_layers)
        unwritten = find_unwritten(graph) if self.is_fused else {}
        self._note_unwritten(unwritten, graph.forward, segments)
        self.start_operators = find_start_operators(graph, segments, self.num_layers)
        self.counter.joined |= self.start_operators  # launched before the layers
        for node, segment in zip(graph.forward, segments, strict=True):
            self._read(node, OpList(segment, True, node.name in self.per_step_operators))
        for value in saved:
            self.values[value.backward_name] = self.values.get(value.forward_name, ())
        after_layers = {
            node.name for node, segment in zip(graph.forward, segments, strict=True) if segment == self.num_layers
        }
        segments = backward_segments(graph, self.num_layers, after_layers)
        self._note_unwritten(unwritten, graph.backward, segments)
        for node, segment in zip(graph.backward, segments, strict=True):
            self._read(node, OpList(segment, False))
        self.ops = {op_list: self.counter.with_remaining(op_list, ops) for op_list, ops in self.ops.items()}
        self._note_copies()
        self._note_gradients()

    def ops_of(self, op_list: OpList) -> tuple[BlockOp, ...]:
        """Return the operators of a list in execution order, with durations."""
        ops = [self._timed(op, op_list) if isinstance(op, UntimedOp) else op for op in self.ops.get(op_list, ())]
        offsets = self.offsets.get(op_list, [])
        return tuple(
            replace(op, layer_offset=offset) if offset else op for op, offset in zip(ops, offsets, strict=True)
        )

    def _timed(self, op: UntimedOp, op_list: OpList) -> BlockOp:
        node, work = op.node, self._work(op.node, op_list)
        pieces = tuple([self.operator_ns(node, replace(work, flops=flops)) for flops in work.piece_flops])
        duration_ns = sum(pieces) // len(pieces) if pieces else self.operator_ns(node, work)
        return BlockOp(
            label=op.label,
            kind=op.kind,
            duration_ns=duration_ns,
            wait_op=op.wait_op,
            op=node.op,
            wait_per_step=op.wait_per_step,
            is_weight=op.is_weight,
            piece_ns=pieces,
            positions=op.positions,
        )

    def _work(self, node: Node, op_list: OpList) -> Work:
        work = self._meter.measure(node, op_list.is_forward)
        return self._fusions[not op_list.is_forward].fuse(node, work) if self.is_fused else work

    @functools.cached_property
    def _meter(self) -> WorkMeter:
        return WorkMeter(self.graph)

    @functools.cached_property
    def _fusions(self) -> tuple[Fusion, Fusion]:
        return find_fusions(self.graph)

    def _note_unwritten(self, unwritten: Mapping[str, str], nodes: Sequence[Node], segments: Sequence[int]) -> None:
        """Record values internal to a fused kernel.

        Fusion does not cross segments, and a collective reads its operand from memory.
        """
        op_list = {node.name: segment for node, segment in zip(nodes, segments, strict=True)}
        self.unwritten.update(
            name
            for name, reader in unwritten.items()
            if name in op_list and op_list[name] == op_list.get(reader) and name not in self.collectives
        )

    def _read(self, node: Node, op_list: OpList) -> None:
        if node.name in self.static:
            return
        self.roles.note_source(node)
        if node.op in VIEW_OPS or node.op == "MoveTo":
            self.values[node.name] = self.values.get(node.inputs[0], ())
            self.counter.note_view(node, op_list)
        elif self.is_fused and adds_zero(node) and node.name not in self.collectives:
            self.values[node.name] = self.values.get(node.inputs[0], ())  # the backend removes it
        elif node.op == "TupleGetItem":
            members = self.values.get(node.inputs[0], ())
            index = self.graph.constants.get(node.inputs[1], 0)
            self.values[node.name] = members[index : index + 1]
        elif node.op == "MakeTuple":
            self.values[node.name] = tuple((self.values.get(name) or (None,))[0] for name in node.inputs)
        elif node.op == "TensorMove" and not self.values.get(node.inputs[0]) and node.name not in self.copied:
            return  # copy of a weight: readers use the weight itself
        elif node.is_duplicate and node.origin in self.of_weights and self.is_merging_casts:
            self.values[node.name] = self.values[node.origin]
        elif is_kernel(node.op):
            self._run(node, op_list)

    def _run(self, node: Node, op_list: OpList) -> None:
        """Append an operator with its communication; record its reads and outputs.

        Communication runs on the other stream: before the operator, which then waits for it, or after the operator,
        whose readers then wait for it (`StepTensor.collective`).
        """
        ops = self.ops.setdefault(op_list, [])
        label, read = self._label(node, op_list), list(self._tensors_of(node.inputs))
        is_weight = not op_list.is_forward and node.name in self.roles.weight_gradients
        collectives = self.collectives.get(node.origin if node.is_duplicate else node.name, ())
        begin = self._producer_position(node, op_list) if collectives else NO_OP
        waits = [
            _communicate(ops, label, c.kind, self.collective_ns(c), begin, is_weight)
            for c in collectives
            if c.is_before
        ]
        after = [c for c in collectives if not c.is_before and c.kind != RING]
        position = len(ops)
        positions = self.counter.take(node, op_list)
        wait_per_step = NO_OP
        if op_list.is_forward and not read and not is_gathering(node) and self.static.isdisjoint(node.inputs):
            self.of_weights.add(node.name)
        for tensor in read:
            tensor.note_use(op_list, position, is_weight)
            if tensor.collective != NO_OP and tensor.op_list == op_list:
                waits.append(tensor.collective)
            elif tensor.op_list.is_per_step and tensor.op_list == op_list._replace(is_per_step=True):
                wait_per_step = max(wait_per_step, tensor.collective)
        if node.op in COMMUNICATION_OPS:  # an explicit communication node
            # No collective: its result is the one of an earlier communication, so it takes no time.
            duration_ns = self.collective_ns(after.pop()) if after else 0
            _communicate(ops, label, node.op, duration_ns, NO_OP, is_weight, positions)
        else:
            kind = OpKind.FORWARD if op_list.is_forward else OpKind.RECOMPUTE if node.is_duplicate else OpKind.BACKWARD
            untimed = UntimedOp(node, label, kind, max(waits, default=NO_OP), wait_per_step, is_weight, positions)
            exchange = next((c for c in collectives if c.kind == RING), None)
            ops += [untimed] if exchange is None else self._run_ring(untimed, op_list, position, exchange, read)
        role = self._role(node, op_list, read, is_communication=bool(after))
        outputs = self._make_outputs(node, label, op_list, position, read, role)
        for collective in after:
            _communicate(ops, label, collective.kind, self.collective_ns(collective), NO_OP, is_weight)
            if outputs and collective.kind in SUMMING_KINDS:
                self._add_partial_sum(outputs[0], collective, position, len(ops) - 1, is_weight)
        if ops[-1].kind is OpKind.COLLECTIVE:
            for tensor in outputs:
                tensor.collective = len(ops) - 1
        offsets = self.offsets.setdefault(op_list, [])
        offset = self.layer_offsets.get(node.name, self.layer_offsets.get(node.origin, 0))
        offsets += [offset] * (len(ops) - len(offsets))

    def _add_partial_sum(
        self, result: StepTensor, collective: Collective, position: int, sent_at: int, is_weight: bool
    ) -> None:
        """Record the partial sum that a collective reads; it is live until an operator waits for the collective.

        `result` begins with the operator, so that of a partial sum of the same size only the copy is added, from the
        collective on; a larger one, of a ReduceScatter, is there with its operator.
        """
        begin = sent_at if collective.size_bytes <= result.type.size_bytes else position
        operand = TensorType((), "", collective.size_bytes)
        label = f"{result.label} partial sum"
        partial = StepTensor(label, operand, result.op_list, begin, result.is_recomputed, result.role)
        self.tensors.append(partial)
        partial.note_use(result.op_list, sent_at, is_weight)

    def _run_ring(
        self, attention: UntimedOp, op_list: OpList, begin: int, exchange: Collective, read: Sequence[StepTensor]
    ) -> list[BlockOp]:
        """Expand ring attention into its rounds, and record its buffers."""
        node, work = attention.node, self._work(attention.node, op_list)
        operands, is_forward = work.inputs[:3], node.op == "FlashAttentionScore"
        statistic = self.graph.index.forward_nodes.get(node.origin, node).outputs[0].size_bytes
        rounds = list_rounds(is_forward, exchange.num_ranks, work.flops, operands, statistic, self.is_fused)

        def time_ns(kernel: Work, op: str) -> int:
            return self.operator_ns(replace(node, op=op), replace(kernel, inputs=operands))

        ops = ring_ops(self._timed(attention, op_list), rounds, begin, time_ns, self.collective_ns(exchange))
        size_bytes = ring_buffers(operands, is_forward)
        role = self._role(node, op_list, read, is_communication=True)
        buffers = StepTensor(f"{attention.label} ring", TensorType((), "", size_bytes), op_list, begin, False, role)
        self.tensors.append(buffers)
        for tensor in (buffers, *read):
            tensor.note_use(op_list, begin + len(ops) - 1, False)
        return ops

    def _role(self, node: Node, op_list: OpList, read: Sequence[StepTensor], is_communication: bool) -> TensorRole:
        roles = (tensor.role for tensor in read)
        return self.roles.role(node, op_list.segment, op_list.is_forward, roles, is_communication)

    def _make_outputs(
        self,
        node: Node,
        label: Label,
        op_list: OpList,
        position: int,
        read: Sequence[StepTensor],
        role: TensorRole,
    ) -> list[StepTensor]:
        is_recomputed = node.is_duplicate and not op_list.is_forward
        if node.name in self.unwritten:  # its readers read the inputs of the fused kernel
            self.values[node.name] = tuple(dict.fromkeys(read))
            return []
        is_live_from_start, is_live_from_later_starts = (
            node.name in self.start_operators,
            _is_early_later(node, op_list, read),
        )
        outputs = tuple(
            StepTensor(
                label,
                tensor_type,
                op_list,
                position,
                is_recomputed,
                role,
                is_live_from_start=is_live_from_start,
                is_live_from_later_starts=is_live_from_later_starts,
            )
            if tensor_type.size_bytes
            else None
            for tensor_type in (() if node.op in WRITING_OPS or MERGED_MARK in node.attributes else node.outputs)
        )
        self.values[node.name] = outputs
        tensors = [tensor for tensor in outputs if tensor is not None]
        self.tensors += tensors
        return tensors

    def _tensors_of(self, names: Sequence[str]) -> Iterator[StepTensor]:
        return (tensor for name in names for tensor in self.values.get(name, ()) if tensor is not None)

    def _producer_position(self, node: Node, op_list: OpList) -> int:
        """Return the position of the last producer of the first operand, if that is in the same pass and segment."""
        operands = list(self._tensors_of(node.inputs[:1]))
        is_in_pass = all((tensor.segment, tensor.op_list.is_forward) == op_list[:2] for tensor in operands)
        return max(tensor.producer_op_index for tensor in operands) if operands and is_in_pass else NO_OP

    def _label(self, node: Node, op_list: OpList) -> Label:
        if op_list.is_forward:
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
                    tensor.has_resident_holder = True
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
                tensor.is_gradient = not tensor.op_list.is_forward
                if tensor.is_gradient and self.has_gradient_launches:
                    ops = self.ops[tensor.op_list]
                    self.ops[tensor.op_list] = with_gradient_launch(ops, tensor.producer_op_index)


def _is_early_later(node: Node, op_list: OpList, read: Sequence[StepTensor]) -> bool:
    """Return whether the operator casts a weight that is all-gathered once in a step.

    From the second micro-batch on, the backend launches all of these casts at the start of forward
    (docs/internals/notes.md#casts-of-gathered-weights).
    """
    is_cast = node.op == "Cast" and op_list.is_forward and not op_list.is_per_step
    return is_cast and bool(read) and all(tensor.op_list.is_per_step for tensor in read)


def _communicate(
    ops: list[BlockOp | UntimedOp],
    label: Label,
    kind: str,
    duration_ns: int,
    begin: int,
    is_weight: bool,
    positions: int = 1,
) -> int:
    """Append a collective that starts after the operator at `begin` (`NO_OP`: the last one); return its position."""
    wait_op = len(ops) - 1 if begin == NO_OP else begin
    collective = BlockOp(f"{label} {kind}", OpKind.COLLECTIVE, duration_ns, wait_op, kind, is_weight=is_weight)
    ops.append(replace(collective, positions=positions))
    return len(ops) - 1
