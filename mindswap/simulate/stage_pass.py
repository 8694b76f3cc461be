"""The operators of one pass through a virtual chunk, to be laid down for every micro-batch. Pure.

Positions count from the begin of the pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mindswap.graph.names import Label
from mindswap.simulate.block import Block
from mindswap.simulate.block_arrays import PassArrays
from mindswap.simulate.block_parts import Read, Source
from mindswap.simulate.program import NO_OP, OpKind

__all__ = ["NONE", "WEIGHT_HALF", "PassMaker", "StagePass", "cut_backward", "neighbour_reads", "shift"]

# "No use" where positions count from the begin of a pass: those before it are negative.
NONE = -(2**40)
# Where backward is cut, positions in the half of the weight gradients are this plus the position there.
WEIGHT_HALF = 2**40
NO_WAITS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class StagePass:
    """One pass through the sections of a virtual chunk.

    Attributes:
        columns: duration_ns, kind, wait_op, label, layer; is_weight: it goes to the half of the weight gradients
            where backward is cut; piece_ns, where they differ, the durations of each piece of the sequence.
        starts: where each section begins.
        once: where what a section does once in a step begins; only in the first forward pass.
        wait_once: what an operator waits for where `wait_op` has nothing, from the begin of the first forward pass.
        wait_half: the same, from the begin of the other half of backward.
        receive: the section for which another stage hands something over; None for none.
        send: the section of another stage to which something is handed over.
        is_first_held_back: the pass begins with communication of what was computed just before it.
    """

    columns: dict[str, np.ndarray]
    starts: dict[int, int]
    once: dict[int, int] = field(default_factory=dict)
    wait_once: np.ndarray = field(default_factory=lambda: NO_WAITS)
    wait_half: np.ndarray = field(default_factory=lambda: NO_WAITS)
    receive: int | None = None
    send: int | None = None
    is_first_held_back: bool = False

    @property
    def num_ops(self) -> int:
        """Operators, RECEIVE and SEND included."""
        return len(self.columns["kind"])


def shift(positions: np.ndarray, base: int | np.ndarray, before: int = NONE, after: int = NO_OP) -> np.ndarray:
    """Positions counted from an earlier begin; `before` says where there is none, which becomes `after`."""
    return np.where(positions == before, after, positions + base)


def neighbour_reads(block: Block, is_forward: bool) -> list[Read]:
    """What a block reads that the neighbour makes from which a pass comes to it."""
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
    is_first = ~is_weight
    place = np.cumsum(is_first) - 1  # of the last operator of the first half that is not behind
    places = np.where(is_weight, np.cumsum(is_weight) - 1 + WEIGHT_HALF, place)
    waits = whole.columns["wait_op"]
    is_waiting = waits != NONE
    waits = np.maximum(waits, 0)
    # An operator of the first half waits for none of the second, but for the one before it.
    in_first = np.where(is_waiting, place[waits], NONE)
    in_first[in_first < 0] = NONE
    waits_within = is_waiting & is_weight[waits]
    in_second = np.where(waits_within, places[waits] - WEIGHT_HALF, NONE)
    across = np.where(is_waiting & ~waits_within, places[waits], NONE)
    halves = []
    for which, wait_op in ((is_first, in_first), (is_weight, in_second)):
        columns = {name: column[which] for name, column in whole.columns.items()} | {"wait_op": wait_op[which]}
        wait_once = whole.wait_once[which] if len(whole.wait_once) else whole.wait_once
        halves.append(replace(whole, columns=columns, wait_once=wait_once, starts={}))
    second = replace(halves[1], wait_half=across[is_weight], receive=None, send=None, is_first_held_back=False)
    return halves[0], second, places


@dataclass(frozen=True)
class PassMaker:
    """Puts the operators of blocks one behind the other.

    Attributes:
        blocks: sections of the model.
        label_maps: for each block, by its id, the labels of the step that its own stand for.
        label: number of a label.
        send_ns: time of handing bytes to another section: (section, bytes) -> ns.
    """

    blocks: Sequence[Block]
    label_maps: Mapping[int, np.ndarray]
    label: Callable[[Label], int]
    send_ns: Callable[[int, int, int], int]

    def layer_of(self, section: int) -> int:
        """The layer of the model that a section is."""
        return section - 1 if 0 < section < len(self.blocks) - 1 else NO_OP

    def make(self, sections: tuple[int, ...], is_forward: bool, once: dict[int, int] | None) -> StagePass:
        """The operators of one pass; the first of them waits for what another stage sends.

        Args:
            sections: of the chunk.
            is_forward: which pass.
            once: where what is done once begins in the first pass; None if this is the first pass.
        """
        order = sections if is_forward else sections[::-1]
        ends = (0, len(self.blocks) - 1)  # a pass begins and ends at the ends of the model, else at another stage
        step = 1 if is_forward else -1
        has_receive = order[0] != ends[0 if is_forward else 1]
        target = order[-1] + step if order[-1] != ends[1 if is_forward else 0] else None
        parts: list[tuple[int, PassArrays, bool]] = []
        for section in order:
            arrays = self.blocks[section].arrays
            if once is None and self.blocks[section].once:
                parts.append((section, arrays.once, True))
            parts.append((section, arrays.forward if is_forward else arrays.backward, False))
        sizes = [len(part.duration_ns) for _, part, _ in parts]
        begins = np.cumsum([has_receive, *sizes])
        placed = [(*part, at) for part, at in zip(parts, begins.tolist(), strict=False)]
        begun = {section: at for section, _, is_once, at in placed if is_once} if once is None else {}
        wait_op = shift(
            np.concatenate([part.wait_op for _, part, _ in parts]), np.repeat(begins[:-1], sizes), NO_OP, NONE
        )
        wait_once = _wait_once(parts, sizes, begun if once is None else once)
        if once is None and len(wait_once):
            # Of two on the communication stream the later one, which is not the one that runs once, ends last.
            wait_op, wait_once = np.where(wait_op == NONE, wait_once, wait_op), wait_once[:0]
        if has_receive and len(wait_op):
            wait_op[0] = max(int(wait_op[0]), 0)
        for _, part, is_once, at in placed:  # communication of what the section before has made
            if not is_once and len(part.kind) and part.kind[0] == OpKind.COLLECTIVE and at:
                wait_op[at - has_receive] = max(int(wait_op[at - has_receive]), at - 1)
        maps = [self.label_maps[id(self.blocks[section])] for section, _, _ in parts]
        columns = {
            "duration_ns": np.concatenate([part.duration_ns for _, part, _ in parts]),
            "kind": np.concatenate([part.kind for _, part, _ in parts]),
            "wait_op": wait_op,
            "label": np.concatenate([names[part.label] for names, (_, part, _) in zip(maps, parts, strict=True)]),
            "layer": np.repeat([self.layer_of(section) for section, _, _ in parts], sizes),
            "is_weight": np.concatenate([part.is_weight for _, part, _ in parts]),
        }
        num_pieces = max(part.piece_ns.shape[1] for _, part, _ in parts)
        if num_pieces:
            columns["piece_ns"] = np.concatenate([_piece_ns(part, num_pieces) for _, part, _ in parts])
        if has_receive:
            columns = self._with_transfer(columns, 0, OpKind.RECEIVE, 0, NONE)
        if target is not None:
            end = int(begins[-1])
            duration_ns = self.send_ns(order[-1], target, self.handed_bytes(target, is_forward))
            columns = self._with_transfer(columns, end, OpKind.SEND, duration_ns, end - 1)
        if len(wait_once):
            wait_once = np.pad(wait_once, (int(has_receive), int(target is not None)), constant_values=NONE)
        _, first, is_once, at = placed[0]
        is_held_back = not at and not is_once and bool(len(first.kind)) and first.kind[0] == OpKind.COLLECTIVE
        starts = {section: at for section, _, is_once, at in placed if not is_once}
        receive = order[0] if has_receive else None
        return StagePass(columns, starts, begun, wait_once, NO_WAITS, receive, target, is_held_back)

    def _with_transfer(
        self, columns: dict[str, np.ndarray], at: int, kind: OpKind, duration_ns: int, wait_op: int
    ) -> dict[str, np.ndarray]:
        values = {
            "duration_ns": duration_ns,
            "kind": kind,
            "wait_op": wait_op,
            "label": self.label(kind.name.lower()),
            "layer": NO_OP,
            "is_weight": False,
            "piece_ns": duration_ns,
        }
        return {name: np.insert(column, at, values[name], axis=0) for name, column in columns.items()}

    def handed_bytes(self, section: int, is_forward: bool) -> int:
        """Hidden states or their gradient: what the section reads of its neighbour, in its smallest type.

        Copies of it in another type (for a norm) are made on the other side.
        """
        return min((read.size_bytes for read in neighbour_reads(self.blocks[section], is_forward)), default=0)


def _piece_ns(part: PassArrays, num_pieces: int) -> np.ndarray:
    has_own = part.piece_ns.shape[1] > 0
    return part.piece_ns if has_own else np.repeat(part.duration_ns[:, None], num_pieces, axis=1)


def _wait_once(parts: Sequence[tuple[int, PassArrays, bool]], sizes: Sequence[int], once: dict[int, int]) -> np.ndarray:
    """What operators wait for of what is done once, from the begin of the first forward pass; empty for nothing."""
    if not once:
        return NO_WAITS
    base = np.repeat([once.get(section, 0) for section, _, _ in parts], sizes)
    wait_once = [np.full(len(part.kind), NO_OP) if is_once else part.wait_once for _, part, is_once in parts]
    return shift(np.concatenate(wait_once), base, NO_OP, NONE)
