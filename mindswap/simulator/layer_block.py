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
from mindswap.graph.analysis.work import Work
from mindswap.graph.model import TensorType
from mindswap.graph.passes.interleaved_halves import RING, RingKernel, Round
from mindswap.simulator.program import NO_OP, MemoryKind, OpKind


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

    PREVIOUS = "the block before it in forward order"
    NEXT = "the block behind it in forward order"
    SHARED = "made before the layers, read by all of them"


@dataclass(frozen=True)
class BlockOp:
    """One operator with its duration."""

    label: Label  # operator path below the layer; a gradient operator has the path of its forward operator
    kind: OpKind  # forward, backward, recompute or collective
    duration_ns: int  # on the device
    # position in the same pass of the operator on the other stream that this one waits for; `NO_OP` for none
    wait_op: int = NO_OP
    op: str = ""  # name of the primitive
    wait_per_step: int = (
        NO_OP  # position in `Block.per_step_operators` of the operator that this one waits for; `NO_OP` for none
    )
    # it computes weight gradients only, so a schedule may run it separately from the rest of backward
    is_weight: bool = False
    # durations of the sequence pieces in ns, if they differ; then `duration_ns` is their mean
    piece_ns: tuple[int, ...] = ()


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


@dataclass(frozen=True)
class Read:
    """Read of a tensor that another block produces."""

    source: Source
    role: Role
    size_bytes: int
    uses: Consumers


# Ring attention as operators of a block: the next keys and values are exchanged during attention over the current ones.


def ring_ops(
    op: BlockOp, rounds: Sequence[Round], begin: int, time_ns: Callable[[Work, str], int], exchange_ns: int
) -> list[BlockOp]:
    """Expand one attention operator into the rounds of ring attention.

        compute   concat | attention 0 | split, concat | attention 1 ... | split | attention n - 1, join
        links            | exchange 0        |         | exchange 1 ...    |

    Args:
        op: attention as one operator.
        rounds: rounds from `list_rounds`.
        begin: position of the first returned operator in the pass.
        time_ns: (work, primitive) -> duration of a kernel in ns.
        exchange_ns: duration of one exchange in ns.

    Returns:
        Operators in execution order.
    """
    ops: list[BlockOp] = []
    wait_op = op.wait_op

    def compute(duration_ns: int, wait: int) -> None:
        ops.append(replace(op, duration_ns=duration_ns, wait_op=wait))

    for one in rounds:
        if one.before:
            compute(_kernels_ns(one.before, time_ns), wait_op)
            wait_op = NO_OP
        for _ in range(one.num_ring_exchanges):
            ops.append(BlockOp(f"{op.label} {RING}", OpKind.COLLECTIVE, exchange_ns, begin + len(ops) - 1, RING))
        attention_ns = time_ns(Work(one.flops, 0, 0), op.op)
        compute(attention_ns + _kernels_ns(one.after, time_ns), wait_op)
        # The next round reads the keys and values that this exchange receives.
        sent = [at for at, entry in enumerate(ops) if entry.kind is OpKind.COLLECTIVE]
        wait_op = begin + sent[-1] if sent else NO_OP
    return ops


def ring_buffers(operands: Sequence[TensorType], is_forward: bool) -> int:
    """Return the workspace of ring attention in bytes, without operands and results.

    Forward: current and incoming keys and values, and the result of one round. Backward: in addition their gradients,
    and in place of the result the query gradient of one round.

    Args:
        operands: types of query, key and value.
        is_forward: whether attention runs in forward.
    """
    query, pair = operands[0].size_bytes, operands[1].size_bytes + operands[2].size_bytes
    return (2 if is_forward else 4) * pair + query


def _kernels_ns(kernels: Sequence[RingKernel], time_ns: Callable[[Work, str], int]) -> int:
    return sum(time_ns(Work(0, kernel.moved_bytes, 0), kernel.op) for kernel in kernels)


# Columns that are read from attributes of `BlockOp` and `BlockTensor`, with their dtypes.
OP_TYPES = {"duration_ns": np.int64, "kind": np.int8, "wait_op": np.int64, "wait_per_step": np.int64, "is_weight": bool}
TENSOR_TYPES = {
    **dict.fromkeys(("size_bytes", "producer_op_index", "prefetch", "num_copies"), np.int64),
    **dict.fromkeys(
        ("is_forward", "is_resident", "is_optimizer_input", "is_live_from_start", "is_live_from_later_starts"), bool
    ),
}


# Marks a tensor that keeps its `prefetch`, `num_copies` and `is_resident`.
UNCHANGED = (-1, 0, False)

# Arrays by name. Operators of a pass, shape (num_ops,): `OP_TYPES`; `label`; `piece_ns`, the durations of the sequence
# pieces, shape (num_ops, num_pieces), with one piece if all have the same durations. Tensors, shape (num_tensors,):
# `TENSOR_TYPES`; `label`; `kind`, the `MemoryKind` of a tensor that is not saved for backward; `uses`, shape
# (num_fields of `Consumers`, num_tensors). Positions are relative to the pass, labels index `BlockArrays.labels`.
Columns = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class BlockArrays:
    """Operators and tensors of a block as arrays; its reads of other blocks are not included."""

    forward: Columns  # operators of each micro-batch
    backward: Columns  # operators of each micro-batch
    per_step_operators: Columns  # operators that run once, before forward of the first micro-batch
    own: Columns  # tensors of each micro-batch that only this block reads
    shared: Columns  # tensors of all micro-batches (`is_per_step`) that only this block reads
    boundary_tensors: tuple[BlockTensor, ...]  # boundary tensors: other blocks read them too
    labels: tuple[Label, ...]  # labels by number


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

    def with_copies(self, copies: Mapping[Label, tuple[int, int, bool]]) -> "Block":
        """Return a block in which some tensors are swapped; operators and other tensors are unchanged.

        The arrays are updated and not rebuilt, because a planner calls this thousands of times.

        Args:
            copies: label of a tensor -> its `prefetch`, `num_copies` and `is_resident` (see `BlockTensor`).
        """
        arrays = self.arrays
        by_label = np.array([copies.get(label, UNCHANGED) for label in arrays.labels], np.int64).reshape(-1, 3)
        columns = by_label[arrays.own["label"]].T
        is_copied = columns[0] != UNCHANGED[0]
        changed = {
            name: np.where(is_copied, column, arrays.own[name]).astype(TENSOR_TYPES[name])
            for name, column in zip(("prefetch", "num_copies", "is_resident"), columns, strict=True)
        }
        return self._with_tensors(tuple(_with_copy(tensor, copies) for tensor in self.tensors), arrays.own | changed)

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
        return self._with_tensors(tensors, self.arrays.own | {"prefetch": table[self.arrays.own["prefetch"]]})

    def _with_tensors(self, tensors: tuple[BlockTensor, ...], own: Columns) -> "Block":
        """Return a block with these tensors; `own` has the columns of those that no other block reads."""
        boundary_tensors = tuple(tensor for tensor in tensors if tensor.role is not None)
        known = replace(self.arrays, own=own, boundary_tensors=boundary_tensors)
        return Block(self.forward, self.backward, tensors, self.reads, self.per_step_operators, known)


def _with_copy(tensor: BlockTensor, copies: Mapping[Label, tuple[int, int, bool]]) -> BlockTensor:
    if tensor.label not in copies or (tensor.is_per_step and tensor.role is None):
        return tensor
    prefetch, num_copies, is_resident = copies[tensor.label]
    return replace(tensor, prefetch=prefetch, num_copies=num_copies, is_resident=is_resident)


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

    own = [tensor for tensor in tensors if tensor.role is None and not tensor.is_per_step]
    shared = [tensor for tensor in tensors if tensor.role is None and tensor.is_per_step]
    boundary_tensors = tuple(tensor for tensor in tensors if tensor.role is not None)
    for tensor in boundary_tensors:
        label_of(tensor.label)
    return BlockArrays(
        forward=_pass_arrays(forward, label_of),
        backward=_pass_arrays(backward, label_of),
        per_step_operators=_pass_arrays(per_step_operators, label_of),
        own=tensor_arrays(own, label_of),
        shared=tensor_arrays(shared, label_of),
        boundary_tensors=boundary_tensors,
        labels=tuple(labels),
    )


def _pass_arrays(ops: Sequence[BlockOp], label_of: Callable[[Label], int]) -> Columns:
    num_pieces = max((len(op.piece_ns) for op in ops), default=1) or 1
    piece_ns = [op.piece_ns or (op.duration_ns,) * num_pieces for op in ops]
    return _columns(ops, OP_TYPES, label_of) | {"piece_ns": np.array(piece_ns, np.int64).reshape(len(ops), num_pieces)}


def tensor_arrays(tensors: Sequence[BlockTensor], label_of: Callable[[Label], int]) -> Columns:
    """Build the columns of tensors of a block; `label_of` returns the number of a label."""
    return _columns(tensors, TENSOR_TYPES, label_of) | {
        "kind": np.array([_kind(t) for t in tensors], np.int8),
        "uses": use_rows([t.uses for t in tensors]),
    }


def _columns(
    rows: Sequence[BlockOp | BlockTensor], types: Mapping[str, type], label_of: Callable[[Label], int]
) -> Columns:
    """Build one array for each of these attributes, and one of label numbers."""
    columns: Columns = {name: np.array([getattr(row, name) for row in rows], dtype) for name, dtype in types.items()}
    return {"label": np.array([label_of(row.label) for row in rows], np.int32)} | columns


def use_rows(uses: Sequence[Consumers]) -> np.ndarray:
    """Transpose uses to one row for each field of `Consumers`: int64, shape (num_fields, num_uses)."""
    return np.array(uses, np.int64).reshape(-1, len(Consumers._fields)).T


def _kind(tensor: BlockTensor) -> MemoryKind:
    if tensor.is_gradient:
        return MemoryKind.GRADIENT
    return MemoryKind.RECOMPUTED if tensor.is_recomputed else MemoryKind.TRANSIENT
