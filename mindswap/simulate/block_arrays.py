"""A block as flat arrays, made once, so that eighty layers are put together in a millisecond."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from mindswap.simulate.blocks import Block, BlockOp, BlockTensor, Read, Source, Uses
from mindswap.simulate.program import NO_OP, MemoryKind

__all__ = [
    "NONE", "BlockArrays", "LinkArrays", "PassArrays", "TensorArrays", "arrays_of", "links_of", "neighbour_reads",
    "with_copies",
]  # fmt: skip

# "No use" where positions count from the begin of a pass: those before it are negative.
NONE = -(2**40)


@dataclass(frozen=True, eq=False)
class PassArrays:
    """Operators of one pass; shape (num_ops,); positions and labels count within the block.

    `last_compute` is the last operator of the compute stream.
    """

    duration_ns: np.ndarray
    kind: np.ndarray
    wait_op: np.ndarray
    label: np.ndarray
    wait_once: np.ndarray
    last_compute: int | None


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


@dataclass(frozen=True, eq=False)
class BlockArrays:
    """A block.

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
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LinkArrays:
    """Tensors that a block makes in one pass and its neighbour, or another stage, reads; shape (num_tensors,).

    Attributes:
        size_bytes, made_at, prefetch, num_copies, is_held: as `BlockTensor` has them.
        kind: `MemoryKind`.
        label: position in `BlockArrays.labels` of the block that makes them.
        uses: last use in forward, first and last use in backward: of the block itself, and of its neighbour; positions
            count from where each begins; `NONE` for no use; shape (2, 3, num_tensors).
        is_sent: no neighbour is here: another stage reads it.
    """

    size_bytes: np.ndarray
    made_at: np.ndarray
    kind: np.ndarray
    label: np.ndarray
    prefetch: np.ndarray
    num_copies: np.ndarray
    is_held: np.ndarray
    uses: np.ndarray
    is_sent: np.ndarray

    def __len__(self) -> int:
        return len(self.size_bytes)


@lru_cache(maxsize=2**14)
def links_of(block: Block, other: Block | None, is_forward: bool) -> LinkArrays:
    """What a block hands to its neighbour in one pass.

    Neighbours are few, and put together thousands of times by a planner: the last ones are kept.

    Args:
        block: makes the tensors.
        other: the block that the pass goes on with; None where it ends here.
        is_forward: which pass.
    """
    arrays = arrays_of(block)
    labels = {label: position for position, label in enumerate(arrays.labels)}
    reads = {read.role: read.uses for read in neighbour_reads(other, is_forward)} if other is not None else {}
    found = [t for t in arrays.handed if t.role is not None and not t.role.is_shared and t.is_forward == is_forward]
    no_use = Uses()
    uses = [[_relative(t.uses) for t in found], [_relative(reads.get(t.role, no_use)) for t in found]]  # type: ignore[arg-type]
    return LinkArrays(
        size_bytes=np.array([t.size_bytes for t in found], np.int64),
        made_at=np.array([t.made_at for t in found], np.int64),
        kind=np.array([MemoryKind.RECOMPUTED if t.is_again else MemoryKind.TRANSIENT for t in found], np.int64),
        label=np.array([labels[t.label] for t in found], np.int64),
        prefetch=np.array([t.prefetch for t in found], np.int64),
        num_copies=np.array([t.num_copies for t in found], np.int64),
        is_held=np.array([t.is_held for t in found], np.int64),
        uses=np.array(uses, np.int64).reshape(2, -1, 3).transpose(0, 2, 1),
        is_sent=np.full(len(found), other is None),
    )


def neighbour_reads(block: Block, is_forward: bool) -> list[Read]:
    """What a block reads that the neighbour makes from which a pass comes to it."""
    source = Source.BEFORE if is_forward else Source.BEHIND
    return [read for read in block.reads if read.source is source and read.role.is_forward == is_forward]


def _relative(uses: Uses) -> tuple[int, int, int]:
    found = (uses.last_forward, uses.first_backward, uses.last_backward)
    return tuple(NONE if value is None else value for value in found)  # type: ignore[return-value]


def arrays_of(block: Block) -> BlockArrays:
    """The arrays of a block; kept with it."""
    known = block.__dict__.get("_arrays")
    if known is None:
        known = _make(block)
        block.__dict__["_arrays"] = known
    return known


def with_copies(block: Block, copies: Mapping[str, tuple[int, int, bool]]) -> Block:
    """The block with some of its tensors swapped; its operators stay as they are.

    Args:
        block: without any swap.
        copies: label of a tensor -> `prefetch`, `num_copies` and `is_held` as `BlockTensor` has them.
    """
    arrays = arrays_of(block)
    by_label = np.array([copies.get(label, (0, 0, False)) for label in arrays.labels], np.int64).reshape(-1, 3)
    prefetch, num_copies, is_held = by_label[arrays.own.label].T
    own = replace(arrays.own, prefetch=prefetch, num_copies=num_copies, is_held=is_held.astype(bool))
    handed = tuple(
        _with_copies(tensor, *copies[tensor.label]) if tensor.label in copies else tensor for tensor in arrays.handed
    )
    copied = Block(block.forward, block.backward, block.tensors, block.reads, block.once)
    copied.__dict__["_arrays"] = replace(arrays, own=own, handed=handed)
    return copied


def _with_copies(tensor: BlockTensor, prefetch: int, num_copies: int, is_held: bool) -> BlockTensor:
    return replace(tensor, prefetch=prefetch, num_copies=num_copies, is_held=is_held)


def _make(block: Block) -> BlockArrays:
    labels: dict[str, int] = {}

    def label_of(name: str) -> int:
        return labels.setdefault(name, len(labels))

    own = [tensor for tensor in block.tensors if tensor.role is None and not tensor.is_once]
    shared = [tensor for tensor in block.tensors if tensor.role is None and tensor.is_once]
    handed = tuple(tensor for tensor in block.tensors if tensor.role is not None)
    for tensor in handed:
        label_of(tensor.label)
    return BlockArrays(
        _pass_arrays(block.forward, label_of),
        _pass_arrays(block.backward, label_of),
        _pass_arrays(block.once, label_of),
        _tensor_arrays(own, label_of),
        _tensor_arrays(shared, label_of),
        handed,
        tuple(labels),
    )


def _position(value: int | None) -> int:
    return NO_OP if value is None else value


def _pass_arrays(ops: Sequence[BlockOp], label_of: Callable[[str], int]) -> PassArrays:
    return PassArrays(
        np.array([op.duration_ns for op in ops], np.int64),
        np.array([op.kind for op in ops], np.int8),
        np.array([_position(op.wait_op) for op in ops], np.int64),
        np.array([label_of(op.label) for op in ops], np.int32),
        np.array([_position(op.wait_once) for op in ops], np.int64),
        max((at for at, op in enumerate(ops) if not op.kind.is_communication), default=None),
    )


def _tensor_arrays(tensors: Sequence[BlockTensor], label_of: Callable[[str], int]) -> TensorArrays:
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
    )


def _kind(tensor: BlockTensor) -> MemoryKind:
    if tensor.is_gradient:
        return MemoryKind.GRADIENT
    return MemoryKind.RECOMPUTED if tensor.is_again else MemoryKind.TRANSIENT
