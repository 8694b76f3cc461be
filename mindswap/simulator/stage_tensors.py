"""Tensors of a virtual chunk as columns of a tensor table.

Positions are relative to the passes of the chunk, but absolute for tensors that are computed once in a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mindswap.simulator.layer_block import Block, BlockTensor, Columns, Consumers, Read, Role, tensor_arrays, use_rows
from mindswap.simulator.program import NO_OP, MemoryKind
from mindswap.simulator.stage_pass import MicroBatchGroup, ModelSections, neighbour_reads, shift, tensor_rows

FAR = 2**62  # after every position
ROW_COLUMNS = ("size_bytes", "is_forward", "begin", "label", "layer")
# Columns that do not depend on positions.
FIXED_COLUMNS = ("size_bytes", "is_forward", "kind", "prefetch", "num_copies", "is_held")


@dataclass(frozen=True)
class TensorTable:
    """Builder of the tensor columns of a virtual chunk: segments of a model, and micro-batches with the same passes."""

    model: ModelSections
    sections: tuple[int, ...]
    turns: MicroBatchGroup

    def own(self) -> dict[str, np.ndarray]:
        """Build the columns of tensors that only their own block reads."""
        tables = [self.model.blocks[section].arrays.own for section in self.sections]
        flags = {name: _joined(tables, name) for name in ("is_final", "is_early_later")}
        return self._columns(self.sections, tables) | flags

    def others(self) -> dict[str, np.ndarray]:
        """Build the columns of boundary tensors, received tensors, and tensors that all layers share."""
        handed, elsewhere = self._handed(), self._from_elsewhere()
        return {name: np.concatenate([column, elsewhere[name]]) for name, column in handed.items()}

    def _columns(self, sections: Sequence[int], tables: Sequence[Columns]) -> dict[str, np.ndarray]:
        """Build the columns of tensors of segments, with uses by the producing segment only."""
        sizes = [len(own["label"]) for own in tables]
        forward, backward = _starts(self.turns, sections, sizes)
        made_at = _joined(tables, "made_at")
        again_at = self.turns.placed(made_at + backward)
        uses = self.turns.placed_uses(_joined(tables, "uses"), forward, backward)
        columns = _labelled(self.model, sections, tables)
        begin = np.where(_joined(tables, "is_early"), 0, made_at + forward)
        columns["begin"] = np.where(columns["is_forward"], begin, again_at)
        return columns | dict(zip(("last_forward", "first_backward", "last_backward"), uses, strict=True))

    def _handed(self) -> dict[str, np.ndarray]:
        """Build the columns of boundary tensors: a neighbouring block reads them, on this stage or another one."""
        blocks, sections, turns = self.model.blocks, self.sections, self.turns
        # (block, next block in the pass, pass); the next block is the block itself at the end of the chunk.
        pairs = [
            (section, sections[near] if 0 <= near < len(sections) else section, is_forward)
            for at, section in enumerate(sections)
            for near, is_forward in ((at + 1, True), (at - 1, False))
        ]
        links = [
            links_of(blocks[own], None if other == own else blocks[other], is_forward)
            for own, other, is_forward in pairs
        ]
        columns = self._columns([own for own, _, _ in pairs], links)
        starts = _starts(turns, [other for _, other, _ in pairs], [len(link["is_sent"]) for link in links])
        reads = turns.placed_uses(_joined(links, "reads"), *starts)
        is_sent = _joined(links, "is_sent")
        for part, rows in ((turns.forward, slice(0, 1)), (turns.backward, slice(1, 3))):
            if part.send is not None:  # the last use of a sent tensor is SEND
                is_forward = part is turns.forward
                sent = is_sent & (columns["is_forward"] == is_forward)
                reads[rows, sent] = self._placed(part.num_ops - 1, is_forward)
        last_forward, first, last = reads
        first = np.minimum(_far_if_none(first), _far_if_none(columns["first_backward"]))
        return columns | {
            "last_forward": np.maximum(columns["last_forward"], last_forward),
            "first_backward": np.where(first == FAR, NO_OP, first),
            "last_backward": np.maximum(columns["last_backward"], last),
        }

    def _from_elsewhere(self) -> dict[str, np.ndarray]:
        """Build the columns of received tensors, and of shared tensors with the uses by all segments."""
        model, sections, turns = self.model, self.sections, self.turns
        rows: list[list[int]] = []  # of `ROW_COLUMNS`
        readers: list[tuple[int, int, Consumers]] = []  # (table row, reading segment, its uses)
        for part, section in ((turns.forward, sections[0]), (turns.backward, sections[-1])):
            if part.receive is not None:
                is_forward = part is turns.forward
                for read in neighbour_reads(model.blocks[section], is_forward):
                    readers.append((len(rows), section, read.uses))
                    layer = model.layer_of(section)
                    rows.append([read.size_bytes, is_forward, 0, model.label("received"), layer])
        numbers: dict[Role, int] = {}
        for section in sections:
            for role, entry in shared_by(model.blocks[section]):
                number = numbers.setdefault(role, len(rows))
                is_forward = role.is_forward
                part, first_section = (turns.forward, sections[0]) if is_forward else (turns.backward, sections[-1])
                if number == len(rows):  # a tensor of another stage is live from the start
                    begin = self._placed(part.starts[first_section], is_forward)
                    rows.append([entry.size_bytes, is_forward, begin, model.label("shared by layers"), NO_OP])
                if isinstance(entry, BlockTensor):
                    rows[number][2] = self._placed(part.starts[section] + entry.made_at, is_forward)
                readers.append((number, section, entry.uses))
        starts = _starts(turns, [section for _, section, _ in readers], [1] * len(readers))
        uses = turns.placed_uses(use_rows([uses for _, _, uses in readers]), *starts)
        row_of = np.array([number for number, _, _ in readers], np.int64)
        last_forward, first, last = np.full((3, len(rows)), NO_OP)
        first[:] = FAR
        np.maximum.at(last_forward, row_of, uses[0])
        np.minimum.at(first, row_of, _far_if_none(uses[1]))
        np.maximum.at(last, row_of, uses[2])
        return tensor_rows(
            **dict(zip(ROW_COLUMNS, np.array(rows, np.int64).reshape(-1, len(ROW_COLUMNS)).T, strict=True)),
            last_forward=last_forward,
            first_backward=np.where(first == FAR, NO_OP, first),
            last_backward=last,
            kind=MemoryKind.TRANSIENT,
        )

    def _placed(self, position: int, is_forward: bool) -> int:
        """Translate a position in a pass to the position in the halves if the pass is a split backward."""
        return position if is_forward else int(self.turns.placed(np.array(position)))


def once_columns(
    model: ModelSections, begins: Mapping[int, int], turns: Sequence[MicroBatchGroup]
) -> dict[str, np.ndarray]:
    """Build the columns of tensors that are computed once in a step and read by all micro-batches.

    Args:
        model: segments of the model.
        begins: segment -> absolute position of its once-run operators.
        turns: all groups of micro-batches of the virtual chunk.

    Returns:
        Columns with absolute positions.
    """
    sections = tuple(begins)
    tables = [model.blocks[section].arrays.shared for section in sections]
    sizes = [len(own["label"]) for own in tables]
    once = np.repeat(list(begins.values()), sizes)
    uses = _joined(tables, "uses")
    found = []
    for own in turns:
        starts = _starts(own, sections, sizes)
        last_forward, first, last = own.placed_uses(uses, *starts)
        forward = shift(last_forward, own.begins_of(0).max())
        found.append((forward, own.in_backward(first).min(axis=0), own.in_backward(last).max(axis=0)))
    last_forward, first, last = zip(*found, strict=True)
    columns = _labelled(model, sections, tables)
    return columns | {
        "begin": _joined(tables, "made_at") + once,
        "last_forward": np.maximum.reduce([*last_forward, shift(uses[-1], once)]),
        "first_backward": np.minimum.reduce(first),
        "last_backward": np.maximum.reduce(last),
        "micro_batch": np.zeros(len(once), np.int64),
    }


def _starts(turns: MicroBatchGroup, sections: Sequence[int], sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of segments in forward and in backward, each repeated by its size."""
    parts = (turns.forward, turns.backward)
    forward, backward = np.array([[part.starts[section] for section in sections] for part in parts], np.int64)
    return np.repeat(forward, sizes), np.repeat(backward, sizes)


def _labelled(model: ModelSections, sections: Sequence[int], tables: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Build the columns that do not depend on positions, with label numbers and layers of the step."""
    columns = {name: _joined(tables, name) for name in FIXED_COLUMNS}
    numbers = [own["label"] for own in tables]
    columns["label"] = model.labels_of(sections, numbers)
    columns["layer"] = np.repeat([model.layer_of(section) for section in sections], list(map(len, numbers)))
    return columns


def _joined(tables: Sequence[Columns], name: str) -> np.ndarray:
    return np.concatenate([table[name] for table in tables], axis=-1)


def _far_if_none(positions: np.ndarray) -> np.ndarray:
    return np.where(positions == NO_OP, FAR, positions)


@lru_cache(maxsize=2**14)
def shared_by(block: Block) -> Sequence[tuple[Role, BlockTensor | Read]]:
    """Return the tensors that a block produces for all layers, and its reads of such tensors, with their roles."""
    entries: list[BlockTensor | Read] = [*block.arrays.handed, *block.reads]
    return [(entry.role, entry) for entry in entries if entry.role is not None and entry.role.is_shared]


@lru_cache(maxsize=2**14)
def links_of(block: Block, other: Block | None, is_forward: bool) -> Columns:
    """Build the columns of boundary tensors of a block in one pass.

    Cached, because a planner requests few different pairs many times.

    Args:
        block: producer.
        other: next block in the pass; None if the chunk ends here.
        is_forward: whether the pass is forward.

    Returns:
        Tensor columns, and in addition `reads`, uses by the next block with positions relative to it, shape
        (num_fields, num_tensors), and `is_sent`, whether the chunk ends here, so that another stage may read it.
    """
    arrays = block.arrays
    labels = {label: position for position, label in enumerate(arrays.labels)}
    reads = {read.role: read.uses for read in neighbour_reads(other, is_forward)} if other is not None else {}
    handed = [
        (tensor, reads.get(tensor.role, Consumers()))
        for tensor in arrays.handed
        if tensor.role is not None and not tensor.role.is_shared and tensor.is_forward == is_forward
    ]
    made = tensor_arrays([tensor for tensor, _ in handed], labels.__getitem__)
    return made | {"reads": use_rows([uses for _, uses in handed]), "is_sent": np.full(len(handed), other is None)}
