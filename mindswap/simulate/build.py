"""Blocks -> Program: the step of a whole model on all its pipeline stages. Pure.

The rules of `backward_prefetch` are those of MindSpore's Ascend backend (acl_stream_assign.cc,
insert_pre_fetch_depend.cc). Positions count kernels in the order in which a stage issues them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.simulate.block_arrays import PassArrays, arrays_of
from mindswap.simulate.blocks import Block, Read, Role, Source, Uses
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


class _Table:
    """Columns of a table that is put together from pieces of several rows, and from single rows behind them.

    A number in a piece stands for all its rows. An array for every little piece would cost more than all the rest.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.pieces: dict[str, list[np.ndarray | int]] = {name: [] for name in names}
        self.sizes: list[int] = []
        self.rows: list[tuple[int, ...]] = []

    def add(self, num_rows: int, **columns: np.ndarray | int) -> None:
        self.sizes.append(num_rows)
        for name, values in columns.items():
            self.pieces[name].append(values)

    def columns(self) -> dict[str, np.ndarray]:
        """Arrays of shape (num_rows,)."""
        rows = np.array(self.rows, np.int64).reshape(-1, len(self.names))
        return {
            name: np.concatenate([*self._joined(self.pieces[name]), rows[:, index]])
            for index, name in enumerate(self.names)
        }

    def _joined(self, pieces: Sequence[np.ndarray | int]) -> Sequence[np.ndarray]:
        if pieces and not isinstance(pieces[0], np.ndarray):
            return [np.repeat(np.array(pieces, np.int64), self.sizes)]
        return pieces  # type: ignore[return-value]


class _Builder:
    """Lays out stage after stage: first the operators of all turns, then the tensors between them."""

    def __init__(self, blocks: Sequence[Block], costs: TransferCosts, layout: StageLayout):
        self.blocks = blocks
        self.costs = costs
        self.layout = layout
        self.labels: dict[str, int] = {}
        self.label_maps: dict[int, np.ndarray] = {}
        self.layers = [NO_OP, *range(len(blocks) - 2), NO_OP]  # layer of each section
        self.position = 0
        self.last_compute = 0  # of the stage that is laid out
        self.ops = _Table(OP_COLUMNS)
        self.tensors = _Table(TENSOR_COLUMNS)
        self.sends: dict[tuple[int, int, bool], int] = {}  # (section handed to, micro-batch, is forward) -> SEND
        self.receives: dict[int, tuple[int, int, bool]] = {}

    def build(self, stages: Sequence[int]) -> Program:
        starts, tables = [0], []
        for stage in stages:
            self.tensors = _Table(TENSOR_COLUMNS)
            self._lay_out(stage)
            tables.append(self.tensors)
            starts.append(self.position)
        columns = self.ops.columns()
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
            parts.append(
                place_memory(table.columns(), ops, starts[stage], starts[stage + 1], stage, self.costs, num_copies)
            )
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

    # -- operators --------------------------------------------------------------------------------

    def _lay_out(self, stage: int) -> None:
        chunks, num_micro_batches = self.layout.chunks[stage], self.layout.num_micro_batches
        places = _Places()
        for turn in order_turns(stage, self.layout.num_stages, len(chunks), num_micro_batches):
            self._run_turn(chunks[turn.chunk], turn, places)
        for chunk, sections in enumerate(chunks):
            for micro_batch in range(num_micro_batches):
                self._add_tensors(chunk, sections, micro_batch, places)
            for section in sections:
                self._add_shared(section, places)
        closing_bytes = self.layout.closing_bytes[stage] if self.layout.closing_bytes else 0
        if closing_bytes:
            # The optimizer has no operator here: the last one of backward stands for its begin.
            last, no_use = self.last_compute, (NO_OP, NO_OP, NO_OP)
            label = self._label("gradients for the optimizer")
            row = (closing_bytes, False, last, *no_use, MemoryKind.GRADIENT, label, NO_OP, NO_OP, 0, 0, False)
            self.tensors.rows.append(row)

    def _run_turn(self, sections: tuple[int, ...], turn: Turn, places: "_Places") -> None:
        order = sections if turn.is_forward else sections[::-1]
        ends = (0, len(self.blocks) - 1)  # a pass begins and ends at the ends of the model, else at another stage
        step = 1 if turn.is_forward else -1
        receive = send = NO_OP
        if order[0] != ends[0 if turn.is_forward else 1]:
            receive = self._add_transfer(OpKind.RECEIVE, 0, NO_OP, turn.micro_batch)
            self.receives[receive] = (order[0], turn.micro_batch, turn.is_forward)
        for section in order:
            if turn.is_forward and section not in places.once:
                places.once[section] = self.position
                if self.blocks[section].once:
                    self._add_pass(section, arrays_of(self.blocks[section]).once, turn.micro_batch)
            places.bases[section, turn.micro_batch, turn.is_forward] = self.position
            self._add_ops(section, turn, receive if section == order[0] else NO_OP, places)
        if order[-1] != ends[1 if turn.is_forward else 0]:
            target = order[-1] + step
            size = self._handed_bytes(target, turn.is_forward)
            send = self._add_transfer(OpKind.SEND, size, self.position - 1, turn.micro_batch)
            self.sends[target, turn.micro_batch, turn.is_forward] = send
        places.borders[turn.chunk, turn.micro_batch, turn.is_forward] = (receive, send)

    def _add_ops(self, section: int, turn: Turn, receive: int, places: "_Places") -> None:
        """The operators of one pass of a section; the first of them waits for what another stage sends."""
        arrays = arrays_of(self.blocks[section])
        part = arrays.forward if turn.is_forward else arrays.backward
        wait_op = _shift(part.wait_op, self.position)
        if turn.is_forward and len(arrays.once.duration_ns):
            # Of two on the communication stream the later one, which is not the one that runs once, ends last.
            wait_op = np.where(wait_op == NO_OP, _shift(part.wait_once, places.once[section]), wait_op)
        wait_op[:1] = np.maximum(wait_op[:1], receive)
        if len(wait_op) and part.kind[0] == OpKind.COLLECTIVE:  # of what the section before has made
            wait_op[0] = max(int(wait_op[0]), self.position - 1)
        self._add_pass(section, part, turn.micro_batch, wait_op)

    def _add_pass(self, section: int, part: PassArrays, micro_batch: int, wait_op: np.ndarray | None = None) -> None:
        """Operators as they are, at the position reached."""
        block = self.blocks[section]
        if id(block) not in self.label_maps:
            labels = arrays_of(block).labels
            self.label_maps[id(block)] = np.array([self._label(name) for name in labels], np.int32)
        self.ops.add(
            len(part.duration_ns),
            duration_ns=part.duration_ns,
            kind=part.kind,
            wait_op=_shift(part.wait_op, self.position) if wait_op is None else wait_op,
            label=self.label_maps[id(block)][part.label],
            layer=self.layers[section],
            micro_batch=micro_batch,
        )
        if part.last_compute is not None:
            self.last_compute = self.position + part.last_compute
        self.position += len(part.duration_ns)

    def _add_transfer(self, kind: OpKind, size_bytes: int, wait_op: int, micro_batch: int) -> int:
        duration = self.costs.send_ns(size_bytes) if kind is OpKind.SEND else 0
        self.ops.add(
            1,
            duration_ns=np.array([duration], np.int64),
            kind=np.array([kind], np.int8),
            wait_op=np.array([wait_op], np.int64),
            label=np.array([self._label(kind.name.lower())], np.int32),
            layer=NO_OP,
            micro_batch=micro_batch,
        )
        self.position += 1
        return self.position - 1

    def _handed_bytes(self, section: int, is_forward: bool) -> int:
        """Hidden states or their gradient: what the section reads of its neighbour, in its smallest type.

        Copies of it in another type (for a norm) are made on the other side.
        """
        return min((read.size_bytes for read in _neighbour_reads(self.blocks[section], is_forward)), default=0)

    def _label(self, name: str) -> int:
        return self.labels.setdefault(name, len(self.labels))

    # -- tensors ----------------------------------------------------------------------------------

    def _add_tensors(self, chunk: int, sections: tuple[int, ...], micro_batch: int, places: "_Places") -> None:
        """Tensors of one micro-batch in one chunk: of its blocks, what other stages send, what its layers share."""
        for index, section in enumerate(sections):
            self._add_own(section, micro_batch, places)
            for is_forward, position in ((True, index + 1), (False, index - 1)):
                other = sections[position] if 0 <= position < len(sections) else None
                _, send = places.borders[chunk, micro_batch, is_forward]
                self._add_handed(section, other, is_forward, micro_batch, places, send)
        for is_forward, section in ((True, sections[0]), (False, sections[-1])):
            receive, _ = places.borders[chunk, micro_batch, is_forward]
            if receive != NO_OP:
                self._add_received(section, is_forward, micro_batch, places, receive)
        self._add_shared_by_layers(sections, micro_batch, places)

    def _add_shared_by_layers(self, sections: tuple[int, ...], micro_batch: int, places: "_Places") -> None:
        """What layers share, from its maker to its last use; where another stage has the maker, from the start."""
        size_bytes: dict[Role, int] = {}
        begins = {
            True: places.bases[sections[0], micro_batch, True],
            False: places.bases[sections[-1], micro_batch, False],
        }
        made: dict[Role, int] = {}
        uses: dict[Role, list[_Positions]] = {}
        for section in sections:
            forward, backward = places.both(section, micro_batch)
            for tensor in arrays_of(self.blocks[section]).handed:
                if tensor.role is not None and tensor.role.is_shared:
                    size_bytes[tensor.role] = tensor.size_bytes
                    made[tensor.role] = tensor.made_at + (forward if tensor.is_forward else backward)
                    uses.setdefault(tensor.role, []).append(_absolute(tensor.uses, forward, backward))
            for read in self.blocks[section].reads:
                if read.role.is_shared:
                    size_bytes[read.role] = read.size_bytes
                    uses.setdefault(read.role, []).append(_absolute(read.uses, forward, backward))
        for role, size in size_bytes.items():
            begin = made.get(role, begins[role.is_forward])
            self._add_tensor(size, role.is_forward, begin, _merge(uses[role]), "shared by layers", NO_OP, micro_batch)

    def _add_own(self, section: int, micro_batch: int, places: "_Places") -> None:
        """Tensors that no other block reads, all at once."""
        block = self.blocks[section]
        own = arrays_of(block).own
        forward, backward = places.both(section, micro_batch)
        self.tensors.add(
            len(own.size_bytes),
            size_bytes=own.size_bytes,
            is_forward=own.is_forward,
            begin=own.made_at + np.where(own.is_forward, forward, backward),
            last_forward=_shift(own.last_forward, forward),
            first_backward=_shift(own.first_backward, backward),
            last_backward=np.where(own.is_final, self.last_compute, _shift(own.last_backward, backward)),
            kind=own.kind,
            label=self.label_maps[id(block)][own.label],
            layer=self.layers[section],
            micro_batch=micro_batch,
            prefetch=own.prefetch,
            num_copies=own.num_copies,
            is_held=own.is_held,
        )

    def _add_shared(self, section: int, places: "_Places") -> None:
        """Tensors that are made once and read by all micro-batches."""
        block = self.blocks[section]
        if not block.once:
            return
        shared, once = arrays_of(block).shared, places.once[section]
        forward, backward = (
            [base for (own, _, way), base in places.bases.items() if own == section and way == is_forward]
            for is_forward in (True, False)
        )
        self.tensors.add(
            len(shared.size_bytes),
            size_bytes=shared.size_bytes,
            is_forward=shared.is_forward,
            begin=shared.made_at + once,
            last_forward=np.maximum(_shift(shared.last_forward, max(forward)), _shift(shared.last_once, once)),
            first_backward=_shift(shared.first_backward, min(backward)),
            last_backward=_shift(shared.last_backward, max(backward)),
            kind=shared.kind,
            label=self.label_maps[id(block)][shared.label],
            layer=self.layers[section],
            micro_batch=0,
            prefetch=shared.prefetch,
            num_copies=shared.num_copies,
            is_held=shared.is_held,
        )

    def _add_handed(self, section: int, other: int | None, is_forward: bool, micro_batch, places, send: int) -> None:
        """Tensors that a block makes in one pass and its neighbour reads, on this stage or the next."""
        forward, backward = places.both(section, micro_batch)
        reads = {}
        if other is not None:
            reads = {read.role: read for read in _neighbour_reads(self.blocks[other], is_forward)}
        for tensor in arrays_of(self.blocks[section]).handed:
            assert tensor.role is not None
            if tensor.role.is_shared or tensor.is_forward != is_forward:
                continue
            uses = [_absolute(tensor.uses, forward, backward)]
            if tensor.role in reads:
                uses.append(_absolute(reads[tensor.role].uses, *places.both(other, micro_batch)))
            elif other is None and send != NO_OP:
                uses.append((send, NO_OP, NO_OP) if is_forward else (NO_OP, send, send))
            begin = tensor.made_at + (forward if is_forward else backward)
            copies = (tensor.prefetch, tensor.num_copies, tensor.is_held)
            self._add_tensor(
                tensor.size_bytes, is_forward, begin, _merge(uses), tensor.label, self.layers[section], micro_batch,
                copies, tensor.is_again,
            )  # fmt: skip

    def _add_received(self, section: int, is_forward: bool, micro_batch: int, places: "_Places", receive: int) -> None:
        for read in _neighbour_reads(self.blocks[section], is_forward):
            uses = _absolute(read.uses, *places.both(section, micro_batch))
            self._add_tensor(read.size_bytes, is_forward, receive, uses, "received", self.layers[section], micro_batch)

    def _add_tensor(
        self, size_bytes: int, is_forward: bool, begin: int, uses: "_Positions", label: str, layer: int,
        micro_batch: int, copies: tuple[int, int, bool] = (0, 0, False), is_again: bool = False,
    ) -> None:  # fmt: skip
        kind = MemoryKind.RECOMPUTED if is_again else MemoryKind.TRANSIENT
        row = (size_bytes, is_forward, begin, *uses, kind, self._label(label), layer, micro_batch, *copies)
        self.tensors.rows.append(row)


class _Places:
    """Where a stage has put what.

    Attributes:
        bases: first position of a section, by (section, micro-batch, is forward).
        borders: RECEIVE and SEND of a turn, by (chunk, micro-batch, is forward).
        once: first position of what a section does once in a step.
    """

    def __init__(self) -> None:
        self.bases: dict[tuple[int, int, bool], int] = {}
        self.borders: dict[tuple[int, int, bool], tuple[int, int]] = {}
        self.once: dict[int, int] = {}

    def both(self, section: int, micro_batch: int) -> tuple[int, int]:
        return self.bases[section, micro_batch, True], self.bases[section, micro_batch, False]


# Last use in forward, first and last use in backward.
_Positions = tuple[int, int, int]


def _shift(positions: np.ndarray, base: int) -> np.ndarray:
    return np.where(positions == NO_OP, NO_OP, positions + base)


def _absolute(uses: Uses, forward: int, backward: int) -> _Positions:
    def at(value: int | None, base: int) -> int:
        return NO_OP if value is None else value + base

    return at(uses.last_forward, forward), at(uses.first_backward, backward), at(uses.last_backward, backward)


def _merge(uses: Sequence[_Positions]) -> _Positions:
    firsts = [first for _, first, _ in uses if first != NO_OP]
    return max(last for last, _, _ in uses), min(firsts, default=NO_OP), max(last for _, _, last in uses)


def _neighbour_reads(block: Block, is_forward: bool) -> list[Read]:
    """What a block reads that the neighbour makes from which a pass comes to it."""
    source = Source.BEFORE if is_forward else Source.BEHIND
    return [read for read in block.reads if read.source is source and read.role.is_forward == is_forward]
