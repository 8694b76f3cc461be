"""Operators and tensors of a block as flat arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.graph.names import Label
from mindswap.simulate.block_parts import BlockOp, BlockTensor
from mindswap.simulate.program import NO_OP, MemoryKind

__all__ = ["BlockArrays", "PassArrays", "TensorArrays", "make_arrays"]


@dataclass(frozen=True, eq=False)
class PassArrays:
    """Operators of one pass; shape (num_ops,); positions and labels count within the block.

    `last_compute` is the last operator of the compute stream. `piece_ns` has the durations for each piece of the
    sequence, shape (num_ops, num_pieces), with no pieces where all take the same time.
    """

    duration_ns: np.ndarray
    kind: np.ndarray
    wait_op: np.ndarray
    label: np.ndarray
    wait_once: np.ndarray
    is_weight: np.ndarray
    last_compute: int | None
    piece_ns: np.ndarray


@dataclass(frozen=True, eq=False)
class TensorArrays:
    """Tensors; shape (num_tensors,); positions count within the pass, `NO_OP` for no use.

    `kind` is what a tensor is that backward does not need; `num_copies` is 0 where it is not swapped; `is_final`
    says that it stays until the optimizer.
    """

    size_bytes: np.ndarray
    is_forward: np.ndarray
    made_at: np.ndarray
    last_forward: np.ndarray
    first_backward: np.ndarray
    last_backward: np.ndarray
    kind: np.ndarray
    label: np.ndarray
    prefetch: np.ndarray
    num_copies: np.ndarray
    is_held: np.ndarray
    last_once: np.ndarray
    is_final: np.ndarray
    first_input: np.ndarray
    last_input: np.ndarray
    first_weight: np.ndarray
    last_weight: np.ndarray


@dataclass(frozen=True, eq=False)
class BlockArrays:
    """All of a block but what it reads.

    Attributes:
        forward, backward, once: its operators.
        own: tensors that only the block itself reads.
        shared: of these, what is made once for all micro-batches.
        handed: tensors that others read too.
        labels: names that the label arrays point to.
    """

    forward: PassArrays
    backward: PassArrays
    once: PassArrays
    own: TensorArrays
    shared: TensorArrays
    handed: tuple[BlockTensor, ...]
    labels: tuple[Label, ...]


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
        _tensor_arrays(own, label_of),
        _tensor_arrays(shared, label_of),
        handed,
        tuple(labels),
    )


def _position(value: int | None) -> int:
    return NO_OP if value is None else value


def _pass_arrays(ops: Sequence[BlockOp], label_of: Callable[[Label], int]) -> PassArrays:
    return PassArrays(
        np.array([op.duration_ns for op in ops], np.int64),
        np.array([op.kind for op in ops], np.int8),
        np.array([_position(op.wait_op) for op in ops], np.int64),
        np.array([label_of(op.label) for op in ops], np.int32),
        np.array([_position(op.wait_once) for op in ops], np.int64),
        np.array([op.is_weight for op in ops], bool),
        max((at for at, op in enumerate(ops) if not op.kind.is_communication), default=None),
        _piece_ns(ops),
    )


def _piece_ns(ops: Sequence[BlockOp]) -> np.ndarray:
    num_pieces = max((len(op.piece_ns) for op in ops), default=0)
    rows = [op.piece_ns or (op.duration_ns,) * num_pieces for op in ops]
    return np.array(rows, np.int64).reshape(len(ops), num_pieces)


def _tensor_arrays(tensors: Sequence[BlockTensor], label_of: Callable[[Label], int]) -> TensorArrays:
    return TensorArrays(
        size_bytes=np.array([t.size_bytes for t in tensors], np.int64),
        is_forward=np.array([t.is_forward for t in tensors], bool),
        made_at=np.array([t.made_at for t in tensors], np.int64),
        last_forward=np.array([_position(t.uses.last_forward) for t in tensors], np.int64),
        first_backward=np.array([_position(t.uses.first_backward) for t in tensors], np.int64),
        last_backward=np.array([_position(t.uses.last_backward) for t in tensors], np.int64),
        kind=np.array([_kind(t) for t in tensors], np.int8),
        label=np.array([label_of(t.label) for t in tensors], np.int32),
        prefetch=np.array([t.prefetch for t in tensors], np.int64),
        num_copies=np.array([t.num_copies for t in tensors], np.int64),
        is_held=np.array([t.is_held for t in tensors], bool),
        last_once=np.array([_position(t.uses.last_once) for t in tensors], np.int64),
        is_final=np.array([t.is_final for t in tensors], bool),
        first_input=np.array([_position(t.uses.first_input) for t in tensors], np.int64),
        last_input=np.array([_position(t.uses.last_input) for t in tensors], np.int64),
        first_weight=np.array([_position(t.uses.first_weight) for t in tensors], np.int64),
        last_weight=np.array([_position(t.uses.last_weight) for t in tensors], np.int64),
    )


def _kind(tensor: BlockTensor) -> MemoryKind:
    if tensor.is_gradient:
        return MemoryKind.GRADIENT
    return MemoryKind.RECOMPUTED if tensor.is_again else MemoryKind.TRANSIENT
