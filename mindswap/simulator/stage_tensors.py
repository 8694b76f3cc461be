"""Tensors of a virtual chunk as columns of a tensor table.

Positions are relative to the passes of the chunk, but absolute for tensors that are computed once in a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mindswap.simulator.layer_block import Block, BlockTensor, Columns, Consumers, Read, Role, tensor_arrays, use_rows
from mindswap.simulator.program import NO_OP, MemoryKind
from mindswap.simulator.stage_pass import MicroBatchGroup, ModelSegments, neighbour_reads, shift, tensor_rows

FAR = 2**62  # after every position
ROW_COLUMNS = ("size_bytes", "is_forward", "begin", "label", "layer")
# Columns that do not depend on positions.
FIXED_COLUMNS = ("size_bytes", "is_forward", "kind", "prefetch", "num_copies", "is_resident")


@dataclass(frozen=True)
class TensorTable:
    """Builder of the tensor columns of a virtual chunk: segments of a model, and micro-batches with the same passes."""

    model: ModelSegments
    segments: tuple[int, ...]
    groups: MicroBatchGroup

    def own(self) -> dict[str, np.ndarray]:
        """Build the columns of tensors that only their own block reads."""
        tables = [self.model.blocks[segment].arrays.own for segment in self.segments]
        flags = {name: _joined(tables, name) for name in ("is_optimizer_input", "is_live_from_later_starts")}
        return self._columns(self.segments, tables) | flags

    def others(self) -> dict[str, np.ndarray]:
        """Build the columns of boundary tensors, received tensors, and tensors that all layers share."""
        boundary_tensors, elsewhere = self._boundary_columns(), self._received_columns()
        return {name: np.concatenate([column, elsewhere[name]]) for name, column in boundary_tensors.items()}

    def _columns(self, segments: Sequence[int], tables: Sequence[Columns]) -> dict[str, np.ndarray]:
        """Build the columns of tensors of segments, with uses by the producing segment only."""
        sizes = [len(own["label"]) for own in tables]
        forward, backward = _starts(self.groups, segments, sizes)
        producer_op_index = _joined(tables, "producer_op_index")
        again_at = self.groups.placed(producer_op_index + backward)
        uses = self.groups.placed_uses(_joined(tables, "uses"), forward, backward)
        columns = _labelled(self.model, segments, tables)
        begin = np.where(_joined(tables, "is_live_from_start"), 0, producer_op_index + forward)
        columns["begin"] = np.where(columns["is_forward"], begin, again_at)
        return columns | dict(zip(("last_forward", "first_backward", "last_backward"), uses, strict=True))

    def _boundary_columns(self) -> dict[str, np.ndarray]:
        """Build the columns of boundary tensors: a neighbouring block reads them, on this stage or another one."""
        blocks, segments, groups = self.model.blocks, self.segments, self.groups
        # (block, next block in the pass, pass); the next block is the block itself at the end of the chunk.
        pairs = [
            (segment, segments[near] if 0 <= near < len(segments) else segment, is_forward)
            for at, segment in enumerate(segments)
            for near, is_forward in ((at + 1, True), (at - 1, False))
        ]
        links = [
            links_of(blocks[own], None if other == own else blocks[other], is_forward)
            for own, other, is_forward in pairs
        ]
        columns = self._columns([own for own, _, _ in pairs], links)
        starts = _starts(groups, [other for _, other, _ in pairs], [len(link["is_sent"]) for link in links])
        reads = groups.placed_uses(_joined(links, "reads"), *starts)
        is_sent = _joined(links, "is_sent")
        for part, rows in ((groups.forward, slice(0, 1)), (groups.backward, slice(1, 3))):
            if part.send is not None:  # the last use of a sent tensor is SEND
                is_forward = part is groups.forward
                sent = is_sent & (columns["is_forward"] == is_forward)
                reads[rows, sent] = self._placed(part.num_ops - 1, is_forward)
        last_forward, first, last = reads
        first = np.minimum(_far_if_none(first), _far_if_none(columns["first_backward"]))
        return columns | {
            "last_forward": np.maximum(columns["last_forward"], last_forward),
            "first_backward": np.where(first == FAR, NO_OP, first),
            "last_backward": np.maximum(columns["last_backward"], last),
        }

    def _received_columns(self) -> dict[str, np.ndarray]:
        """Build the columns of received tensors, and of shared tensors with the uses by all segments."""
        model, segments, groups = self.model, self.segments, self.groups
        rows: list[list[int]] = []  # of `ROW_COLUMNS`
        readers: list[tuple[int, int, Consumers]] = []  # (table row, reading segment, its uses)
        for part, segment in ((groups.forward, segments[0]), (groups.backward, segments[-1])):
            if part.receive is not None:
                is_forward = part is groups.forward
                for read in neighbour_reads(model.blocks[segment], is_forward):
                    readers.append((len(rows), segment, read.uses))
                    layer = model.layer_of(segment)
                    rows.append([read.size_bytes, is_forward, 0, model.label("received"), layer])
        numbers: dict[Role, int] = {}
        for segment in segments:
            for role, entry in shared_by(model.blocks[segment]):
                number = numbers.setdefault(role, len(rows))
                is_forward = role.is_forward
                part, first_segment = (groups.forward, segments[0]) if is_forward else (groups.backward, segments[-1])
                if number == len(rows):  # a tensor of another stage is live from the start
                    begin = self._placed(part.starts[first_segment], is_forward)
                    rows.append([entry.size_bytes, is_forward, begin, model.label("shared by layers"), NO_OP])
                if isinstance(entry, BlockTensor):
                    rows[number][2] = self._placed(part.starts[segment] + entry.producer_op_index, is_forward)
                readers.append((number, segment, entry.uses))
        starts = _starts(groups, [segment for _, segment, _ in readers], [1] * len(readers))
        uses = groups.placed_uses(use_rows([uses for _, _, uses in readers]), *starts)
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
        return position if is_forward else int(self.groups.placed(np.array(position)))


def per_step_columns(
    model: ModelSegments, begins: Mapping[int, int], groups: Sequence[MicroBatchGroup]
) -> dict[str, np.ndarray]:
    """Build the columns of tensors that are computed once in a step and read by all micro-batches.

    Args:
        model: segments of the model.
        begins: segment -> absolute position of its per-step operators.
        groups: all groups of micro-batches of the virtual chunk.

    Returns:
        Columns with absolute positions.
    """
    segments = tuple(begins)
    tables = [model.blocks[segment].arrays.shared for segment in segments]
    sizes = [len(own["label"]) for own in tables]
    per_step_operators = np.repeat(list(begins.values()), sizes)
    uses = _joined(tables, "uses")
    found = []
    for own in groups:
        starts = _starts(own, segments, sizes)
        last_forward, first, last = own.placed_uses(uses, *starts)
        forward = shift(last_forward, own.begins_of(0).max())
        found.append((forward, own.in_backward(first).min(axis=0), own.in_backward(last).max(axis=0)))
    last_forward, first, last = zip(*found, strict=True)
    columns = _labelled(model, segments, tables)
    return columns | {
        "begin": _joined(tables, "producer_op_index") + per_step_operators,
        "last_forward": np.maximum.reduce([*last_forward, shift(uses[-1], per_step_operators)]),
        "first_backward": np.minimum.reduce(first),
        "last_backward": np.maximum.reduce(last),
        "micro_batch": np.zeros(len(per_step_operators), np.int64),
    }


def _starts(groups: MicroBatchGroup, segments: Sequence[int], sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of segments in forward and in backward, each repeated by its size."""
    parts = (groups.forward, groups.backward)
    forward, backward = np.array([[part.starts[segment] for segment in segments] for part in parts], np.int64)
    return np.repeat(forward, sizes), np.repeat(backward, sizes)


def _labelled(model: ModelSegments, segments: Sequence[int], tables: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Build the columns that do not depend on positions, with label numbers and layers of the step."""
    columns = {name: _joined(tables, name) for name in FIXED_COLUMNS}
    numbers = [own["label"] for own in tables]
    columns["label"] = model.labels_of(segments, numbers)
    columns["layer"] = np.repeat([model.layer_of(segment) for segment in segments], list(map(len, numbers)))
    return columns


def _joined(tables: Sequence[Columns], name: str) -> np.ndarray:
    return np.concatenate([table[name] for table in tables], axis=-1)


def _far_if_none(positions: np.ndarray) -> np.ndarray:
    return np.where(positions == NO_OP, FAR, positions)


@lru_cache(maxsize=2**14)
def shared_by(block: Block) -> Sequence[tuple[Role, BlockTensor | Read]]:
    """Return the tensors that a block produces for all layers, and its reads of such tensors, with their roles."""
    entries: list[BlockTensor | Read] = [*block.arrays.boundary_tensors, *block.reads]
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
    boundary_tensors = [
        (tensor, reads.get(tensor.role, Consumers()))
        for tensor in arrays.boundary_tensors
        if tensor.role is not None and not tensor.role.is_shared and tensor.is_forward == is_forward
    ]
    made = tensor_arrays([tensor for tensor, _ in boundary_tensors], labels.__getitem__)
    return made | {
        "reads": use_rows([uses for _, uses in boundary_tensors]),
        "is_sent": np.full(len(boundary_tensors), other is None),
    }
