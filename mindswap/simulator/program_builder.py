"""Assembly of blocks into the program of a full step on all pipeline stages.

Positions count operators in the order in which a stage issues them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mindswap.simulator.layer_block import Block
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.placing import TransferCosts, join, place_memory
from mindswap.simulator.program import NO_OP, MemoryKind, OpKind, Ops, Program
from mindswap.simulator.schedules.rounds import Pass, PassWork
from mindswap.simulator.stage_pass import (
    TENSOR_COLUMNS,
    MicroBatchGroup,
    ModelSegments,
    StagePass,
    shift,
    split_backward_pass,
    tensor_rows,
)
from mindswap.simulator.stage_tensors import TensorTable, per_step_columns


def build_program(
    blocks: Sequence[Block], costs: TransferCosts, layout: StageLayout | None = None, only_stage: int | None = None
) -> Program:
    """Build the program of one step.

    Args:
        blocks: block of each segment: before the layers, every layer of the model, after the layers; with split
            sequences, those of one sequence piece.
        costs: durations of transfers.
        layout: stages and schedule; the default is one stage with one micro-batch.
        only_stage: build this stage only, with boundary tensors from other stages available at once.
    """
    layout = layout or StageLayout(((tuple(range(len(blocks))),),))
    return _Builder(blocks, costs, layout).build(range(layout.num_stages) if only_stage is None else (only_stage,))


OP_COLUMNS = ("duration_ns", "kind", "wait_op", "label", "layer", "micro_batch")
# Identity of a SEND: target segment, micro-batch, sequence piece, is forward.
_SendKey = tuple[int, int, int, bool]


@dataclass(eq=False)
class _Chunk:
    """A virtual chunk: its passes, and groups of micro-batches by (has the per-step operators, backward is split)."""

    segments: tuple[int, ...]
    first_forward: StagePass
    later_forward: StagePass
    backward: StagePass
    groups: dict[tuple[bool, bool], MicroBatchGroup] = field(default_factory=dict)
    first_forward_begin: int = 0  # absolute position of its first forward

    def group_of(self, entry: Pass, is_split: bool) -> MicroBatchGroup:
        """Return the group of a micro-batch, created when its first pass is scheduled."""
        forward = self.later_forward if entry.micro_batch or entry.sequence else self.first_forward
        key = (forward is self.first_forward, is_split)
        if key not in self.groups:
            if is_split:
                *halves, places = split_backward_pass(self.backward)
                self.groups[key] = MicroBatchGroup(forward, self.backward, (halves[0], halves[1]), places)
            else:
                self.groups[key] = MicroBatchGroup(forward, self.backward)
        return self.groups[key]


class _Builder:
    """Builder of a program, stage by stage: first the operators of all micro-steps, then the tensors.

    The passes of a chunk are assembled once and repeated for each micro-step.
    """

    def __init__(self, blocks: Sequence[Block], costs: TransferCosts, layout: StageLayout):
        self.costs = costs
        self.layout = layout
        self.model = ModelSegments(blocks, self._send_ns)
        self.stages = {s: i for i, chunks in enumerate(layout.chunks) for own in chunks for s in own}
        self.position = 0
        self.last_compute = 0  # last compute operator of the current stage
        self.ops: dict[str, list[np.ndarray]] = {name: [] for name in OP_COLUMNS}
        self.sends: dict[_SendKey, int] = {}
        self.receives: dict[int, _SendKey] = {}
        self.sent: list[tuple[int, int, bool]] = []  # of the current stage: (SEND, bytes, is forward)

    def build(self, stages: Sequence[int]) -> Program:
        starts, tables = [0], []
        for stage in stages:
            tables.append(self._lay_out(stage))
            starts.append(self.position)
        columns = {name: np.concatenate(pieces) for name, pieces in self.ops.items()}
        wait_op = columns["wait_op"]
        for position, key in self.receives.items():
            wait_op[position] = self.sends.get(key, NO_OP)
        ops = Ops(
            columns["duration_ns"],
            columns["kind"].astype(np.int8),
            wait_op,
            *(columns[name].astype(np.int32) for name in ("layer", "micro_batch", "label")),
        )
        num_copies, parts = 0, []
        for stage, table in enumerate(tables):
            parts.append(place_memory(table, ops, starts[stage], starts[stage + 1], stage, self.costs, num_copies))
            num_copies += len(parts[-1][0])
        copies, intervals = zip(*parts, strict=True)
        return Program(
            stage_starts=np.array(starts, np.int64),
            ops=ops,
            copies=join(copies),
            intervals=join(intervals),
            labels=tuple(self.model.labels),
            contended_permille=self.costs.contended_permille,
            num_sequences=self.layout.num_sequences,
        )

    def _lay_out(self, stage: int) -> dict[str, np.ndarray]:
        """Append the operators of a stage; return its tensor table."""
        self.sent = []
        begin = last_forward = self.position
        passes = self.layout.passes(stage)
        has_later = any(entry.micro_batch or entry.sequence for entry in passes)
        chunks = [self._chunk(segments, has_later) for segments in self.layout.chunks[stage]]
        cut = {_key(entry) for entry in passes if entry.work is PassWork.WEIGHT_GRADIENT}
        for entry in passes:
            self._run(chunks[entry.chunk], entry, _key(entry) in cut)
            last_forward = self.last_compute if entry.work is PassWork.FORWARD else last_forward
        tables, others = [], []
        for chunk in chunks:
            for groups in chunk.groups.values():
                made = TensorTable(self.model, chunk.segments, groups)
                tables.append(groups.expand(made.own(), self.last_compute))
                others.append(groups.expand(made.others(), self.last_compute))
            per_step_operators = {
                segment: chunk.first_forward_begin + at
                for segment, at in chunk.first_forward.per_step_operators.items()
            }
            if per_step_operators:
                tables.append(per_step_columns(self.model, per_step_operators, list(chunk.groups.values())))
        tables += others
        closing_bytes = self.layout.closing_bytes[stage] if self.layout.closing_bytes else 0
        # The optimizer is no operator of the program: its memory is added at the last operator of backward, less the
        # tensors that are freed there.
        closing_bytes -= sum(_ending_bytes(table, self.last_compute) for table in tables) if closing_bytes else 0
        if closing_bytes > 0:
            label = self.model.label("gradients for the optimizer")
            at = {"is_forward": False, "begin": self.last_compute, "kind": MemoryKind.GRADIENT, "label": label}
            tables.append(tensor_rows(np.array([closing_bytes]), **at))
        if self.layout.forward_bytes:
            label = self.model.label("made of constants")
            at = {"is_forward": True, "begin": begin, "kind": MemoryKind.TRANSIENT, "label": label}
            tables.append(tensor_rows(np.array([self.layout.forward_bytes]), last_forward=last_forward, **at))
        if self.sent:
            sends, sizes, is_forward = map(np.array, zip(*self.sent, strict=True))
            for table in tables:
                _drop_unsent(table, sends, sizes)
            tables.append(self._copies_sent(sends, sizes, is_forward))
        return {name: np.concatenate([table[name] for table in tables]) for name in TENSOR_COLUMNS}

    def _copies_sent(self, sends: np.ndarray, sizes: np.ndarray, is_forward: np.ndarray) -> dict[str, np.ndarray]:
        """Build the outputs of `Send`: as large as the sent tensor, and read by no operator.

        See docs/internals/notes.md#memory-of-sent-tensors.
        """
        return tensor_rows(
            sizes,
            is_forward=is_forward,
            begin=sends,
            last_forward=np.where(is_forward, sends, NO_OP),
            last_backward=np.where(is_forward, NO_OP, sends),
            kind=MemoryKind.TRANSIENT,
            label=self.model.label("sent"),
            micro_batch=0,
        )

    def _chunk(self, segments: tuple[int, ...], has_later: bool) -> _Chunk:
        first = self.model.make_pass(segments, True, None)
        later = (
            self.model.make_pass(segments, True, first.per_step_operators)
            if first.per_step_operators and has_later
            else first
        )
        return _Chunk(segments, first, later, self.model.make_pass(segments, False, {}))

    def _run(self, chunk: _Chunk, entry: Pass, is_split: bool) -> None:
        """Append the operators of a pass."""
        groups = chunk.group_of(entry, is_split)
        micro_step = entry.micro_batch * self.layout.num_sequences + entry.sequence
        begins = groups.begins.setdefault(micro_step, [])
        which = {PassWork.FORWARD: 0, PassWork.WEIGHT_GRADIENT: 2}.get(entry.work, 1)
        if len(begins) != which:
            raise AssertionError(f"{entry} comes too early")
        part = groups.forward if which == 0 else groups.halves[which - 1] if groups.halves else groups.backward
        columns = part.columns
        if which == 0 and not micro_step:
            chunk.first_forward_begin = self.position
        begins.append(self.position)
        wait_op = shift(columns["wait_op"], self.position)
        if "wait_half" in columns:
            wait_op = np.where(wait_op == NO_OP, shift(columns["wait_half"], begins[1]), wait_op)
        if "wait_per_step" in columns:
            wait_op = np.where(wait_op == NO_OP, shift(columns["wait_per_step"], chunk.first_forward_begin), wait_op)
        if part.starts_with_collective:
            wait_op[0] = max(int(wait_op[0]), self.position - 1)
        self.ops["wait_op"].append(wait_op)
        for name in ("kind", "label", "layer"):
            self.ops[name].append(columns[name])
        pieces = columns["piece_ns"]
        self.ops["duration_ns"].append(pieces[:, min(entry.sequence, pieces.shape[1] - 1)])
        self.ops["micro_batch"].append(np.full(part.num_ops, micro_step))
        send_key = entry.micro_batch, entry.sequence, which == 0
        if part.receive is not None:
            self.receives[self.position] = (part.receive, *send_key)
        compute = np.flatnonzero(columns["kind"] < OpKind.COLLECTIVE)
        if len(compute):
            self.last_compute = self.position + int(compute[-1])
        self.position += part.num_ops
        if part.send is not None:
            self.sends[(part.send, *send_key)] = self.position - 1
            if self.stages.get(part.send) != self.stages.get(chunk.segments[0]):
                size_bytes = self.model.boundary_bytes(part.send, which == 0)
                self.sent.append((self.position - 1, size_bytes, which == 0))

    def _send_ns(self, segment: int, target: int, size_bytes: int) -> int:
        """Return the duration of a transfer; 0 within a stage, as at the turning point of a V schedule."""
        return 0 if self.stages[segment] == self.stages[target] else self.costs.send_ns(size_bytes)


def _ending_bytes(table: dict[str, np.ndarray], last: int) -> int:
    """Return the bytes of tensors whose last use is the given operator, without those kept for the optimizer."""
    ends = np.maximum.reduce([table[name] for name in ("begin", "last_forward", "last_backward")])
    return int(table["size_bytes"][(ends == last) & ~table.get("is_optimizer_input", np.zeros(len(ends), bool))].sum())


def _drop_unsent(table: dict[str, np.ndarray], sends: np.ndarray, sizes: np.ndarray) -> None:
    """End casts of a sent tensor before SEND: the receiver casts on its own, so they are not sent."""
    for name in ("last_forward", "last_backward"):
        column = table[name]
        place = np.minimum(np.searchsorted(sends, column), len(sends) - 1)
        is_other = (sends[place] == column) & (sizes[place] != table["size_bytes"])
        table[name] = np.where(is_other, np.maximum(column - 1, table["begin"]), column)


def _key(entry: Pass) -> tuple[int, int, int]:
    return entry.chunk, entry.micro_batch, entry.sequence
