"""Blocks -> Program: the step of a whole model on all its pipeline stages. Pure.

The rules of `backward_prefetch` are those of MindSpore's Ascend backend (acl_stream_assign.cc,
insert_pre_fetch_depend.cc). Positions count kernels in the order in which a stage issues them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mindswap.simulate.block_arrays import NONE, PassArrays, arrays_of, links_of, neighbour_reads
from mindswap.simulate.blocks import Block, Role, Uses
from mindswap.simulate.placing import TransferCosts, join, place_memory
from mindswap.simulate.program import NO_OP, MemoryKind, OpKind, Ops, Program
from mindswap.simulate.schedule import Turn, order_turns

__all__ = ["StageLayout", "TransferCosts", "build_program"]


@dataclass(frozen=True)
class StageLayout:
    """Which sections of the model are where.

    Attributes:
        chunks: for each stage, for each of its virtual chunks, the sections in forward order: positions in the
            list of blocks (0 is what is before the layers, the last what is behind them).
        num_micro_batches: micro-batches of one step.
        closing_bytes: for each stage, gradients that are made for the optimizer when backward has ended, beside those
            that are there by then; none if empty.
    """

    chunks: tuple[tuple[tuple[int, ...], ...], ...]
    num_micro_batches: int = 1
    closing_bytes: tuple[int, ...] = ()

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self.chunks)


def build_program(
    blocks: Sequence[Block], costs: TransferCosts, layout: StageLayout | None = None, only_stage: int | None = None
) -> Program:
    """One step.

    Args:
        blocks: what is before the layers, every layer of the model, what is behind them.
        costs: time of moving bytes.
        layout: default is one stage that has all, and one micro-batch.
        only_stage: this stage alone, which then waits for no other: what it receives is there at once.
    """
    layout = layout or StageLayout(((tuple(range(len(blocks))),),))
    return _Builder(blocks, costs, layout).build(range(layout.num_stages) if only_stage is None else (only_stage,))


# Columns of the table of tensors. Positions are absolute; `NO_OP` for no use.
TENSOR_COLUMNS = (
    "size_bytes", "is_forward", "begin", "last_forward", "first_backward", "last_backward", "kind", "label", "layer",
    "micro_batch", "prefetch", "num_copies", "is_held",
)  # fmt: skip
OP_COLUMNS = ("duration_ns", "kind", "wait_op", "label", "layer", "micro_batch")


@dataclass(frozen=True, eq=False)
class _Pass:
    """One pass through the sections of a virtual chunk, to be laid down for every micro-batch.

    Attributes:
        columns: those of `OP_COLUMNS` but the micro-batch; positions count from the begin of the pass.
        starts: where each section begins.
        once: where what a section does once in a step begins; only in the first forward pass.
        wait_once: what an operator waits for where `columns` has nothing, from the begin of the first forward pass.
        receive: the section for which another stage hands something over; None for none.
        send: the section of another stage to which something is handed over.
        is_first_held_back: the pass begins with communication of what was computed just before it.
    """

    columns: dict[str, np.ndarray]
    starts: dict[int, int]
    once: dict[int, int]
    wait_once: np.ndarray
    receive: int | None
    send: int | None
    is_first_held_back: bool

    @property
    def num_ops(self) -> int:
        """Operators, RECEIVE and SEND included."""
        return len(self.columns["kind"])


@dataclass(frozen=True, eq=False)
class _Turns:
    """Micro-batches of a virtual chunk that are laid down alike: their passes and tensors, and where they begin."""

    forward: _Pass
    backward: _Pass
    own: dict[str, np.ndarray]  # tensors that only one block reads
    others: dict[str, np.ndarray]
    forward_begin: list[int] = field(default_factory=list)
    backward_begin: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Chunk:
    """A virtual chunk: its first micro-batch, which does what is done once, and the others."""

    sections: tuple[int, ...]
    first: _Turns
    later: _Turns

    def of(self, micro_batch: int) -> _Turns:
        return self.later if micro_batch else self.first


class _Builder:
    """Lays out stage after stage: first the operators of all turns, then the tensors between them.

    What a chunk does is put together once, and then laid down for each micro-batch.
    """

    def __init__(self, blocks: Sequence[Block], costs: TransferCosts, layout: StageLayout):
        self.blocks = blocks
        self.costs = costs
        self.layout = layout
        self.labels: dict[str, int] = {}
        self.label_maps: dict[int, np.ndarray] = {}
        self.layers = [NO_OP, *range(len(blocks) - 2), NO_OP]  # layer of each section
        self.position = 0
        self.last_compute = 0  # of the stage that is laid out
        self.ops: dict[str, list[np.ndarray]] = {name: [] for name in OP_COLUMNS}
        self.sends: dict[tuple[int, int, bool], int] = {}  # (section handed to, micro-batch, is forward) -> SEND
        self.receives: dict[int, tuple[int, int, bool]] = {}

    def build(self, stages: Sequence[int]) -> Program:
        starts, tables = [0], []
        for stage in stages:
            tables.append(self._lay_out(stage))
            starts.append(self.position)
        columns = {name: np.concatenate(pieces) for name, pieces in self.ops.items()}
        ops = Ops(
            columns["duration_ns"],
            columns["kind"].astype(np.int8),
            columns["wait_op"],
            *(columns[name].astype(np.int32) for name in ("layer", "micro_batch", "label")),
        )
        for position, key in self.receives.items():
            ops.wait_op[position] = self.sends.get(key, NO_OP)
        num_copies, parts = 0, []
        for stage, table in enumerate(tables):
            parts.append(place_memory(table, ops, starts[stage], starts[stage + 1], stage, self.costs, num_copies))
            num_copies += len(parts[-1][0])
        copies, intervals = zip(*parts, strict=True)
        return Program(
            np.array(starts, np.int64),
            ops,
            join(copies),
            join(intervals),
            tuple(self.labels),
            self.costs.contended_permille,
        )

    def _lay_out(self, stage: int) -> dict[str, np.ndarray]:
        """Adds the operators of a stage; its tensors."""
        chunks, num_micro_batches = self.layout.chunks[stage], self.layout.num_micro_batches
        found = [self._chunk(sections) for sections in chunks]
        for turn in order_turns(stage, self.layout.num_stages, len(chunks), num_micro_batches):
            self._run_turn(found[turn.chunk], turn)
        tables = []
        for chunk in found:
            tables += [
                self._laid_down(chunk.first.own, chunk.first, 0),
                self._laid_down(chunk.later.own, chunk.later, 1),
            ]
            once = [section for section in chunk.sections if self.blocks[section].once]
            tables += [self._shared(once, chunk)] if once else []
        for chunk in found:
            tables += [
                self._laid_down(chunk.first.others, chunk.first, 0),
                self._laid_down(chunk.later.others, chunk.later, 1),
            ]
        closing_bytes = self.layout.closing_bytes[stage] if self.layout.closing_bytes else 0
        if closing_bytes:
            # The optimizer has no operator here: the last one of backward stands for its begin.
            last, no_use = self.last_compute, (NO_OP, NO_OP, NO_OP)
            label = self._label("gradients for the optimizer")
            row = (closing_bytes, False, last, *no_use, MemoryKind.GRADIENT, label, NO_OP, NO_OP, 0, 0, False)
            tables.append({name: np.array([value]) for name, value in zip(TENSOR_COLUMNS, row, strict=True)})
        return {name: np.concatenate([table[name] for table in tables]) for name in TENSOR_COLUMNS}

    def _run_turn(self, chunk: _Chunk, turn: Turn) -> None:
        own = chunk.of(turn.micro_batch)
        part, begins = (own.forward, own.forward_begin) if turn.is_forward else (own.backward, own.backward_begin)
        assert len(begins) == max(0, turn.micro_batch - 1)  # the micro-batches of a chunk come in order
        begins.append(self.position)
        wait_op = _shift(part.columns["wait_op"], self.position)
        if len(part.wait_once):
            wait_op = np.where(wait_op == NO_OP, _shift(part.wait_once, chunk.first.forward_begin[0]), wait_op)
        if part.is_first_held_back:
            wait_op[0] = max(int(wait_op[0]), self.position - 1)
        self.ops["wait_op"].append(wait_op)
        for name in ("duration_ns", "kind", "label", "layer"):
            self.ops[name].append(part.columns[name])
        self.ops["micro_batch"].append(np.full(part.num_ops, turn.micro_batch))
        if part.receive is not None:
            self.receives[self.position] = (part.receive, turn.micro_batch, turn.is_forward)
        compute = np.flatnonzero(part.columns["kind"] < OpKind.COLLECTIVE)
        if len(compute):
            self.last_compute = self.position + int(compute[-1])
        self.position += part.num_ops
        if part.send is not None:
            self.sends[part.send, turn.micro_batch, turn.is_forward] = self.position - 1

    # -- operators --------------------------------------------------------------------------------

    def _chunk(self, sections: tuple[int, ...]) -> _Chunk:
        for section in sections:
            block = self.blocks[section]
            if id(block) not in self.label_maps:
                names = arrays_of(block).labels
                self.label_maps[id(block)] = np.array([self._label(name) for name in names], np.int32)
        backward = self._pass(sections, False, {})
        first = self._pass(sections, True, None)
        is_alone = self.layout.num_micro_batches == 1
        later = self._pass(sections, True, first.once) if first.once and not is_alone else first
        found = [self._turns(sections, forward, backward) for forward in dict.fromkeys((first, later))]
        return _Chunk(sections, found[0], replace(found[-1], forward_begin=[], backward_begin=[]))

    def _turns(self, sections: tuple[int, ...], forward: _Pass, backward: _Pass) -> _Turns:
        rows = np.array(self._others(sections, forward, backward), np.int64).reshape(-1, len(TENSOR_COLUMNS))
        handed = self._handed(sections, forward, backward)
        others = {name: np.concatenate([handed[name], rows[:, at]]) for at, name in enumerate(TENSOR_COLUMNS)}
        return _Turns(forward, backward, self._own(sections, forward, backward), others)

    def _pass(self, sections: tuple[int, ...], is_forward: bool, once: dict[int, int] | None) -> _Pass:
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
            arrays = arrays_of(self.blocks[section])
            if once is None and self.blocks[section].once:
                parts.append((section, arrays.once, True))
            parts.append((section, arrays.forward if is_forward else arrays.backward, False))
        sizes = [len(part.duration_ns) for _, part, _ in parts]
        begins = np.cumsum([has_receive, *sizes])
        placed = [(*part, at) for part, at in zip(parts, begins.tolist(), strict=False)]
        begun = {section: at for section, _, is_once, at in placed if is_once} if once is None else {}
        wait_op = _shift(
            np.concatenate([part.wait_op for _, part, _ in parts]), np.repeat(begins[:-1], sizes), NO_OP, NONE
        )
        wait_once = self._wait_once(parts, sizes, begun if once is None else once)
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
            "layer": np.repeat([self.layers[section] for section, _, _ in parts], sizes),
        }
        if has_receive:
            columns = self._with_transfer(columns, 0, OpKind.RECEIVE, 0, NONE)
        if target is not None:
            end = int(begins[-1])
            size_bytes = self._handed_bytes(target, is_forward)
            columns = self._with_transfer(columns, end, OpKind.SEND, size_bytes, end - 1)
        if len(wait_once):
            wait_once = np.pad(wait_once, (int(has_receive), int(target is not None)), constant_values=NONE)
        _, first, is_once, at = placed[0]
        is_held_back = not at and not is_once and bool(len(first.kind)) and first.kind[0] == OpKind.COLLECTIVE
        starts = {section: at for section, _, is_once, at in placed if not is_once}
        return _Pass(columns, starts, begun, wait_once, order[0] if has_receive else None, target, is_held_back)

    def _wait_once(
        self, parts: Sequence[tuple[int, PassArrays, bool]], sizes: Sequence[int], once: dict[int, int]
    ) -> np.ndarray:
        """What operators wait for of what is done once, from the begin of the first forward pass; empty for nothing."""
        if not once:
            return np.empty(0, np.int64)
        base = np.repeat([once.get(section, 0) for section, _, _ in parts], sizes)
        wait_once = [np.full(len(part.kind), NO_OP) if is_once else part.wait_once for _, part, is_once in parts]
        return _shift(np.concatenate(wait_once), base, NO_OP, NONE)

    def _with_transfer(
        self, columns: dict[str, np.ndarray], at: int, kind: OpKind, size_bytes: int, wait_op: int
    ) -> dict[str, np.ndarray]:
        duration = self.costs.send_ns(size_bytes) if kind is OpKind.SEND else 0
        values = {
            "duration_ns": duration,
            "kind": kind,
            "wait_op": wait_op,
            "label": self._label(kind.name.lower()),
            "layer": NO_OP,
        }
        return {name: np.insert(column, at, values[name]) for name, column in columns.items()}

    def _handed_bytes(self, section: int, is_forward: bool) -> int:
        """Hidden states or their gradient: what the section reads of its neighbour, in its smallest type.

        Copies of it in another type (for a norm) are made on the other side.
        """
        return min((read.size_bytes for read in neighbour_reads(self.blocks[section], is_forward)), default=0)

    def _label(self, name: str) -> int:
        return self.labels.setdefault(name, len(self.labels))

    # -- tensors ----------------------------------------------------------------------------------

    def _own(self, sections: tuple[int, ...], forward: _Pass, backward: _Pass) -> dict[str, np.ndarray]:
        """Tensors that no other block reads; positions count from the begin of the pass."""
        tables = [arrays_of(self.blocks[section]).own for section in sections]
        sizes = [len(own.size_bytes) for own in tables]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(own, name) for own in tables])

        is_forward = joined("is_forward")
        at = {
            True: np.repeat([forward.starts[section] for section in sections], sizes),
            False: np.repeat([backward.starts[section] for section in sections], sizes),
        }
        maps = [self.label_maps[id(self.blocks[section])] for section in sections]
        return {
            "size_bytes": joined("size_bytes"),
            "is_forward": is_forward,
            "begin": joined("made_at") + np.where(is_forward, at[True], at[False]),
            "last_forward": _shift(joined("last_forward"), at[True], NO_OP, NONE),
            "first_backward": _shift(joined("first_backward"), at[False], NO_OP, NONE),
            "last_backward": _shift(joined("last_backward"), at[False], NO_OP, NONE),
            "kind": joined("kind"),
            "label": np.concatenate([labels[own.label] for labels, own in zip(maps, tables, strict=True)]),
            "layer": np.repeat([self.layers[section] for section in sections], sizes),
            "prefetch": joined("prefetch"),
            "num_copies": joined("num_copies"),
            "is_held": joined("is_held"),
            "is_final": joined("is_final"),
        }

    def _shared(self, sections: Sequence[int], chunk: _Chunk) -> dict[str, np.ndarray]:
        """Tensors that are made once and read by all micro-batches, of sections that make some."""
        shared = [arrays_of(self.blocks[section]).shared for section in sections]
        sizes = [len(tensors.size_bytes) for tensors in shared]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(tensors, name) for tensors in shared])

        def starts(is_forward: bool, base: Callable[[Sequence[int]], int]) -> np.ndarray:
            """Where the first or the last pass of any micro-batch begins."""
            parts = [
                (base(begins), (turns.forward if is_forward else turns.backward).starts)
                for turns in (chunk.first, chunk.later)
                if (begins := turns.forward_begin if is_forward else turns.backward_begin)
            ]
            return np.repeat([base([begin + at[section] for begin, at in parts]) for section in sections], sizes)

        once = np.repeat([chunk.first.forward.once[section] for section in sections], sizes)
        once = once + chunk.first.forward_begin[0]
        last_forward = _shift(joined("last_forward"), starts(True, max), NO_OP)
        names = ("size_bytes", "is_forward", "kind", "prefetch", "num_copies", "is_held")
        maps = [self.label_maps[id(self.blocks[section])] for section in sections]
        return {
            **{name: joined(name) for name in names},
            "begin": joined("made_at") + once,
            "last_forward": np.maximum(last_forward, _shift(joined("last_once"), once, NO_OP)),
            "first_backward": _shift(joined("first_backward"), starts(False, min), NO_OP),
            "last_backward": _shift(joined("last_backward"), starts(False, max), NO_OP),
            "label": np.concatenate([labels[own.label] for labels, own in zip(maps, shared, strict=True)]),
            "layer": np.repeat([self.layers[section] for section in sections], sizes),
            "micro_batch": np.zeros(sum(sizes), np.int64),
        }

    def _laid_down(
        self, tensors: dict[str, np.ndarray], turns: _Turns, first_micro_batch: int
    ) -> dict[str, np.ndarray]:
        """The tensors of every micro-batch of a kind, one after the other, at the positions of its passes."""
        num = len(turns.forward_begin)
        micro_batches = first_micro_batch + np.arange(num)
        forward, backward = (
            np.array(begins, np.int64)[:, None] for begins in (turns.forward_begin, turns.backward_begin)
        )
        is_forward = tensors["is_forward"].astype(bool)
        is_final = tensors.get("is_final", np.zeros_like(is_forward))
        placed = {
            "begin": tensors["begin"] + np.where(is_forward, forward, backward),
            "last_forward": _shift(tensors["last_forward"], forward),
            "first_backward": _shift(tensors["first_backward"], backward),
            "last_backward": np.where(is_final, self.last_compute, _shift(tensors["last_backward"], backward)),
            "micro_batch": np.broadcast_to(micro_batches[:, None], (num, len(is_forward))),
        }
        table = {name: np.tile(column, num) for name, column in tensors.items() if name not in placed}
        return table | {name: column.ravel() for name, column in placed.items()}

    def _handed(self, sections: tuple[int, ...], forward: _Pass, backward: _Pass) -> dict[str, np.ndarray]:
        """Tensors that a block makes in one pass and its neighbour reads, on this stage or the next."""
        links, own, others, is_forward = [], [], [], []
        for index, section in enumerate(sections):
            for part, position in ((forward, index + 1), (backward, index - 1)):
                other = sections[position] if 0 <= position < len(sections) else None
                neighbour = None if other is None else self.blocks[other]
                links.append(links_of(self.blocks[section], neighbour, part is forward))
                own.append(section)
                others.append(section if other is None else other)
                is_forward.append(part is forward)
        sizes = [len(found) for found in links]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(found, name) for found in links], axis=-1)

        def starts(of: list[int], part: _Pass) -> np.ndarray:
            return np.repeat([part.starts[section] for section in of], sizes)

        passes = np.repeat(is_forward, sizes)
        uses = joined("uses")
        # What another stage reads is read when it is sent.
        for turn, part, rows in ((True, forward, (0,)), (False, backward, (1, 2))):
            if part.send is not None:
                is_sent = joined("is_sent") & (passes == turn)
                for row in rows:
                    send = part.num_ops - 1 - part.starts[sections[-1] if turn else sections[0]]
                    uses[1, row, is_sent] = send
        last_forward, *in_backward = (
            np.stack([_shift(uses[0, row], starts(own, part), NONE, NONE),
                      _shift(uses[1, row], starts(others, part), NONE, NONE)])
            for row, part in enumerate((forward, backward, backward))
        )  # fmt: skip
        first_backward, last_backward = in_backward
        first = np.where(first_backward == NONE, -NONE, first_backward).min(axis=0)
        maps = [self.label_maps[id(self.blocks[section])] for section in own]
        return {
            "size_bytes": joined("size_bytes"),
            "is_forward": passes.astype(np.int64),
            "begin": joined("made_at") + np.where(passes, starts(own, forward), starts(own, backward)),
            "last_forward": last_forward.max(axis=0),
            "first_backward": np.where(first == -NONE, NONE, first),
            "last_backward": last_backward.max(axis=0),
            "kind": joined("kind"),
            "label": np.concatenate([labels[found.label] for labels, found in zip(maps, links, strict=True)]),
            "layer": np.repeat([self.layers[section] for section in own], sizes),
            "micro_batch": np.zeros(sum(sizes), np.int64),
            "prefetch": joined("prefetch"),
            "num_copies": joined("num_copies"),
            "is_held": joined("is_held"),
        }

    def _others(self, sections: tuple[int, ...], forward: _Pass, backward: _Pass) -> list[tuple[int, ...]]:
        """Rows of what other stages send, and what the layers share."""
        sizes: dict[Role, int] = {}  # of what layers share
        made: dict[Role, int] = {}  # where it is made, if that is on this stage
        shared_uses: dict[Role, list[_Positions]] = {}
        for section in sections:
            starts = forward.starts[section], backward.starts[section]
            for tensor in arrays_of(self.blocks[section]).handed:
                if tensor.role is not None and tensor.role.is_shared:
                    sizes[tensor.role] = tensor.size_bytes
                    made[tensor.role] = tensor.made_at + starts[not tensor.is_forward]
                    shared_uses.setdefault(tensor.role, []).append(_relative(tensor.uses, *starts))
            for read in self.blocks[section].reads:
                if read.role.is_shared:
                    sizes[read.role] = read.size_bytes
                    shared_uses.setdefault(read.role, []).append(_relative(read.uses, *starts))
        rows = []
        for part, section in ((forward, sections[0]), (backward, sections[-1])):
            if part.receive is not None:
                is_forward = part is forward
                for read in neighbour_reads(self.blocks[section], is_forward):
                    uses = _relative(read.uses, forward.starts[section], backward.starts[section])
                    rows.append(self._row(read.size_bytes, is_forward, 0, uses, "received", self.layers[section]))
        first = {True: forward.starts[sections[0]], False: backward.starts[sections[-1]]}
        for role, size_bytes in sizes.items():
            begin = made.get(role, first[role.is_forward])  # what another stage makes is there from the start
            uses = _merge(shared_uses[role])
            rows.append(self._row(size_bytes, role.is_forward, begin, uses, "shared by layers", NO_OP))
        return rows

    def _row(
        self, size_bytes: int, is_forward: bool, begin: int, uses: "_Positions", label: str, layer: int
    ) -> tuple[int, ...]:
        kind = MemoryKind.TRANSIENT
        return (size_bytes, is_forward, begin, *uses, kind, self._label(label), layer, 0, 0, 0, False)


# Last use in forward, first and last use in backward.
_Positions = tuple[int, int, int]


def _shift(positions: np.ndarray, base: int | np.ndarray, before: int = NONE, after: int = NO_OP) -> np.ndarray:
    """Positions counted from an earlier begin; `before` says where there is none, which becomes `after`."""
    return np.where(positions == before, after, positions + base)


def _relative(uses: Uses, forward: int, backward: int) -> _Positions:
    def at(value: int | None, base: int) -> int:
        return NONE if value is None else value + base

    return at(uses.last_forward, forward), at(uses.first_backward, backward), at(uses.last_backward, backward)


def _merge(uses: Sequence[_Positions]) -> _Positions:
    firsts = [first for _, first, _ in uses if first != NONE]
    return max(last for last, _, _ in uses), min(firsts, default=NONE), max(last for _, _, last in uses)
