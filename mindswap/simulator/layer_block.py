"""Compiled layers as blocks from which a model of any depth is assembled.

A block holds the operators and tensors of one segment of the compiled step (before the layers, one layer, or after the
layers), as dataclasses and as arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import NO_OP, MemoryKind, OpKind, Table


@dataclass(frozen=True)
class Role:
    """Identity of a tensor that crosses blocks: shape, dtype, and its ordinal among tensors of that type."""

    shape: tuple[int, ...]
    dtype: str
    ordinal: int
    is_forward: bool  # produced in forward
    is_shared: bool = False  # read by many blocks, not only by a neighbour of its producer


class Source(Enum):
    """Producer of a tensor that a block reads and does not produce."""

    PREVIOUS = "the previous block in forward order"
    NEXT = "the next block in forward order"
    SHARED = "the block before the layers; all layers read the tensor"


@dataclass(frozen=True)
class BlockOp:
    """One operator with its duration."""

    label: Label  # operator path below the layer; a gradient operator has the path of its forward operator
    kind: OpKind  # forward, backward, recompute or collective
    duration_ns: int  # on the device
    # position in the same pass of the operator on the other stream that this one waits for; `NO_OP` for none
    wait_op: int = NO_OP
    op: str = ""  # name of the primitive
    # position in `Block.per_step_operators` of the operator that this one waits for; `NO_OP` for none
    wait_per_step: int = NO_OP
    # it computes weight gradients only, so a schedule may run it separately from the rest of backward
    is_weight: bool = False
    # durations of the sequence pieces in ns, if they differ; then `duration_ns` is their mean
    piece_ns: tuple[int, ...] = ()
    layer_offset: int = 0  # position of its layer in a block of several layers
    # positions in the backend's order of execution: its own, and those of launches right before it that are no operator
    # here (`graph.analysis.execution_order`)
    positions: int = 1


class Consumers(NamedTuple):
    """Positions of the operators of a block that read a tensor; `NO_OP` for none."""

    last_forward: int = NO_OP
    first_backward: int = NO_OP
    last_backward: int = NO_OP
    first_input: int = NO_OP  # in backward, by operators without `BlockOp.is_weight`
    last_input: int = NO_OP
    first_weight: int = NO_OP  # in backward, by operators with `BlockOp.is_weight`
    last_weight: int = NO_OP
    last_per_step: int = NO_OP  # in `Block.per_step_operators`


@dataclass(frozen=True)
class BlockTensor:
    """A tensor that the block produces."""

    label: Label  # label of its producer
    size_bytes: int  # on the device
    is_forward: bool  # produced in forward
    is_recomputed: bool  # produced by a recomputed operator
    producer_op_index: int  # position of its producer in the pass, or in `Block.per_step_operators`
    uses: Consumers  # reads by the block itself
    role: Role | None  # set if other blocks read it
    prefetch: int = 0  # `backward_prefetch` of its copies
    num_copies: int = 0  # copies to the host, one for each name that is swapped; 0 for none; or `ONE_WAY`
    is_resident: bool = False  # another of its names is not swapped, so it stays on the device in spite of its copies
    is_per_step: bool = False  # produced in `Block.per_step_operators`, and read by all micro-batches
    is_gradient: bool = False  # gradient of a weight
    is_optimizer_input: bool = False  # live until the optimizer starts
    is_live_from_start: bool = False  # live from the start of the pass
    is_live_from_later_starts: bool = False  # live from the start of the pass in every micro-batch but the first
    part: MemoryPart = MemoryPart.TEMPORARIES  # by its role, as `TensorRole.part`
    layer_offset: int = 0  # as `BlockOp.layer_offset`, of its producer


@dataclass(frozen=True)
class Read:
    """Read of a tensor that another block produces."""

    source: Source
    role: Role
    size_bytes: int
    uses: Consumers


@dataclass(frozen=True, eq=False)
class OpColumns(Table):
    """Operators of a segment in one pass, in execution order; shape (num_ops,) unless stated otherwise."""

    kind: np.ndarray  # int8, `OpKind`
    duration_ns: np.ndarray  # int64
    # int64, shape (num_ops, num_pieces): durations of the sequence pieces, or one column if all are equal
    piece_ns: np.ndarray
    wait_op: np.ndarray  # int64, as `BlockOp.wait_op`
    wait_per_step: np.ndarray  # int64, as `BlockOp.wait_per_step`
    is_weight: np.ndarray  # bool
    label: np.ndarray  # int32, index into `BlockArrays.labels`
    layer_offset: np.ndarray  # int32, as `BlockOp.layer_offset`
    positions: np.ndarray  # int32, as `BlockOp.positions`


@dataclass(frozen=True, eq=False)
class TensorColumns(Table):
    """Tensors that a segment produces: fields of `BlockTensor`, shape (num_tensors,) unless stated otherwise."""

    size_bytes: np.ndarray  # int64
    is_forward: np.ndarray  # bool
    producer_op_index: np.ndarray  # int64
    uses: np.ndarray  # int64, shape (num_fields of `Consumers`, num_tensors)
    kind: np.ndarray  # int8, `MemoryKind` if the tensor is not saved for backward
    part: np.ndarray  # int8, `MemoryPart` if the tensor is not saved for backward
    label: np.ndarray  # int32, index into `BlockArrays.labels`
    prefetch: np.ndarray  # int64
    num_copies: np.ndarray  # int64
    is_resident: np.ndarray  # bool
    is_optimizer_input: np.ndarray  # bool
    is_live_from_start: np.ndarray  # bool
    is_live_from_later_starts: np.ndarray  # bool
    layer_offset: np.ndarray  # int32

    @property
    def first_backward(self) -> np.ndarray:
        """First use of each tensor in backward: int64, shape (num_tensors,); `NO_OP` for none."""
        return self.uses[Consumers._fields.index("first_backward")]


@dataclass(frozen=True, eq=False)
class BlockArrays:
    """Operators and tensors of a block as arrays; its reads of other blocks are not included."""

    forward: OpColumns  # operators of each micro-batch
    backward: OpColumns  # operators of each micro-batch
    per_step_operators: OpColumns  # operators that run once, before forward of the first micro-batch
    local_tensors: TensorColumns  # tensors of each micro-batch that only this block reads
    shared: TensorColumns  # tensors of all micro-batches (`is_per_step`) that only this block reads
    boundary_tensors: tuple[BlockTensor, ...]  # tensors that other blocks read, too
    labels: tuple[Label, ...]  # labels by number


class CopySetting(NamedTuple):
    """How a tensor is copied to the host: fields of `BlockTensor`."""

    prefetch: int
    num_copies: int
    is_resident: bool


# Marks a tensor whose copies are unchanged.
UNCHANGED = CopySetting(-1, 0, False)


@dataclass(frozen=True, eq=False)
class Block:
    """One segment of the step: its operators in execution order, its tensors, and its reads of other blocks."""

    forward: tuple[BlockOp, ...]  # operators of each micro-batch
    backward: tuple[BlockOp, ...]  # operators of each micro-batch
    tensors: tuple[BlockTensor, ...]
    reads: tuple[Read, ...]
    # operators that run once, before forward of the first micro-batch: they depend on weights only, and all
    # micro-batches share their outputs
    per_step_operators: tuple[BlockOp, ...] = ()
    # precomputed arrays; they must be consistent with the other fields
    known_arrays: InitVar[BlockArrays | None] = None
    # derived: operators and tensors as arrays, because these are concatenated for eighty layers in a millisecond
    arrays: BlockArrays = field(init=False, repr=False)

    def __post_init__(self, known_arrays: BlockArrays | None) -> None:
        arrays = known_arrays or make_arrays(self.forward, self.backward, self.per_step_operators, self.tensors)
        object.__setattr__(self, "arrays", arrays)

    def with_copies(self, copies: Mapping[Label, CopySetting]) -> "Block":
        """Return a block in which some tensors are swapped; operators and other tensors are unchanged.

        The arrays are updated and not rebuilt, because a planner calls this thousands of times.

        Args:
            copies: label of a tensor -> its copies.
        """
        local_tensors, labels = self.arrays.local_tensors, self.arrays.labels
        by_label = np.array([copies.get(label, UNCHANGED) for label in labels], np.int64).reshape(-1, len(UNCHANGED))
        prefetch, num_copies, is_resident = by_label[local_tensors.label].T
        is_changed = prefetch != UNCHANGED.prefetch
        columns = replace(
            local_tensors,
            prefetch=np.where(is_changed, prefetch, local_tensors.prefetch),
            num_copies=np.where(is_changed, num_copies, local_tensors.num_copies),
            is_resident=np.where(is_changed, is_resident, local_tensors.is_resident).astype(bool),
        )
        return self._with_tensors(tuple(_with_copy(tensor, copies) for tensor in self.tensors), columns)

    def with_distances(self, distances: Mapping[int, int]) -> "Block":
        """Return a block with other prefetch distances.

        Args:
            distances: current `backward_prefetch` -> new one; other distances are unchanged.
        """
        table = np.arange(max((0, *distances, *(tensor.prefetch for tensor in self.tensors))) + 1)
        for now, then in distances.items():
            table[now] = then
        tensors = tuple(
            replace(tensor, prefetch=int(table[tensor.prefetch])) if tensor.prefetch in distances else tensor
            for tensor in self.tensors
        )
        return self._with_tensors(
            tensors, replace(self.arrays.local_tensors, prefetch=table[self.arrays.local_tensors.prefetch])
        )

    def _with_tensors(self, tensors: tuple[BlockTensor, ...], local_tensors: TensorColumns) -> "Block":
        """Return a block with these tensors; `local_tensors` has the columns of those that no other block reads."""
        boundary_tensors = tuple(tensor for tensor in tensors if tensor.role is not None)
        arrays = replace(self.arrays, local_tensors=local_tensors, boundary_tensors=boundary_tensors)
        return Block(self.forward, self.backward, tensors, self.reads, self.per_step_operators, arrays)


def _with_copy(tensor: BlockTensor, copies: Mapping[Label, CopySetting]) -> BlockTensor:
    if tensor.label not in copies or (tensor.is_per_step and tensor.role is None):
        return tensor
    return replace(tensor, **copies[tensor.label]._asdict())


def make_arrays(
    forward: Sequence[BlockOp],
    backward: Sequence[BlockOp],
    per_step_operators: Sequence[BlockOp],
    tensors: Sequence[BlockTensor],
) -> BlockArrays:
    """Build the arrays of a block.

    Args:
        forward: operators of forward.
        backward: operators of backward.
        per_step_operators: operators that run once in a step.
        tensors: tensors that these operators produce.
    """
    labels: dict[Label, int] = {}

    def label_of(name: Label) -> int:
        return labels.setdefault(name, len(labels))

    local = [tensor for tensor in tensors if tensor.role is None and not tensor.is_per_step]
    shared = [tensor for tensor in tensors if tensor.role is None and tensor.is_per_step]
    boundary_tensors = tuple(tensor for tensor in tensors if tensor.role is not None)
    for tensor in boundary_tensors:
        label_of(tensor.label)
    return BlockArrays(
        forward=op_columns(forward, label_of),
        backward=op_columns(backward, label_of),
        per_step_operators=op_columns(per_step_operators, label_of),
        local_tensors=tensor_columns(local, label_of),
        shared=tensor_columns(shared, label_of),
        boundary_tensors=boundary_tensors,
        labels=tuple(labels),
    )


def op_columns(ops: Sequence[BlockOp], label_of: Callable[[Label], int]) -> OpColumns:
    """Build the columns of operators; `label_of` returns the number of a label."""
    num_pieces = max((len(op.piece_ns) for op in ops), default=1) or 1
    piece_ns = [op.piece_ns or (op.duration_ns,) * num_pieces for op in ops]
    return OpColumns(
        kind=np.array([op.kind for op in ops], np.int8),
        duration_ns=np.array([op.duration_ns for op in ops], np.int64),
        piece_ns=np.array(piece_ns, np.int64).reshape(len(ops), num_pieces),
        wait_op=np.array([op.wait_op for op in ops], np.int64),
        wait_per_step=np.array([op.wait_per_step for op in ops], np.int64),
        is_weight=np.array([op.is_weight for op in ops], bool),
        label=np.array([label_of(op.label) for op in ops], np.int32),
        layer_offset=np.array([op.layer_offset for op in ops], np.int32),
        positions=np.array([op.positions for op in ops], np.int32),
    )


def tensor_columns(tensors: Sequence[BlockTensor], label_of: Callable[[Label], int]) -> TensorColumns:
    """Build the columns of tensors of a block; `label_of` returns the number of a label."""
    return TensorColumns(
        size_bytes=np.array([tensor.size_bytes for tensor in tensors], np.int64),
        is_forward=np.array([tensor.is_forward for tensor in tensors], bool),
        producer_op_index=np.array([tensor.producer_op_index for tensor in tensors], np.int64),
        uses=use_rows([tensor.uses for tensor in tensors]),
        kind=np.array([_kind(tensor) for tensor in tensors], np.int8),
        part=np.array([tensor.part for tensor in tensors], np.int8),
        label=np.array([label_of(tensor.label) for tensor in tensors], np.int32),
        prefetch=np.array([tensor.prefetch for tensor in tensors], np.int64),
        num_copies=np.array([tensor.num_copies for tensor in tensors], np.int64),
        is_resident=np.array([tensor.is_resident for tensor in tensors], bool),
        is_optimizer_input=np.array([tensor.is_optimizer_input for tensor in tensors], bool),
        is_live_from_start=np.array([tensor.is_live_from_start for tensor in tensors], bool),
        is_live_from_later_starts=np.array([tensor.is_live_from_later_starts for tensor in tensors], bool),
        layer_offset=np.array([tensor.layer_offset for tensor in tensors], np.int32),
    )


def use_rows(uses: Sequence[Consumers]) -> np.ndarray:
    """Transpose uses to one row for each field of `Consumers`: int64, shape (num_fields, num_uses)."""
    return np.array(uses, np.int64).reshape(-1, len(Consumers._fields)).T


def _kind(tensor: BlockTensor) -> MemoryKind:
    if tensor.is_gradient:
        return MemoryKind.GRADIENT
    return MemoryKind.RECOMPUTED if tensor.is_recomputed else MemoryKind.TRANSIENT
