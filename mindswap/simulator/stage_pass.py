"""The operators of one pass through a virtual chunk, to be laid down for every micro-batch.

Positions count from the begin of the pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.simulator.layer_block import Block, Columns, Read, Source
from mindswap.simulator.program import NO_OP, OpKind

# Where backward is cut, positions in the half of the weight gradients are this plus the position there.
WEIGHT_HALF = 2**40


@dataclass(frozen=True, eq=False)
class StagePass:
    """One pass through the sections of a virtual chunk."""

    # piece_ns, the durations of each piece of the sequence, or of all; kind, wait_op, label, layer; is_weight: it goes
    # to the half of the weight gradients where backward is cut. Only where there are any: wait_once, what an operator
    # waits for where `wait_op` has nothing, from the begin of the first forward pass; wait_half, the same from the
    # begin of the other half of backward
    columns: dict[str, np.ndarray]
    starts: dict[int, int]  # where each section begins
    # where what a section does once in a step begins; only in the first forward pass
    once: dict[int, int] = field(default_factory=dict)
    receive: int | None = None  # the section for which another stage hands something over; None for none
    send: int | None = None  # the section of another stage to which something is handed over
    is_first_held_back: bool = False  # the pass begins with communication of what was computed just before it

    @property
    def num_ops(self) -> int:
        """Operators, RECEIVE and SEND included."""
        return len(self.columns["kind"])


def shift(positions: np.ndarray, base: int | np.ndarray) -> np.ndarray:
    """Positions counted from an earlier begin; `NO_OP` stays."""
    return np.where(positions == NO_OP, NO_OP, positions + base)


def neighbour_reads(block: Block, is_forward: bool) -> list[Read]:
    """Reads of a block of tensors of the neighbour from which a pass comes to it."""
    source = Source.BEFORE if is_forward else Source.BEHIND
    return [read for read in block.reads if read.source is source and read.role.is_forward == is_forward]


def cut_backward(whole: StagePass) -> tuple[StagePass, StagePass, np.ndarray]:
    """Both halves of a backward pass, and where each of its operators is in them.

        whole    R  g  w  g  w  S      g gives a gradient of an input, w one of a weight
        halves   R  g  g  S  |  w  w

    Returns:
        The half that the stage before waits for, the half of the weight gradients, and positions of all operators:
        those in the second half count from `WEIGHT_HALF`.
    """
    is_weight = whole.columns["is_weight"]
    place = np.cumsum(~is_weight) - 1  # of the last operator of the first half that is not behind; -1 is `NO_OP`
    places = np.where(is_weight, np.cumsum(is_weight) - 1 + WEIGHT_HALF, place)
    waits = whole.columns["wait_op"]
    is_waiting = waits != NO_OP
    waits = np.maximum(waits, 0)
    # An operator of the first half waits for none of the second, but for the one before it.
    in_first = np.where(is_waiting, place[waits], NO_OP)
    waits_within = is_waiting & is_weight[waits]
    in_second = np.where(waits_within, places[waits] - WEIGHT_HALF, NO_OP)
    across = np.where(is_waiting & ~waits_within, places[waits], NO_OP)
    first = {name: column[~is_weight] for name, column in (whole.columns | {"wait_op": in_first}).items()}
    own = whole.columns | {"wait_op": in_second, "wait_half": across}
    second = {name: column[is_weight] for name, column in own.items()}
    return replace(whole, columns=first, starts={}), StagePass(second, {}), places


class ModelSections:
    """The sections of a model: numbers for all of their labels, and their operators one behind the other.

    `send_ns` is the time of handing bytes on: (section, other section, bytes) -> ns.
    """

    def __init__(self, blocks: Sequence[Block], send_ns: Callable[[int, int, int], int]):
        self.blocks = blocks
        self.send_ns = send_ns
        self.labels: dict[Label, int] = {}
        number_of = self.labels.setdefault  # called for thousands of labels
        numbers: list[int] = []
        self._first: dict[Block, int] = {}  # where the numbers of its labels begin
        for block in dict.fromkeys(blocks):
            self._first[block] = len(numbers)
            numbers += [number_of(name, len(self.labels)) for name in block.arrays.labels]
        self._numbers = np.array(numbers, np.int32)

    def label(self, name: Label) -> int:
        """Return the number of a label, a new one for a new label."""
        return self.labels.setdefault(name, len(self.labels))

    def labels_of(self, sections: Sequence[int], numbers: Sequence[np.ndarray]) -> np.ndarray:
        """Labels of each section's block, as the block numbers them, in numbers of the step, one behind the other."""
        first = np.repeat([self._first[self.blocks[section]] for section in sections], list(map(len, numbers)))
        return self._numbers[np.concatenate(numbers) + first]

    def layer_of(self, section: int) -> int:
        """Return the layer of a segment; `NO_OP` outside the layers."""
        return section - 1 if 0 < section < len(self.blocks) - 1 else NO_OP

    def make_pass(self, sections: tuple[int, ...], is_forward: bool, once: dict[int, int] | None) -> StagePass:
        """The operators of one pass; the first of each stream waits for what another stage sends.

        Args:
            sections: of the chunk, in the order of forward.
            is_forward: of forward, not of backward.
            once: where what is done once begins in the first pass; None if this is the first pass.
        """
        order, step = (sections, 1) if is_forward else (sections[::-1], -1)
        # A pass begins and ends at the ends of the model, else at another stage.
        ends = (0, len(self.blocks) - 1)[::step]
        has_receive = order[0] != ends[0]
        target = order[-1] + step if order[-1] != ends[1] else None
        parts: list[tuple[int, Columns, bool]] = []
        for section in order:
            arrays = self.blocks[section].arrays
            if once is None and self.blocks[section].once:
                parts.append((section, arrays.once, True))
            parts.append((section, arrays.forward if is_forward else arrays.backward, False))
        sizes = [len(part["kind"]) for _, part, _ in parts]
        *begins, end = np.cumsum([has_receive, *sizes]).tolist()
        starts = {section: at for (section, _, is_once), at in zip(parts, begins, strict=True) if not is_once}
        begun = {section: at for (section, _, is_once), at in zip(parts, begins, strict=True) if is_once}

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
            "label": self.labels_of([section for section, _, _ in parts], [part["label"] for _, part, _ in parts]),
            "layer": np.repeat([self.layer_of(section) for section, _, _ in parts], sizes),
        }
        if once is None and begun:
            # Of two on the communication stream the later one, which is not the one that runs once, ends last.
            wait_op[:] = np.where(wait_op == NO_OP, _wait_once(parts, sizes, begun), wait_op)
        elif once:
            columns["wait_once"] = _wait_once(parts, sizes, once)
        if has_receive and len(wait_op):
            # Where communication comes first, so does on the other stream what runs again: recompute.cc ties it to the
            # gradient.
            first = [0, int(np.argmax(columns["kind"] < OpKind.COLLECTIVE))]
            wait_op[first] = np.maximum(wait_op[first], 0)
        # Communication of what the section before has made.
        is_held_back = [not is_once and part["kind"][:1].tolist() == [OpKind.COLLECTIVE] for _, part, is_once in parts]
        for is_it, at in zip(is_held_back, begins, strict=True):
            if is_it and at:
                wait_op[at - has_receive] = max(int(wait_op[at - has_receive]), at - 1)
        if has_receive:
            columns = self._with_transfer(columns, 0, OpKind.RECEIVE, 0, NO_OP)
        if target is not None:
            duration_ns = self.send_ns(order[-1], target, self.handed_bytes(target, is_forward))
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
            "wait_once": NO_OP,
        }
        return {name: np.insert(column, at, values[name], axis=0) for name, column in columns.items()}

    def handed_bytes(self, section: int, is_forward: bool) -> int:
        """Hidden states or their gradient: what the section reads of its neighbour, in its smallest type.

        Copies of it in another type (for a norm) are made on the other side.
        """
        return min((read.size_bytes for read in neighbour_reads(self.blocks[section], is_forward)), default=0)


def _wait_once(parts: Sequence[tuple[int, Columns, bool]], sizes: Sequence[int], once: dict[int, int]) -> np.ndarray:
    """Positions of once-run operators that others wait for, from the begin of the first forward pass."""
    base = np.repeat([once.get(section, 0) for section, _, _ in parts], sizes)
    wait_once = [np.full(len(part["kind"]), NO_OP) if is_once else part["wait_once"] for _, part, is_once in parts]
    return shift(np.concatenate(wait_once), base)


# Micro-batches of a virtual chunk that are laid down alike: where their passes begin, where their tensors live. Here
# two of them on one stage, F forward and B backward, and a tensor that F1 makes and B1 reads:
#
#     operators   | F0 | F1 | B0 | B1 |
#     begins[1]        ^         ^
#     tensor            [---------]

# Columns of the table of tensors. Positions are absolute; `NO_OP` for no use.
TENSOR_COLUMNS = (
    "size_bytes", "is_forward", "begin", "last_forward", "first_backward", "last_backward", "kind", "label", "layer",
    "micro_batch", "prefetch", "num_copies", "is_held",
)  # fmt: skip


def tensor_rows(size_bytes: np.ndarray, **columns: np.ndarray | int) -> Columns:
    """A table of tensors, of columns or of what all have: what is not given is no use, no place, and no copies."""
    values = dict.fromkeys(TENSOR_COLUMNS, NO_OP) | dict.fromkeys(("prefetch", "num_copies", "is_held"), 0) | columns
    rows: Columns = {name: np.broadcast_to(value, size_bytes.shape) for name, value in values.items()}
    return rows | {"size_bytes": size_bytes}


@dataclass(eq=False)
class MicroBatchGroup:
    """Micro-batches of a virtual chunk that are laid down alike: their passes, and where they begin.

    Not frozen: what is laid down is added.
    """

    forward: StagePass
    backward: StagePass  # the whole one, also where it is cut
    halves: tuple[StagePass, StagePass] | None = None  # of backward, where it is cut
    # where the operators of the whole backward are in the halves; None where it is not cut
    places: np.ndarray | None = None
    # for each micro-batch, or piece of a sequence counted over all of them, where its forward, its backward (the first
    # half), and the half of its weight gradients begin
    begins: dict[int, list[int]] = field(default_factory=dict)

    def begins_of(self, which: int) -> np.ndarray:
        """Begin of each forward (0), backward (1) or weight gradients (2); shape (num_micro_steps, 1)."""
        return np.array([begins[which] for begins in self.begins.values()], np.int64)[:, None]

    def placed(self, positions: np.ndarray) -> np.ndarray:
        """Positions in the whole backward, where they are in the halves if it is cut."""
        if self.places is None or not len(self.places):
            return positions
        return np.where(positions == NO_OP, NO_OP, self.places[np.minimum(positions, len(self.places) - 1)])

    def placed_uses(self, uses: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Last use in forward, first and last in backward: shape (3, num_tensors).

        Where backward is cut, the first half has the first of the uses for gradients of inputs, if there is one.

        Args:
            uses: as `uses` of tensors, of some sections.
            forward: where for each tensor its section begins in forward.
            backward: the same in backward.
        """
        last_forward = shift(uses[0], forward)
        first, last, *halves = self.placed(shift(uses[1:7], backward))
        if self.places is not None:
            first_input, last_input, first_weight, last_weight = halves
            first = np.where(first_input != NO_OP, first_input, first_weight)
            last = np.where(last_weight != NO_OP, last_weight, last_input)
        return np.array((last_forward, first, last))

    def in_backward(self, positions: np.ndarray) -> np.ndarray:
        """Absolute positions in backward of each micro-batch: shape (num_micro_steps, num_positions)."""
        placed = shift(positions, self.begins_of(1))
        if self.halves is None:
            return placed
        return np.where(positions >= WEIGHT_HALF, positions - WEIGHT_HALF + self.begins_of(2), placed)

    def expand(self, tensors: dict[str, np.ndarray], last_compute: int) -> dict[str, np.ndarray]:
        """Tensors of every micro-batch, one after the other; what `is_final` stays until operator `last_compute`."""
        forward = self.begins_of(0)
        is_forward = tensors["is_forward"].astype(bool)
        last_backward = self.in_backward(tensors["last_backward"])
        if "is_final" in tensors:
            last_backward = np.where(tensors["is_final"], last_compute, last_backward)
        micro_batches = np.array(list(self.begins))[:, None]
        begin = np.where(is_forward, tensors["begin"] + forward, self.in_backward(tensors["begin"]))
        if "is_early_later" in tensors:
            begin = np.where(tensors["is_early_later"] & (micro_batches > 0), forward, begin)
        placed = {
            "begin": begin,
            "last_forward": shift(tensors["last_forward"], forward),
            "first_backward": self.in_backward(tensors["first_backward"]),
            "last_backward": last_backward,
            "micro_batch": np.broadcast_to(micro_batches, (len(micro_batches), len(is_forward))),
        }
        table = {name: np.tile(column, len(micro_batches)) for name, column in tensors.items() if name not in placed}
        return table | {name: column.ravel() for name, column in placed.items()}
