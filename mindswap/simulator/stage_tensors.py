"""Tensors of a virtual chunk as a table.

Positions are relative to the passes of the chunk, but absolute for tensors that are computed once in a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mindswap.simulator.layer_block import (
    Block,
    BlockTensor,
    Consumers,
    Read,
    Role,
    TensorColumns,
    tensor_columns,
    use_rows,
)
from mindswap.simulator.memory_parts import MemoryPart, Phase, TensorRole
from mindswap.simulator.micro_batch_group import MicroBatchGroup
from mindswap.simulator.program import NO_OP, MemoryKind, join
from mindswap.simulator.stage_pass import ModelSegments, StagePass, neighbour_reads, shift
from mindswap.simulator.tensor_lifetimes import PassTensors, StageTensors

FAR = 2**62  # after every position


class _Link(NamedTuple):
    """A segment, and the next one in a pass; both are the same where the chunk ends."""

    segment: int
    next_segment: int
    is_forward: bool


class _SharedRead(NamedTuple):
    """Reads of a tensor by one segment."""

    row: int  # of the table of tensors
    segment: int
    uses: Consumers


class _SharedTensor(NamedTuple):
    """A received tensor, or one that all layers share: fields of `PassTensors`."""

    size_bytes: int
    is_forward: bool
    begin: int
    label: int
    layer: int
    part: int


class BoundaryColumns(NamedTuple):
    """Boundary tensors of a block in one pass, with their uses by the next block."""

    tensors: TensorColumns
    reads: np.ndarray  # int64, shape (num_fields of `Consumers`, num_tensors), positions relative to the next block
    is_sent: np.ndarray  # bool, shape (num_tensors,): the chunk ends here, so another stage may read the tensor


@dataclass(frozen=True)
class ChunkTensors:
    """Builder of the tensors of a virtual chunk.

    Args:
        model: segments of the model.
        segments: segments of the chunk.
        group: micro-batches with the same passes.
    """

    model: ModelSegments
    segments: tuple[int, ...]
    group: MicroBatchGroup

    def local(self) -> PassTensors:
        """Build the table of tensors that only their own block reads."""
        return self._tensors(
            self.segments, [self.model.blocks[segment].arrays.local_tensors for segment in self.segments]
        )

    def shared(self) -> PassTensors:
        """Build the table of boundary tensors, received tensors, and tensors that all layers share."""
        return join([self._boundary(), self._received()])

    def _tensors(self, segments: Sequence[int], tables: Sequence[TensorColumns]) -> PassTensors:
        """Build the table of tensors of segments, with uses by the producing segment only."""
        forward, backward = _starts(self.group, segments, [len(table) for table in tables])
        index = np.concatenate([table.producer_op_index for table in tables])
        is_forward = np.concatenate([table.is_forward for table in tables])
        is_live_from_start = np.concatenate([table.is_live_from_start for table in tables])
        begin_forward = np.where(is_live_from_start, 0, index + forward)
        uses = np.concatenate([table.uses for table in tables], axis=-1)
        last_forward, first_backward, last_backward = self.group.uses_in_pass(uses, forward, backward)
        return PassTensors(
            size_bytes=np.concatenate([table.size_bytes for table in tables]),
            is_forward=is_forward,
            begin=np.where(is_forward, begin_forward, self.group.in_halves(index + backward)),
            last_forward=last_forward,
            first_backward=first_backward,
            last_backward=last_backward,
            kind=np.concatenate([table.kind for table in tables]),
            part=np.concatenate([table.part for table in tables]),
            label=self.model.labels_of(segments, [table.label for table in tables]),
            layer=_layers(self.model, segments, tables),
            prefetch=np.concatenate([table.prefetch for table in tables]),
            num_copies=np.concatenate([table.num_copies for table in tables]),
            is_resident=np.concatenate([table.is_resident for table in tables]),
            is_optimizer_input=np.concatenate([table.is_optimizer_input for table in tables]),
            is_live_from_later_starts=np.concatenate([table.is_live_from_later_starts for table in tables]),
        )

    def _boundary(self) -> PassTensors:
        """Build the table of boundary tensors: a neighbouring block reads them, on this stage or another one."""
        group, links = self.group, self._links()
        columns = [self._boundary_columns(link) for link in links]
        tensors = self._tensors([link.segment for link in links], [table.tensors for table in columns])
        starts = _starts(group, [link.next_segment for link in links], [len(table.is_sent) for table in columns])
        reads = group.uses_in_pass(np.concatenate([table.reads for table in columns], axis=-1), *starts)
        is_sent = np.concatenate([table.is_sent for table in columns])
        for stage_pass, rows in ((group.forward, slice(0, 1)), (group.backward, slice(1, 3))):
            if stage_pass.send is not None:  # the last use of a sent tensor is SEND
                is_forward = stage_pass is group.forward
                sent = is_sent & (tensors.is_forward == is_forward)
                reads[rows, sent] = self._position_in_pass(stage_pass.num_ops - 1, is_forward)
        last_forward, first_backward, last_backward = reads
        first_backward = np.minimum(_far_if_none(first_backward), _far_if_none(tensors.first_backward))
        return replace(
            tensors,
            last_forward=np.maximum(tensors.last_forward, last_forward),
            first_backward=np.where(first_backward == FAR, NO_OP, first_backward),
            last_backward=np.maximum(tensors.last_backward, last_backward),
            is_optimizer_input=np.zeros(len(tensors), bool),
            is_live_from_later_starts=np.zeros(len(tensors), bool),
        )

    def _links(self) -> list[_Link]:
        """List each segment of the chunk with the next one, in forward and in backward."""
        segments, links = self.segments, []
        for position, segment in enumerate(segments):
            for neighbour, is_forward in ((position + 1, True), (position - 1, False)):
                next_segment = segments[neighbour] if 0 <= neighbour < len(segments) else segment
                links.append(_Link(segment, next_segment, is_forward))
        return links

    def _boundary_columns(self, link: _Link) -> BoundaryColumns:
        blocks = self.model.blocks
        next_block = None if link.next_segment == link.segment else blocks[link.next_segment]
        return boundary_columns(blocks[link.segment], next_block, link.is_forward)

    def _received(self) -> PassTensors:
        """Build the table of received tensors, and of shared tensors with the uses by all segments."""
        model, segments, group = self.model, self.segments, self.group
        rows: list[_SharedTensor] = []
        reads: list[_SharedRead] = []
        for stage_pass, segment in ((group.forward, segments[0]), (group.backward, segments[-1])):
            if stage_pass.receive is not None:
                is_forward = stage_pass is group.forward
                for read in neighbour_reads(model.blocks[segment], is_forward):
                    reads.append(_SharedRead(len(rows), segment, read.uses))
                    label, layer = model.label("received"), model.layer_of(segment)
                    part = MemoryPart.COMMUNICATION
                    rows.append(_SharedTensor(read.size_bytes, is_forward, 0, label, layer, part))
        row_of_role: dict[Role, int] = {}
        for segment in segments:
            for role, tensor in shared_by(model.blocks[segment]):
                row = row_of_role.setdefault(role, len(rows))
                stage_pass, first_segment = self._pass_of(role)
                if row == len(rows):  # a tensor of another stage is live from the start
                    begin = self._position_in_pass(stage_pass.starts[first_segment], role.is_forward)
                    label = model.label("shared by layers")
                    part = _part_of_shared(tensor, role)
                    rows.append(_SharedTensor(tensor.size_bytes, role.is_forward, begin, label, NO_OP, part))
                if isinstance(tensor, BlockTensor):
                    position = stage_pass.starts[segment] + tensor.producer_op_index
                    begin = self._position_in_pass(position, role.is_forward)
                    rows[row] = rows[row]._replace(begin=begin, part=tensor.part)
                reads.append(_SharedRead(row, segment, tensor.uses))
        return self._with_reads(rows, reads)

    def _with_reads(self, rows: Sequence[_SharedTensor], reads: Sequence[_SharedRead]) -> PassTensors:
        """Build the table of tensors from their rows and from the reads of each."""
        starts = _starts(self.group, [read.segment for read in reads], [1] * len(reads))
        uses = self.group.uses_in_pass(use_rows([read.uses for read in reads]), *starts)
        row_of_read = np.array([read.row for read in reads], np.int64)
        last_forward, first_backward, last_backward = np.full((3, len(rows)), NO_OP)
        first_backward[:] = FAR
        np.maximum.at(last_forward, row_of_read, uses[0])
        np.minimum.at(first_backward, row_of_read, _far_if_none(uses[1]))
        np.maximum.at(last_backward, row_of_read, uses[2])
        columns = np.array(rows, np.int64).reshape(-1, len(_SharedTensor._fields)).T
        return PassTensors.filled(
            **dict(zip(_SharedTensor._fields, columns, strict=True)),
            last_forward=last_forward,
            first_backward=np.where(first_backward == FAR, NO_OP, first_backward),
            last_backward=last_backward,
            kind=MemoryKind.TRANSIENT,
        )

    def _pass_of(self, role: Role) -> tuple[StagePass, int]:
        """Return the pass that produces a tensor, and its first segment."""
        if role.is_forward:
            return self.group.forward, self.segments[0]
        return self.group.backward, self.segments[-1]

    def _position_in_pass(self, position: int, is_forward: bool) -> int:
        """Translate a position in a pass to the position in the halves if the pass is a split backward."""
        return position if is_forward else int(self.group.in_halves(np.array(position)))


def per_step_tensors(
    model: ModelSegments, begins: Mapping[int, int], groups: Sequence[MicroBatchGroup]
) -> StageTensors:
    """Build the table of tensors that are computed once in a step and read by all micro-batches.

    Args:
        model: segments of the model.
        begins: segment -> absolute position of its per-step operators.
        groups: all groups of micro-batches of the virtual chunk.
    """
    segments = tuple(begins)
    tables = [model.blocks[segment].arrays.shared for segment in segments]
    sizes = [len(table) for table in tables]
    start = np.repeat(list(begins.values()), sizes)
    uses = np.concatenate([table.uses for table in tables], axis=-1)
    last_forward = [shift(uses[-1], start)]
    first_backward, last_backward = [], []
    for group in groups:
        forward, first, last = group.uses_in_pass(uses, *_starts(group, segments, sizes))
        last_forward.append(shift(forward, group.begins_of(0).max()))
        first_backward.append(group.in_backward(first).min(axis=0))
        last_backward.append(group.in_backward(last).max(axis=0))
    return StageTensors(
        size_bytes=np.concatenate([table.size_bytes for table in tables]),
        is_forward=np.concatenate([table.is_forward for table in tables]),
        begin=np.concatenate([table.producer_op_index for table in tables]) + start,
        last_forward=np.maximum.reduce(last_forward),
        first_backward=np.minimum.reduce(first_backward),
        last_backward=np.maximum.reduce(last_backward),
        kind=np.concatenate([table.kind for table in tables]),
        part=np.concatenate([table.part for table in tables]),
        label=model.labels_of(segments, [table.label for table in tables]),
        layer=_layers(model, segments, tables),
        prefetch=np.concatenate([table.prefetch for table in tables]),
        num_copies=np.concatenate([table.num_copies for table in tables]),
        is_resident=np.concatenate([table.is_resident for table in tables]),
        is_optimizer_input=np.zeros(len(start), bool),
        micro_batch=np.zeros(len(start), np.int64),
    )


def _starts(group: MicroBatchGroup, segments: Sequence[int], sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the start of segments in forward and in backward, each repeated by its size."""
    passes = (group.forward, group.backward)
    starts = [[stage_pass.starts[segment] for segment in segments] for stage_pass in passes]
    forward, backward = np.array(starts, np.int64)
    return np.repeat(forward, sizes), np.repeat(backward, sizes)


def _layers(model: ModelSegments, segments: Sequence[int], tables: Sequence[TensorColumns]) -> np.ndarray:
    """Return the layer of each tensor of some segments."""
    first = np.repeat([model.layer_of(segment) for segment in segments], [len(table) for table in tables])
    return first + np.concatenate([table.layer_offset for table in tables])


def _part_of_shared(tensor: BlockTensor | Read, role: Role) -> MemoryPart:
    """Return the part of a tensor that all layers share; of one that another stage produces, only the pass is known."""
    if isinstance(tensor, BlockTensor):
        return tensor.part
    return TensorRole(Phase.FORWARD if role.is_forward else Phase.BACKWARD).part


def _far_if_none(positions: np.ndarray) -> np.ndarray:
    return np.where(positions == NO_OP, FAR, positions)


@lru_cache(maxsize=2**14)
def shared_by(block: Block) -> Sequence[tuple[Role, BlockTensor | Read]]:
    """Return the tensors that a block produces for all layers, and its reads of such tensors, with their roles."""
    entries: list[BlockTensor | Read] = [*block.arrays.boundary_tensors, *block.reads]
    return [(entry.role, entry) for entry in entries if entry.role is not None and entry.role.is_shared]


@lru_cache(maxsize=2**14)
def boundary_columns(block: Block, next_block: Block | None, is_forward: bool) -> BoundaryColumns:
    """Build the columns of boundary tensors of a block in one pass.

    Cached, because a planner requests few different pairs many times.

    Args:
        block: producer.
        next_block: next block in the pass; None if the chunk ends here.
        is_forward: whether the pass is forward.
    """
    number_of = {label: number for number, label in enumerate(block.arrays.labels)}
    reads = {read.role: read.uses for read in neighbour_reads(next_block, is_forward)} if next_block is not None else {}
    tensors = [
        tensor
        for tensor in block.arrays.boundary_tensors
        if tensor.role is not None and not tensor.role.is_shared and tensor.is_forward == is_forward
    ]
    uses = [reads.get(tensor.role, Consumers()) if tensor.role is not None else Consumers() for tensor in tensors]
    return BoundaryColumns(
        tensors=tensor_columns(tensors, number_of.__getitem__),
        reads=use_rows(uses),
        is_sent=np.full(len(tensors), next_block is None),
    )
