"""Operators of one forward or backward pass through a virtual chunk, and groups of micro-batches that repeat it.

Positions are relative to the start of the pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.simulator.layer_block import Block, Columns, Read, Source
from mindswap.simulator.program import NO_OP, OpKind

# Offset of positions in the weight gradient half of a split backward, to tell them from those in the first half.
WEIGHT_HALF = 2**40


@dataclass(frozen=True, eq=False)
class StagePass:
    """One pass through the segments of a virtual chunk."""

    # Arrays by name, shape (num_ops,): kind, wait_op, label, layer; is_weight (runs in the weight gradient half of a
    # split backward); piece_ns, shape (num_ops, num_pieces) (durations of the sequence pieces, or one for all).
    # Optional, for operators without `wait_op`: wait_per_step (operator to wait for, relative to the first forward
    # pass) and wait_half (relative to the first half of a split backward)
    columns: dict[str, np.ndarray]
    starts: dict[int, int]  # segment -> position of its first operator
    # segment -> position of its first per-step operator; only in the first forward pass
    per_step_operators: dict[int, int] = field(default_factory=dict)
    receive: int | None = None  # first segment of the pass, if it receives a boundary tensor; None otherwise
    send: int | None = None  # segment that the boundary tensor of this pass is sent to; None for none
    starts_with_collective: bool = False  # it starts with a collective, which waits for the operator before the pass

    @property
    def num_ops(self) -> int:
        """Number of operators, RECEIVE and SEND included."""
        return len(self.columns["kind"])


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


def split_backward_pass(whole: StagePass) -> tuple[StagePass, StagePass, np.ndarray]:
    """Split a backward pass into input gradients and weight gradients, as zero-bubble schedules do.

        full     R  g  w  g  w  S      g: gradient of an input, w: gradient of a weight
        halves   R  g  g  S  |  w  w

    Returns:
        The first half, which the previous stage waits for; the weight gradient half; and the new position of each
        operator, int64, shape (num_ops,), plus `WEIGHT_HALF` for those in the second half.
    """
    is_weight = whole.columns["is_weight"]
    place = np.cumsum(~is_weight) - 1  # of the last operator of the first half up to here; -1 is `NO_OP`
    places = np.where(is_weight, np.cumsum(is_weight) - 1 + WEIGHT_HALF, place)
    waits = whole.columns["wait_op"]
    is_waiting = waits != NO_OP
    waits = np.maximum(waits, 0)
    # An operator of the first half never waits for the second half, but for the input gradient before that operator.
    in_first = np.where(is_waiting, place[waits], NO_OP)
    waits_within = is_waiting & is_weight[waits]
    in_second = np.where(waits_within, places[waits] - WEIGHT_HALF, NO_OP)
    across = np.where(is_waiting & ~waits_within, places[waits], NO_OP)
    first = {name: column[~is_weight] for name, column in (whole.columns | {"wait_op": in_first}).items()}
    own = whole.columns | {"wait_op": in_second, "wait_half": across}
    second = {name: column[is_weight] for name, column in own.items()}
    return replace(whole, columns=first, starts={}), StagePass(second, {}), places


class ModelSegments:
    """The segments of a model: assembles their operators into passes, and numbers their labels.

    Args:
        blocks: block of each segment: before the layers, every layer, after the layers.
        send_ns: (source segment, target segment, bytes) -> duration of sending a boundary tensor in ns.
    """

    def __init__(self, blocks: Sequence[Block], send_ns: Callable[[int, int, int], int]):
        self.blocks = blocks
        self.send_ns = send_ns
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
        """Return the layer of a segment; `NO_OP` outside the layers."""
        return segment - 1 if 0 < segment < len(self.blocks) - 1 else NO_OP

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
        parts: list[tuple[int, Columns, bool]] = []
        for segment in order:
            arrays = self.blocks[segment].arrays
            if per_step_operators is None and self.blocks[segment].per_step_operators:
                parts.append((segment, arrays.per_step_operators, True))
            parts.append((segment, arrays.forward if is_forward else arrays.backward, False))
        sizes = [len(part["kind"]) for _, part, _ in parts]
        *begins, end = np.cumsum([has_receive, *sizes]).tolist()
        starts = {segment: at for (segment, _, is_per_step), at in zip(parts, begins, strict=True) if not is_per_step}
        begun = {segment: at for (segment, _, is_per_step), at in zip(parts, begins, strict=True) if is_per_step}

        def joined(name: str) -> np.ndarray:
            return np.concatenate([part[name] for _, part, _ in parts])

        wait_op = shift(joined("wait_op"), np.repeat(begins, sizes))
        num_pieces = max(part["piece_ns"].shape[1] for _, part, _ in parts)
        pieces = [
            part["piece_ns"]
            if part["piece_ns"].shape[1] == num_pieces
            else np.broadcast_to(part["piece_ns"], (len(part["kind"]), num_pieces))
            for _, part, _ in parts
        ]
        columns = {name: joined(name) for name in ("kind", "is_weight")} | {
            "piece_ns": np.concatenate(pieces),
            "wait_op": wait_op,
            "label": self.labels_of([segment for segment, _, _ in parts], [part["label"] for _, part, _ in parts]),
            "layer": np.repeat([self.layer_of(segment) for segment, _, _ in parts], sizes),
        }
        if per_step_operators is None and begun:
            # `wait_op` has priority: it is the later of the two on the communication stream.
            wait_op[:] = np.where(wait_op == NO_OP, _wait_per_step(parts, sizes, begun), wait_op)
        elif per_step_operators:
            columns["wait_per_step"] = _wait_per_step(parts, sizes, per_step_operators)
        if has_receive and len(wait_op):
            # If a collective is first, the first compute operator is recomputed and waits too: recompute.cc adds a
            # dependency on the incoming gradient.
            first = [0, int(np.argmax(columns["kind"] < OpKind.COLLECTIVE))]
            wait_op[first] = np.maximum(wait_op[first], 0)
        # A segment that starts with a collective: its operand is produced by the previous segment.
        is_held_back = [
            not is_per_step and part["kind"][:1].tolist() == [OpKind.COLLECTIVE] for _, part, is_per_step in parts
        ]
        for is_it, at in zip(is_held_back, begins, strict=True):
            if is_it and at:
                wait_op[at - has_receive] = max(int(wait_op[at - has_receive]), at - 1)
        if has_receive:
            columns = self._with_transfer(columns, 0, OpKind.RECEIVE, 0, NO_OP)
        if target is not None:
            duration_ns = self.send_ns(order[-1], target, self.boundary_bytes(target, is_forward))
            columns = self._with_transfer(columns, end, OpKind.SEND, duration_ns, end - 1)
        receive = order[0] if has_receive else None
        return StagePass(columns, starts, begun, receive, target, is_held_back[0] and not has_receive)

    def _with_transfer(
        self, columns: dict[str, np.ndarray], at: int, kind: OpKind, duration_ns: int, wait_op: int
    ) -> dict[str, np.ndarray]:
        values = {
            "kind": kind,
            "wait_op": wait_op,
            "label": self.label(kind.name.lower()),
            "layer": NO_OP,
            "is_weight": False,
            "piece_ns": duration_ns,
            "wait_per_step": NO_OP,
        }
        return {name: np.insert(column, at, values[name], axis=0) for name, column in columns.items()}

    def boundary_bytes(self, segment: int, is_forward: bool) -> int:
        """Return the bytes of the boundary tensor (hidden states or their gradient) that a segment receives.

        If the segment reads it in several dtypes, the smallest is sent and the receiver casts it.
        """
        return min((read.size_bytes for read in neighbour_reads(self.blocks[segment], is_forward)), default=0)


def _wait_per_step(
    parts: Sequence[tuple[int, Columns, bool]], sizes: Sequence[int], per_step_operators: dict[int, int]
) -> np.ndarray:
    """Return the per-step operators that operators wait for, as positions in the first forward pass."""
    base = np.repeat([per_step_operators.get(segment, 0) for segment, _, _ in parts], sizes)
    wait_per_step = [
        np.full(len(part["kind"]), NO_OP) if is_per_step else part["wait_per_step"] for _, part, is_per_step in parts
    ]
    return shift(np.concatenate(wait_per_step), base)


# Micro-batches of a virtual chunk that repeat the same passes: start of each pass, lifetime of each tensor. Here two of
# them on one stage, F forward and B backward, and a tensor that F1 produces and B1 reads:
#
#     operators   | F0 | F1 | B0 | B1 |
#     begins[1]        ^         ^
#     tensor            [---------]

# Columns of the tensor table. Positions are absolute; `NO_OP` for no use.
TENSOR_COLUMNS = (
    "size_bytes", "is_forward", "begin", "last_forward", "first_backward", "last_backward", "kind", "label", "layer",
    "micro_batch", "prefetch", "num_copies", "is_resident",
)  # fmt: skip


def tensor_rows(size_bytes: np.ndarray, **columns: np.ndarray | int) -> Columns:
    """Build a tensor table.

    Args:
        size_bytes: sizes, shape (num_tensors,).
        columns: arrays of that shape, or scalars for all tensors; the defaults are no use, no layer and no copies.
    """
    values = (
        dict.fromkeys(TENSOR_COLUMNS, NO_OP) | dict.fromkeys(("prefetch", "num_copies", "is_resident"), 0) | columns
    )
    rows: Columns = {name: np.broadcast_to(value, size_bytes.shape) for name, value in values.items()}
    return rows | {"size_bytes": size_bytes}


@dataclass(eq=False)
class MicroBatchGroup:
    """Micro-batches of a virtual chunk with the same passes, and the start of each pass.

    Mutable: each scheduled pass is added to `begins`.
    """

    forward: StagePass
    backward: StagePass  # unsplit, also if it is split in `halves`
    halves: tuple[StagePass, StagePass] | None = None  # of backward, if it is split
    # positions of the operators of backward in the halves (`split_backward_pass`); None if it is not split
    places: np.ndarray | None = None
    # micro-step (micro-batch, or sequence piece numbered over all micro-batches) -> start of its forward, of its
    # backward (or first half), and of its weight gradient half
    begins: dict[int, list[int]] = field(default_factory=dict)

    def begins_of(self, which: int) -> np.ndarray:
        """Return the starts of forward (0), backward (1) or weight gradients (2): shape (num_micro_steps, 1)."""
        return np.array([begins[which] for begins in self.begins.values()], np.int64)[:, None]

    def placed(self, positions: np.ndarray) -> np.ndarray:
        """Translate positions in backward to positions in the halves if it is split."""
        if self.places is None or not len(self.places):
            return positions
        return np.where(positions == NO_OP, NO_OP, self.places[np.minimum(positions, len(self.places) - 1)])

    def placed_uses(self, uses: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Return last use in forward, first and last use in backward: shape (3, num_tensors).

        If backward is split and a tensor is read for input gradients, its first use is in the first half.

        Args:
            uses: rows of `Consumers`, shape (num_fields, num_tensors), positions relative to a segment.
            forward: start of the segment of each tensor in forward.
            backward: start of the segment of each tensor in backward.
        """
        last_forward = shift(uses[0], forward)
        first, last, *halves = self.placed(shift(uses[1:7], backward))
        if self.places is not None:
            first_input, last_input, first_weight, last_weight = halves
            first = np.where(first_input != NO_OP, first_input, first_weight)
            last = np.where(last_weight != NO_OP, last_weight, last_input)
        return np.array((last_forward, first, last))

    def in_backward(self, positions: np.ndarray) -> np.ndarray:
        """Return absolute positions in backward of each micro-step: shape (num_micro_steps, num_positions)."""
        placed = shift(positions, self.begins_of(1))
        if self.halves is None:
            return placed
        return np.where(positions >= WEIGHT_HALF, positions - WEIGHT_HALF + self.begins_of(2), placed)

    def expand(self, tensors: dict[str, np.ndarray], last_compute: int) -> dict[str, np.ndarray]:
        """Repeat tensors for every micro-step.

        Args:
            tensors: columns with positions relative to the passes, shape (num_tensors,).
            last_compute: last compute operator of the stage, until which `is_optimizer_input` tensors are live.

        Returns:
            Columns with absolute positions, shape (num_micro_steps * num_tensors,).
        """
        forward = self.begins_of(0)
        is_forward = tensors["is_forward"].astype(bool)
        last_backward = self.in_backward(tensors["last_backward"])
        if "is_optimizer_input" in tensors:
            last_backward = np.where(tensors["is_optimizer_input"], last_compute, last_backward)
        micro_batches = np.array(list(self.begins))[:, None]
        begin = np.where(is_forward, tensors["begin"] + forward, self.in_backward(tensors["begin"]))
        if "is_live_from_later_starts" in tensors:
            begin = np.where(tensors["is_live_from_later_starts"] & (micro_batches > 0), forward, begin)
        placed = {
            "begin": begin,
            "last_forward": shift(tensors["last_forward"], forward),
            "first_backward": self.in_backward(tensors["first_backward"]),
            "last_backward": last_backward,
            "micro_batch": np.broadcast_to(micro_batches, (len(micro_batches), len(is_forward))),
        }
        table = {name: np.tile(column, len(micro_batches)) for name, column in tensors.items() if name not in placed}
        return table | {name: column.ravel() for name, column in placed.items()}
