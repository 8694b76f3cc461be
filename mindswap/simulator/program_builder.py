"""Assembly of blocks into the program of a full step on all pipeline stages.

Positions count operators in the order in which a stage issues them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from mindswap.simulator.layer_block import Block
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.micro_batch_group import MicroBatchGroup
from mindswap.simulator.placing import StageSpan, TransferCosts, place_memory
from mindswap.simulator.program import NO_OP, MemoryKind, Ops, Program, join
from mindswap.simulator.schedules.rounds import Pass, PassWork
from mindswap.simulator.stage_pass import ModelSegments, StagePass, shift, split_backward_pass
from mindswap.simulator.stage_tensors import ChunkTensors, per_step_tensors
from mindswap.simulator.tensor_lifetimes import StageTensors


def build_program(
    blocks: Sequence[Block],
    costs: TransferCosts,
    layout: StageLayout | None = None,
    only_stage: int | None = None,
    first_layers: Sequence[int] = (),
) -> Program:
    """Build the program of one step.

    Args:
        blocks: block of each segment: before the layers, every layer of the model, after the layers; with split
            sequences, those of one sequence piece.
        costs: durations of transfers.
        layout: stages and schedule; the default is one stage with one micro-batch.
        only_stage: build this stage only, with boundary tensors from other stages available at once.
        first_layers: first layer of each segment of layers; the default is one layer in each.
    """
    layout = layout or StageLayout(((tuple(range(len(blocks))),),))
    stages = range(layout.num_stages) if only_stage is None else (only_stage,)
    return _Builder(blocks, costs, layout, first_layers).build(stages)


class _SendKey(NamedTuple):
    """Identity of a SEND."""

    segment: int  # the segment that receives
    micro_batch: int
    sequence: int  # sequence piece
    is_forward: bool


class _MicroStepKey(NamedTuple):
    """Identity of the passes of a micro-step through a virtual chunk."""

    chunk: int
    micro_batch: int
    sequence: int


class _GroupKey(NamedTuple):
    """Identity of a group of micro-batches of a chunk."""

    has_per_step_operators: bool
    is_split: bool  # backward is split


class _SentTensor(NamedTuple):
    """A boundary tensor that is sent to another stage."""

    send_op: int
    size_bytes: int
    is_forward: bool


@dataclass(eq=False)
class _Chunk:
    """A virtual chunk: its passes, and its groups of micro-batches."""

    segments: tuple[int, ...]
    first_forward: StagePass
    later_forward: StagePass
    backward: StagePass
    groups: dict[_GroupKey, MicroBatchGroup] = field(default_factory=dict)
    first_forward_begin: int = 0  # absolute position of its first forward

    def group_of(self, entry: Pass, is_split: bool) -> MicroBatchGroup:
        """Return the group of a micro-batch, created when its first pass is scheduled."""
        forward = self.later_forward if entry.micro_batch or entry.sequence else self.first_forward
        key = _GroupKey(forward is self.first_forward, is_split)
        if key not in self.groups:
            split = split_backward_pass(self.backward) if is_split else None
            self.groups[key] = MicroBatchGroup(forward, self.backward, split)
        return self.groups[key]


@dataclass(eq=False)
class _OpsBuilder:
    """Columns of `Ops`, one array for each pass."""

    duration_ns: list[np.ndarray] = field(default_factory=list)
    kind: list[np.ndarray] = field(default_factory=list)
    wait_op: list[np.ndarray] = field(default_factory=list)
    layer: list[np.ndarray] = field(default_factory=list)
    micro_batch: list[np.ndarray] = field(default_factory=list)
    label: list[np.ndarray] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)

    def append(self, stage_pass: StagePass, wait_op: np.ndarray, sequence: int, micro_step: int) -> None:
        """Append the operators of a pass; `wait_op` has absolute positions."""
        ops = stage_pass.ops
        self.duration_ns.append(ops.piece_ns[:, min(sequence, ops.piece_ns.shape[1] - 1)])
        self.kind.append(ops.kind)
        self.wait_op.append(wait_op)
        self.layer.append(ops.layer)
        self.micro_batch.append(np.full(stage_pass.num_ops, micro_step))
        self.label.append(ops.label)
        self.positions.append(ops.positions)

    def join(self) -> Ops:
        return Ops(
            duration_ns=np.concatenate(self.duration_ns),
            kind=np.concatenate(self.kind).astype(np.int8),
            wait_op=np.concatenate(self.wait_op),
            layer=np.concatenate(self.layer).astype(np.int32),
            micro_batch=np.concatenate(self.micro_batch).astype(np.int32),
            label=np.concatenate(self.label).astype(np.int32),
            positions=np.concatenate(self.positions).astype(np.int32),
        )


class _Builder:
    """Builder of a program, stage by stage: first the operators of all micro-steps, then the tensors.

    The passes of a chunk are assembled once and repeated for each micro-step.
    """

    def __init__(
        self, blocks: Sequence[Block], costs: TransferCosts, layout: StageLayout, first_layers: Sequence[int] = ()
    ):
        self.costs = costs
        self.layout = layout
        self.model = ModelSegments(blocks, self._send_ns, first_layers)
        self.stage_of = dict(_stage_of_segment(layout))
        self.position = 0  # of the next operator
        self.last_compute = 0  # last compute operator of the current stage
        self.ops = _OpsBuilder()
        self.sends: dict[_SendKey, int] = {}  # position of each SEND
        self.receives: dict[int, _SendKey] = {}  # position of a RECEIVE -> the SEND that it waits for
        self.closing_parts: dict[int, Mapping[MemoryPart, int]] = {}  # by stage, as `Program.closing_parts`
        self.sent: list[_SentTensor] = []  # tensors that the current stage sends to another one

    def build(self, stages: Sequence[int]) -> Program:
        starts, tables = [0], []
        for stage in stages:
            tables.append(self._build_stage(stage))
            starts.append(self.position)
        ops = self.ops.join()
        for position, key in self.receives.items():
            ops.wait_op[position] = self.sends.get(key, NO_OP)
        num_copies, placed = 0, []
        for stage, tensors in enumerate(tables):
            span = StageSpan(stage, starts[stage], starts[stage + 1])
            placed.append(place_memory(tensors, ops, span, self.costs, num_copies))
            num_copies += len(placed[-1].copies)
        return Program(
            stage_starts=np.array(starts, np.int64),
            ops=ops,
            copies=join([memory.copies for memory in placed]),
            intervals=join([memory.intervals for memory in placed]),
            labels=tuple(self.model.labels),
            contended_permille=self.costs.contended_permille,
            num_sequences=self.layout.num_sequences,
            closing_parts=tuple(self.closing_parts.get(stage, {}) for stage in stages),
        )

    def _build_stage(self, stage: int) -> StageTensors:
        """Append the operators of a stage; return its tensors."""
        self.sent = []
        passes = self.layout.passes(stage)
        has_later = any(entry.micro_batch or entry.sequence for entry in passes)
        chunks = [self._chunk(segments, has_later) for segments in self.layout.chunks[stage]]
        split = {_key(entry) for entry in passes if entry.work is PassWork.WEIGHT_GRADIENT}
        forward_begin, last_forward = [NO_OP] * len(chunks), [NO_OP] * len(chunks)
        for entry in passes:
            if forward_begin[entry.chunk] == NO_OP:
                forward_begin[entry.chunk] = self.position
            self._run(chunks[entry.chunk], entry, _key(entry) in split)
            if entry.work is PassWork.FORWARD:
                last_forward[entry.chunk] = self.last_compute
        tables = self._tensors_of(chunks)
        if self.layout.closing_bytes and self.layout.closing_bytes[stage]:
            tables += self._optimizer_tensors(stage, tables)
        if self.layout.forward_bytes:
            tables.append(
                StageTensors.filled(
                    np.full(len(chunks), self.layout.forward_bytes),
                    is_forward=True,
                    begin=np.array(forward_begin),
                    last_forward=np.array(last_forward),
                    kind=MemoryKind.TRANSIENT,
                    part=MemoryPart.CONSTANTS,
                    label=self.model.label("made of constants"),
                )
            )
        if self.sent:
            tables = [_without_unsent_uses(table, self.sent) for table in tables]
            tables.append(self._outputs_of_sends())
        return join(tables)

    def _tensors_of(self, chunks: Sequence[_Chunk]) -> list[StageTensors]:
        """Build the tensors of the chunks of a stage, after all their passes are scheduled."""
        local, shared = [], []
        for chunk in chunks:
            for group in chunk.groups.values():
                tensors = ChunkTensors(self.model, chunk.segments, group)
                local.append(group.expand(tensors.local(), self.last_compute))
                shared.append(group.expand(tensors.shared(), self.last_compute))
            begins = {
                segment: chunk.first_forward_begin + position
                for segment, position in chunk.first_forward.per_step_operators.items()
            }
            if begins:
                local.append(per_step_tensors(self.model, begins, list(chunk.groups.values())))
        return [*local, *shared]

    def _optimizer_tensors(self, stage: int, tables: Sequence[StageTensors]) -> list[StageTensors]:
        """Build the memory of the optimizer, which is no operator of the program.

        It is added at the last operator of backward, less the tensors that are freed there.
        """
        closing_bytes = self.layout.closing_bytes[stage]
        gradient_bytes = self.layout.closing_gradient_bytes[stage] if self.layout.closing_gradient_bytes else 0
        parts = Counter({MemoryPart.GRADIENTS: gradient_bytes})
        parts[MemoryPart.OPTIMIZER_TEMPORARIES] = closing_bytes - gradient_bytes
        for table in tables:
            parts.subtract(_bytes_ending_at(table, self.last_compute))
        if parts.total() <= 0:
            return []
        self.closing_parts[stage] = parts
        table = StageTensors.filled(
            np.array([parts.total()]),
            is_forward=False,
            begin=self.last_compute,
            kind=MemoryKind.GRADIENT,
            part=MemoryPart.OPTIMIZER_TEMPORARIES,
            label=self.model.label("gradients for the optimizer"),
        )
        return [table]

    def _outputs_of_sends(self) -> StageTensors:
        """Build the outputs of `Send`: as large as the sent tensor, and read by no operator.

        See docs/internals/notes.md#memory-of-sent-tensors.
        """
        send_op = np.array([sent.send_op for sent in self.sent])
        is_forward = np.array([sent.is_forward for sent in self.sent])
        return StageTensors.filled(
            np.array([sent.size_bytes for sent in self.sent]),
            is_forward=is_forward,
            begin=send_op,
            last_forward=np.where(is_forward, send_op, NO_OP),
            last_backward=np.where(is_forward, NO_OP, send_op),
            kind=MemoryKind.TRANSIENT,
            part=MemoryPart.COMMUNICATION,
            label=self.model.label("sent"),
            micro_batch=0,
        )

    def _chunk(self, segments: tuple[int, ...], has_later: bool) -> _Chunk:
        first = self.model.make_pass(segments, True, None)
        later = first
        if first.per_step_operators and has_later:
            later = self.model.make_pass(segments, True, first.per_step_operators)
        return _Chunk(segments, first, later, self.model.make_pass(segments, False, {}))

    def _run(self, chunk: _Chunk, entry: Pass, is_split: bool) -> None:
        """Append the operators of a pass."""
        group = chunk.group_of(entry, is_split)
        micro_step = entry.micro_batch * self.layout.num_sequences + entry.sequence
        begins = group.begins.setdefault(micro_step, [])
        number = {PassWork.FORWARD: 0, PassWork.WEIGHT_GRADIENT: 2}.get(entry.work, 1)
        if len(begins) != number:
            raise AssertionError(f"{entry} comes too early")
        if entry.work is PassWork.FORWARD and not micro_step:
            chunk.first_forward_begin = self.position
        begins.append(self.position)
        stage_pass = group.stage_pass(entry.work)
        if stage_pass.last_compute != NO_OP:
            self.last_compute = self.position + stage_pass.last_compute
        wait_op = self._wait_ops(stage_pass, begins, chunk.first_forward_begin)
        self.ops.append(stage_pass, wait_op, entry.sequence, micro_step)
        begin, self.position = self.position, self.position + stage_pass.num_ops
        self._note_transfers(chunk, stage_pass, entry, begin)

    def _wait_ops(self, stage_pass: StagePass, begins: Sequence[int], first_forward_begin: int) -> np.ndarray:
        """Return the absolute positions of the operators that those of a pass wait for.

        Args:
            stage_pass: the pass, which starts at the current position.
            begins: absolute starts of the passes of its micro-step up to this one.
            first_forward_begin: absolute start of the first forward of its chunk.
        """
        ops = stage_pass.ops
        wait_op = shift(ops.wait_op, self.position)
        if ops.wait_half is not None:
            wait_op = np.where(wait_op == NO_OP, shift(ops.wait_half, begins[1]), wait_op)
        if ops.wait_per_step is not None:
            wait_op = np.where(wait_op == NO_OP, shift(ops.wait_per_step, first_forward_begin), wait_op)
        if stage_pass.starts_with_collective:
            wait_op[0] = max(int(wait_op[0]), self.position - 1)
        return wait_op

    def _note_transfers(self, chunk: _Chunk, stage_pass: StagePass, entry: Pass, begin: int) -> None:
        """Record RECEIVE and SEND of a pass that starts at `begin` and ends before the current position."""
        is_forward = entry.work is PassWork.FORWARD
        if stage_pass.receive is not None:
            key = _SendKey(stage_pass.receive, entry.micro_batch, entry.sequence, is_forward)
            self.receives[begin] = key
        target, send_op = stage_pass.send, self.position - 1
        if target is not None:
            self.sends[_SendKey(target, entry.micro_batch, entry.sequence, is_forward)] = send_op
            if self.stage_of.get(target) != self.stage_of.get(chunk.segments[0]):
                self.sent.append(_SentTensor(send_op, stage_pass.send_bytes, is_forward))

    def _send_ns(self, segment: int, target: int, size_bytes: int) -> int:
        """Return the duration of a transfer; 0 within a stage, as at the turning point of a V schedule."""
        return 0 if self.stage_of[segment] == self.stage_of[target] else self.costs.send_ns(size_bytes)


def _stage_of_segment(layout: StageLayout) -> Iterator[tuple[int, int]]:
    """Yield each segment with its stage."""
    for stage, chunks in enumerate(layout.chunks):
        for segments in chunks:
            yield from ((segment, stage) for segment in segments)


def _bytes_ending_at(table: StageTensors, op: int) -> Counter[MemoryPart]:
    """Return the bytes of tensors whose last use is the given operator by part, without those for the optimizer."""
    last_use = np.maximum.reduce([table.begin, table.last_forward, table.last_backward])
    ending: Counter[MemoryPart] = Counter()
    for row in np.flatnonzero((last_use == op) & ~table.is_optimizer_input):
        ending[MemoryPart(table.live_part[row])] += int(table.size_bytes[row])
    return ending


def _without_unsent_uses(table: StageTensors, sent: Sequence[_SentTensor]) -> StageTensors:
    """End casts of a sent tensor before SEND: the receiver casts on its own, so they are not sent."""
    send_ops = np.array([tensor.send_op for tensor in sent])
    sent_bytes = np.array([tensor.size_bytes for tensor in sent])

    def without(last_use: np.ndarray) -> np.ndarray:
        number = np.minimum(np.searchsorted(send_ops, last_use), len(send_ops) - 1)
        is_unsent_cast = (send_ops[number] == last_use) & (sent_bytes[number] != table.size_bytes)
        return np.where(is_unsent_cast, np.maximum(last_use - 1, table.begin), last_use)

    return replace(table, last_forward=without(table.last_forward), last_backward=without(table.last_backward))


def _key(entry: Pass) -> _MicroStepKey:
    return _MicroStepKey(entry.chunk, entry.micro_batch, entry.sequence)
