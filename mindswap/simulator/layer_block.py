"""A part of a step that can be put beside others in any number and order: its elements, and the same as flat arrays."""

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
    """Name of a tensor for other blocks: its type, and which of those of this type it is."""

    shape: tuple[int, ...]
    dtype: str
    ordinal: int
    is_forward: bool  # made in forward
    is_shared: bool = False  # read by many blocks, not only by a neighbour of the one that makes it


class Source(Enum):
    """Origin of a tensor that a block reads and does not make."""

    BEFORE = "the block before it in forward order"
    BEHIND = "the block behind it in forward order"
    SHARED = "made before the layers, read by all of them"


@dataclass(frozen=True)
class BlockOp:
    """One operator with its time."""

    label: Label  # operator path below the layer; for gradients that of the operator they are the gradient of
    kind: OpKind  # forward, backward, recompute or collective
    duration_ns: int  # on the device
    # position in the same pass of an operator on the other stream that must have ended; `NO_OP` for none
    wait_op: int = NO_OP
    op: str = ""  # name of the primitive
    wait_once: int = NO_OP  # position in `Block.once` of an operator that must have ended; `NO_OP` for none
    # a schedule may run it apart from the rest of backward: it works on gradients of weights only
    is_weight: bool = False
    # durations for each piece of a cut sequence, where they differ; `duration_ns` is their mean then
    piece_ns: tuple[int, ...] = ()


class Uses(NamedTuple):
    """Positions at which a block reads a tensor; `NO_OP` where it does not."""

    last_forward: int = NO_OP
    first_backward: int = NO_OP
    last_backward: int = NO_OP
    first_input: int = NO_OP  # in backward by operators that are not `BlockOp.is_weight`
    last_input: int = NO_OP
    first_weight: int = NO_OP  # in backward by those that are
    last_weight: int = NO_OP
    last_once: int = NO_OP  # in `Block.once`


@dataclass(frozen=True)
class BlockTensor:
    """A tensor that the block makes."""

    label: Label  # who makes it
    size_bytes: int  # on the device
    is_forward: bool  # made in forward
    is_again: bool  # made by an operator that runs again
    made_at: int  # position of its maker in the pass
    uses: Uses  # where the block itself reads it
    role: Role | None  # set where other blocks read it
    prefetch: int = 0  # `backward_prefetch` of its copies
    num_copies: int = 0  # how often it is copied, once for each name that is swapped; 0 where it is not; `ONE_WAY`
    is_held: bool = False  # another name of it is not swapped, so it stays on the device all the same
    is_once: bool = False  # made by an operator of `Block.once`, where `made_at` counts: all micro-batches read it
    is_gradient: bool = False  # of a weight
    is_final: bool = False  # stays until the optimizer
    is_early: bool = False  # there from the begin of the pass on
    is_early_later: bool = False  # likewise in every micro-batch but the first


@dataclass(frozen=True)
class Read:
    """A tensor of another block that this one reads."""

    source: Source
    role: Role
    size_bytes: int
    uses: Uses


# Ring attention as operators of a block: an exchange goes on while attention of what has come is computed.


def ring_ops(
    op: BlockOp, rounds: Sequence[Round], begin: int, time_ns: Callable[[Work, str], int], exchange_ns: int
) -> list[BlockOp]:
    """The operators that stand for one attention.

        compute   concat | attention 0 | split, concat | attention 1 ... | split | attention n - 1, join
        links            | exchange 0        |         | exchange 1 ...    |

    Args:
        op: the attention as one operator.
        rounds: from `list_rounds`.
        begin: position of the first of them.
        time_ns: time of a kernel of the given work and primitive.
        exchange_ns: time of one exchange.
    """
    ops: list[BlockOp] = []
    wait_op = op.wait_op

    def compute(duration_ns: int, wait: int) -> None:
        ops.append(replace(op, duration_ns=duration_ns, wait_op=wait))

    for one in rounds:
        if one.before:
            compute(_kernels_ns(one.before, time_ns), wait_op)
            wait_op = NO_OP
        for _ in range(one.num_gradient_reductions):
            ops.append(BlockOp(f"{op.label} {RING}", OpKind.COLLECTIVE, exchange_ns, begin + len(ops) - 1, RING))
        attention_ns = time_ns(Work(one.flops, 0, 0), op.op)
        compute(attention_ns + _kernels_ns(one.after, time_ns), wait_op)
        # The next round begins with what this exchange brings.
        sent = [at for at, entry in enumerate(ops) if entry.kind is OpKind.COLLECTIVE]
        wait_op = begin + sent[-1] if sent else NO_OP
    return ops


def ring_buffers(operands: Sequence[TensorType], is_forward: bool) -> int:
    """Bytes that are there while it runs, beside operands and results.

    Forward: keys and values that are used and those that come, and the result of a round. Backward: the same for their
    gradients, and the gradient of queries of a round.
    """
    query, pair = operands[0].size_bytes, operands[1].size_bytes + operands[2].size_bytes
    return (2 if is_forward else 4) * pair + query


def _kernels_ns(kernels: Sequence[RingKernel], time_ns: Callable[[Work, str], int]) -> int:
    return sum(time_ns(Work(0, kernel.moved_bytes, 0), kernel.op) for kernel in kernels)


# Columns that are an attribute of an operator, and of a tensor.
OP_TYPES = {"duration_ns": np.int64, "kind": np.int8, "wait_op": np.int64, "wait_once": np.int64, "is_weight": bool}
TENSOR_TYPES = {
    **dict.fromkeys(("size_bytes", "made_at", "prefetch", "num_copies"), np.int64),
    **dict.fromkeys(("is_forward", "is_held", "is_final", "is_early", "is_early_later"), bool),
}


# In place of `prefetch`, `num_copies` and `is_held` of a tensor that keeps its own.
UNCHANGED = (-1, 0, False)

# Arrays by name. Of the operators of a pass, shape (num_ops,): `OP_TYPES`; `label`; `piece_ns`, the durations for each
# piece of the sequence, shape (num_ops, num_pieces), with one piece where all take the same time. Of tensors, shape
# (num_tensors,): `TENSOR_TYPES`; `label`; `kind`, of one that backward does not need; `uses`, a row for each field of
# `Uses`. Positions and labels count within the pass and the block.
Columns = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class BlockArrays:
    """All of a block but what it reads."""

    forward: Columns  # run for each micro-batch
    backward: Columns  # likewise
    once: Columns  # run before forward of the first micro-batch
    own: Columns  # tensors that only the block itself reads
    shared: Columns  # of these, what is made once for all micro-batches
    handed: tuple[BlockTensor, ...]  # tensors that others read too
    labels: tuple[Label, ...]  # names that the label arrays point to


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the step: its operators of forward and backward in order, its tensors, what it reads."""

    forward: tuple[BlockOp, ...]  # run for each micro-batch
    backward: tuple[BlockOp, ...]  # likewise
    tensors: tuple[BlockTensor, ...]
    reads: tuple[Read, ...]
    # operators that run before forward of the first micro-batch, once in a step: what depends on weights only and is
    # shared by all micro-batches
    once: tuple[BlockOp, ...] = ()
    # the arrays, where the caller has them; they must say the same as the rest
    known_arrays: InitVar[BlockArrays | None] = None
    # derived: operators and tensors as arrays, so that eighty layers are put together in a millisecond
    arrays: BlockArrays = field(init=False, repr=False)

    def __post_init__(self, known_arrays: BlockArrays | None) -> None:
        arrays = known_arrays or make_arrays(self.forward, self.backward, self.once, self.tensors)
        object.__setattr__(self, "arrays", arrays)

    def with_copies(self, copies: Mapping[Label, tuple[int, int, bool]]) -> "Block":
        """The block with some of its tensors swapped; its operators and all other tensors stay as they are.

        A planner asks for thousands of them, so the arrays are changed and not made again. `copies` has `prefetch`,
        `num_copies` and `is_held` (see `BlockTensor`) by label of the tensor.
        """
        arrays = self.arrays
        by_label = np.array([copies.get(label, UNCHANGED) for label in arrays.labels], np.int64).reshape(-1, 3)
        columns = by_label[arrays.own["label"]].T
        is_copied = columns[0] != UNCHANGED[0]
        changed = {
            name: np.where(is_copied, column, arrays.own[name]).astype(TENSOR_TYPES[name])
            for name, column in zip(("prefetch", "num_copies", "is_held"), columns, strict=True)
        }
        return self._with_tensors(tuple(_with_copy(tensor, copies) for tensor in self.tensors), arrays.own | changed)

    def with_distances(self, distances: Mapping[int, int]) -> "Block":
        """The block with other distances for the copies that it has: by the distance of now; others stay."""
        table = np.arange(max((0, *distances, *(tensor.prefetch for tensor in self.tensors))) + 1)
        for now, then in distances.items():
            table[now] = then
        tensors = tuple(
            replace(tensor, prefetch=int(table[tensor.prefetch])) if tensor.prefetch in distances else tensor
            for tensor in self.tensors
        )
        return self._with_tensors(tensors, self.arrays.own | {"prefetch": table[self.arrays.own["prefetch"]]})

    def _with_tensors(self, tensors: tuple[BlockTensor, ...], own: Columns) -> "Block":
        """The block with other copies of its tensors; `own` says the same of those that only it reads."""
        handed = tuple(tensor for tensor in tensors if tensor.role is not None)
        known = replace(self.arrays, own=own, handed=handed)
        return Block(self.forward, self.backward, tensors, self.reads, self.once, known)


def _with_copy(tensor: BlockTensor, copies: Mapping[Label, tuple[int, int, bool]]) -> BlockTensor:
    if tensor.label not in copies or (tensor.is_once and tensor.role is None):
        return tensor
    prefetch, num_copies, is_held = copies[tensor.label]
    return replace(tensor, prefetch=prefetch, num_copies=num_copies, is_held=is_held)


def make_arrays(
    forward: Sequence[BlockOp], backward: Sequence[BlockOp], once: Sequence[BlockOp], tensors: Sequence[BlockTensor]
) -> BlockArrays:
    """The arrays of what a block consists of."""
    labels: dict[Label, int] = {}

    def label_of(name: Label) -> int:
        return labels.setdefault(name, len(labels))

    own = [tensor for tensor in tensors if tensor.role is None and not tensor.is_once]
    shared = [tensor for tensor in tensors if tensor.role is None and tensor.is_once]
    handed = tuple(tensor for tensor in tensors if tensor.role is not None)
    for tensor in handed:
        label_of(tensor.label)
    return BlockArrays(
        _pass_arrays(forward, label_of),
        _pass_arrays(backward, label_of),
        _pass_arrays(once, label_of),
        tensor_arrays(own, label_of),
        tensor_arrays(shared, label_of),
        handed,
        tuple(labels),
    )


def _pass_arrays(ops: Sequence[BlockOp], label_of: Callable[[Label], int]) -> Columns:
    num_pieces = max((len(op.piece_ns) for op in ops), default=1) or 1
    piece_ns = [op.piece_ns or (op.duration_ns,) * num_pieces for op in ops]
    return _columns(ops, OP_TYPES, label_of) | {"piece_ns": np.array(piece_ns, np.int64).reshape(len(ops), num_pieces)}


def tensor_arrays(tensors: Sequence[BlockTensor], label_of: Callable[[Label], int]) -> Columns:
    """Tensors of a block; `label_of` gives the number of a label in it."""
    return _columns(tensors, TENSOR_TYPES, label_of) | {
        "kind": np.array([_kind(t) for t in tensors], np.int8),
        "uses": use_rows([t.uses for t in tensors]),
    }


def _columns(
    rows: Sequence[BlockOp | BlockTensor], types: Mapping[str, type], label_of: Callable[[Label], int]
) -> Columns:
    """An array of each of these attributes, and of the labels."""
    columns: Columns = {name: np.array([getattr(row, name) for row in rows], dtype) for name, dtype in types.items()}
    return {"label": np.array([label_of(row.label) for row in rows], np.int32)} | columns


def use_rows(uses: Sequence[Uses]) -> np.ndarray:
    """A row for each field of `Uses`: int64, shape (num_fields, num_uses)."""
    return np.array(uses, np.int64).reshape(-1, len(Uses._fields)).T


def _kind(tensor: BlockTensor) -> MemoryKind:
    if tensor.is_gradient:
        return MemoryKind.GRADIENT
    return MemoryKind.RECOMPUTED if tensor.is_again else MemoryKind.TRANSIENT
