"""Operators of one forward or backward pass through a virtual chunk.

Positions are relative to the start of the pass.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.simulator.layer_block import Block, OpColumns, Read, Source
from mindswap.simulator.program import NO_OP, OpKind, Table

# Offset of positions in the weight gradient half of a split backward, to tell them from those in the first half.
WEIGHT_HALF = 2**40


@dataclass(eq=False)  # not frozen: waits are filled in while a pass is built
class PassOps(Table):
    """Operators of a pass in issue order, RECEIVE and SEND included; shape (num_ops,) unless stated otherwise."""

    kind: np.ndarray  # int8, `OpKind`
    # int64, shape (num_ops, num_pieces): durations of the sequence pieces, or one column if all are equal
    piece_ns: np.ndarray
    wait_op: np.ndarray  # int64, operator of this pass to wait for; `NO_OP` for none
    label: np.ndarray  # int32, label number of the step
    layer: np.ndarray  # int64, layer of the model; `NO_OP` outside the layers
    is_weight: np.ndarray  # bool, runs in the weight gradient half of a split backward
    positions: np.ndarray  # int32, as `BlockOp.positions`
    # For operators without `wait_op`, None if there is none in the pass: operator to wait for, ...
    wait_per_step: np.ndarray | None = None  # ... relative to the first forward pass
    wait_half: np.ndarray | None = None  # ... relative to the first half of a split backward


@dataclass(eq=False)  # not frozen: caches two properties
class StagePass:
    """One pass through the segments of a virtual chunk."""

    ops: PassOps
    starts: dict[int, int]  # segment -> position of its first operator
    # segment -> position of its first per-step operator; only in the first forward pass
    per_step_operators: dict[int, int] = field(default_factory=dict)
    receive: int | None = None  # first segment of the pass, if it receives a boundary tensor; None otherwise
    send: int | None = None  # segment that the boundary tensor of this pass is sent to; None for none
    send_bytes: int = 0  # size of that tensor
    starts_with_collective: bool = False  # the collective waits for the operator before the pass

    @functools.cached_property
    def num_ops(self) -> int:
        """Number of operators, RECEIVE and SEND included."""
        return len(self.ops)

    @functools.cached_property
    def last_compute(self) -> int:
        """Position of the last operator on the compute stream; `NO_OP` for none."""
        compute = np.flatnonzero(self.ops.kind < OpKind.COLLECTIVE)
        return int(compute[-1]) if len(compute) else NO_OP


def shift(positions: np.ndarray, base: int | np.ndarray) -> np.ndarray:
    """Add a base to positions; `NO_OP` is unchanged."""
    return np.where(positions == NO_OP, NO_OP, positions + base)


def neighbour_reads(block: Block, is_forward: bool) -> list[Read]:
    """Return the reads of boundary tensors of the previous block in the order of the pass.

    Args:
        block: the reading block.
        is_forward: whether the pass is forward; then the previous block is the one before it, else the one after it.
    """
    source = Source.PREVIOUS if is_forward else Source.NEXT
    return [read for read in block.reads if read.source is source and read.role.is_forward == is_forward]


class SplitBackward(NamedTuple):
    """A backward pass in two halves, as zero-bubble schedules run it."""

    input_half: StagePass  # gradients of inputs, which the previous stage waits for
    weight_half: StagePass  # gradients of weights
    # position of each operator in its half: int64, shape (num_ops,), plus `WEIGHT_HALF` in the second half
    positions: np.ndarray


def split_backward_pass(backward: StagePass) -> SplitBackward:
    """Split a backward pass into input gradients and weight gradients.

    full     R  g  w  g  w  S      g: gradient of an input, w: gradient of a weight
    halves   R  g  g  S  |  w  w
    """
    ops = backward.ops
    is_weight = ops.is_weight
    input_position = np.cumsum(~is_weight) - 1  # of the last operator of the first half so far; -1 is `NO_OP`
    positions = np.where(is_weight, np.cumsum(is_weight) - 1 + WEIGHT_HALF, input_position)
    is_waiting = ops.wait_op != NO_OP
    wait_op = np.maximum(ops.wait_op, 0)
    # An operator of the first half never waits for the second half, but for the input gradient before that operator.
    wait_in_first = np.where(is_waiting, input_position[wait_op], NO_OP)
    waits_for_weight = is_waiting & is_weight[wait_op]
    wait_in_second = np.where(waits_for_weight, positions[wait_op] - WEIGHT_HALF, NO_OP)
    wait_across = np.where(is_waiting & ~waits_for_weight, positions[wait_op], NO_OP)
    input_ops = replace(ops, wait_op=wait_in_first).rows(~is_weight)
    weight_ops = replace(ops, wait_op=wait_in_second, wait_half=wait_across).rows(is_weight)
    return SplitBackward(replace(backward, ops=input_ops, starts={}), StagePass(weight_ops, {}), positions)


class _Part(NamedTuple):
    """Consecutive operators of a pass: those of a segment, or its per-step operators."""

    segment: int
    ops: OpColumns
    is_per_step: bool

    @property
    def starts_with_collective(self) -> bool:
        return not self.is_per_step and self.ops.kind[:1].tolist() == [OpKind.COLLECTIVE]


class ModelSegments:
    """The segments of a model: assembles their operators into passes, and numbers their labels.

    Args:
        blocks: block of each segment: before the layers, every layer, after the layers.
        send_ns: (source segment, target segment, bytes) -> duration of sending a boundary tensor in ns.
        first_layers: first layer of each segment of layers; the default is one layer in each.
    """

    def __init__(
        self, blocks: Sequence[Block], send_ns: Callable[[int, int, int], int], first_layers: Sequence[int] = ()
    ):
        self.blocks = blocks
        self.send_ns = send_ns
        self.first_layers = first_layers or range(len(blocks) - 2)
        self.labels: dict[Label, int] = {}
        number_of = self.labels.setdefault  # called for thousands of labels
        numbers: list[int] = []
        self._first: dict[Block, int] = {}  # offset of its labels in `_numbers`
        for block in dict.fromkeys(blocks):
            self._first[block] = len(numbers)
            numbers += [number_of(name, len(self.labels)) for name in block.arrays.labels]
        self._numbers = np.array(numbers, np.int32)

    def label(self, name: Label) -> int:
        """Return the number of a label, a new one for a new label."""
        return self.labels.setdefault(name, len(self.labels))

    def labels_of(self, segments: Sequence[int], numbers: Sequence[np.ndarray]) -> np.ndarray:
        """Translate label numbers of blocks to label numbers of the step.

        Args:
            segments: segments.
            numbers: for each segment, label numbers in its block.

        Returns:
            int32, the translated numbers of all segments, concatenated.
        """
        first = np.repeat([self._first[self.blocks[segment]] for segment in segments], list(map(len, numbers)))
        return self._numbers[np.concatenate(numbers) + first]

    def layer_of(self, segment: int) -> int:
        """Return the first layer of a segment; `NO_OP` outside the layers."""
        return self.first_layers[segment - 1] if 0 < segment < len(self.blocks) - 1 else NO_OP

    def make_pass(
        self, segments: tuple[int, ...], is_forward: bool, per_step_operators: dict[int, int] | None
    ) -> StagePass:
        """Assemble one pass; the first operator of each stream waits for the boundary tensor that it receives.

        Args:
            segments: segments of the virtual chunk, in forward order.
            is_forward: whether to assemble forward.
            per_step_operators: segment -> position of its per-step operators in the first forward pass; None if this
                is that pass.
        """
        order, step = (segments, 1) if is_forward else (segments[::-1], -1)
        # A pass that does not start or end at an end of the model exchanges boundary tensors with another chunk.
        ends = (0, len(self.blocks) - 1)[::step]
        has_receive = order[0] != ends[0]
        target = order[-1] + step if order[-1] != ends[1] else None
        parts = self._parts(order, is_forward, has_per_step=per_step_operators is None)
        sizes = [len(part.ops) for part in parts]
        *begins, end = np.cumsum([has_receive, *sizes]).tolist()
        begin_of_part = list(zip(parts, begins, strict=True))
        per_step_begins = {part.segment: begin for part, begin in begin_of_part if part.is_per_step}
        ops = self._join(parts, begins)
        if per_step_operators is None and per_step_begins:
            # `wait_op` has priority: it is the later of the two on the communication stream.
            wait_per_step = _wait_per_step(parts, per_step_begins)
            ops = replace(ops, wait_op=np.where(ops.wait_op == NO_OP, wait_per_step, ops.wait_op))
        elif per_step_operators:
            ops = replace(ops, wait_per_step=_wait_per_step(parts, per_step_operators))
        if has_receive:
            _wait_for_receive(ops)
        for part, begin in begin_of_part:
            if part.starts_with_collective and begin:  # the previous segment produces its operand
                _wait_for_operator(ops, position=begin - has_receive, awaited=begin - 1)
        if has_receive:
            ops = self._with_transfer(ops, 0, OpKind.RECEIVE, 0, NO_OP)
        send_bytes = self._boundary_bytes(target, is_forward) if target is not None else 0
        if target is not None:
            duration_ns = self.send_ns(order[-1], target, send_bytes)
            ops = self._with_transfer(ops, end, OpKind.SEND, duration_ns, end - 1)
        return StagePass(
            ops=ops,
            starts={part.segment: begin for part, begin in begin_of_part if not part.is_per_step},
            per_step_operators=per_step_begins,
            receive=order[0] if has_receive else None,
            send=target,
            send_bytes=send_bytes,
            starts_with_collective=parts[0].starts_with_collective and not has_receive,
        )

    def _parts(self, order: Sequence[int], is_forward: bool, has_per_step: bool) -> list[_Part]:
        """Return the operators of the segments in the order of the pass."""
        parts: list[_Part] = []
        for segment in order:
            arrays = self.blocks[segment].arrays
            if has_per_step and self.blocks[segment].per_step_operators:
                parts.append(_Part(segment, arrays.per_step_operators, True))
            parts.append(_Part(segment, arrays.forward if is_forward else arrays.backward, False))
        return parts

    def _join(self, parts: Sequence[_Part], begins: Sequence[int]) -> PassOps:
        """Concatenate the operators of a pass, without RECEIVE and SEND; `wait_op` counts RECEIVE."""
        tables, segments = [part.ops for part in parts], [part.segment for part in parts]
        sizes = [len(table) for table in tables]
        num_pieces = max(table.piece_ns.shape[1] for table in tables)
        piece_ns = [
            table.piece_ns
            if table.piece_ns.shape[1] == num_pieces
            else np.broadcast_to(table.piece_ns, (len(table), num_pieces))
            for table in tables
        ]
        return PassOps(
            kind=np.concatenate([table.kind for table in tables]),
            piece_ns=np.concatenate(piece_ns),
            wait_op=shift(np.concatenate([table.wait_op for table in tables]), np.repeat(begins, sizes)),
            label=self.labels_of(segments, [table.label for table in tables]),
            layer=np.repeat([self.layer_of(segment) for segment in segments], sizes)
            + np.concatenate([table.layer_offset for table in tables]),
            is_weight=np.concatenate([table.is_weight for table in tables]),
            positions=np.concatenate([table.positions for table in tables]),
        )

    def _with_transfer(self, ops: PassOps, at: int, kind: OpKind, duration_ns: int, wait_op: int) -> PassOps:
        """Insert RECEIVE or SEND at a position."""
        label = self.label(kind.name.lower())
        return PassOps(
            kind=np.insert(ops.kind, at, kind),
            piece_ns=np.insert(ops.piece_ns, at, duration_ns, axis=0),
            wait_op=np.insert(ops.wait_op, at, wait_op),
            label=np.insert(ops.label, at, label),
            layer=np.insert(ops.layer, at, NO_OP),
            is_weight=np.insert(ops.is_weight, at, False),
            positions=np.insert(ops.positions, at, 1),
            wait_per_step=None if ops.wait_per_step is None else np.insert(ops.wait_per_step, at, NO_OP),
        )

    def _boundary_bytes(self, segment: int, is_forward: bool) -> int:
        """Return the bytes of the boundary tensor (hidden states or their gradient) that a segment receives.

        If the segment reads it in several dtypes, the smallest is sent and the receiver casts it.
        """
        return min((read.size_bytes for read in neighbour_reads(self.blocks[segment], is_forward)), default=0)


def _wait_for_operator(ops: PassOps, *, position: int, awaited: int) -> None:
    """Make an operator wait for an earlier one, unless it waits for a later one already."""
    ops.wait_op[position] = max(int(ops.wait_op[position]), awaited)


def _wait_for_receive(ops: PassOps) -> None:
    """Make the first operator of a pass wait for RECEIVE, which will precede it at position 0.

    If a collective is first, the first compute operator is recomputed and waits too: recompute.cc adds a dependency on
    the incoming gradient.
    """
    if len(ops.wait_op):
        first = [0, int(np.argmax(ops.kind < OpKind.COLLECTIVE))]
        ops.wait_op[first] = np.maximum(ops.wait_op[first], 0)


def _wait_per_step(parts: Sequence[_Part], begins: dict[int, int]) -> np.ndarray:
    """Return the per-step operators that operators wait for, as positions in the first forward pass.

    Args:
        parts: operators of the pass.
        begins: segment -> position of its per-step operators in the first forward pass.
    """
    base = np.repeat([begins.get(part.segment, 0) for part in parts], [len(part.ops) for part in parts])
    waits = [np.full(len(part.ops), NO_OP) if part.is_per_step else part.ops.wait_per_step for part in parts]
    return shift(np.concatenate(waits), base)
