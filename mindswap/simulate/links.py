"""What a block hands to its neighbour, as arrays: made once for each pair, as a planner meets few pairs often. Pure."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mindswap.simulate.block import Block
from mindswap.simulate.block_parts import Uses
from mindswap.simulate.program import MemoryKind
from mindswap.simulate.stage_pass import NONE, neighbour_reads

__all__ = ["LinkArrays", "links_of"]


@dataclass(frozen=True, eq=False)
class LinkArrays:
    """Tensors that a block makes in one pass and its neighbour, or another stage, reads; shape (num_tensors,).

    Attributes:
        size_bytes, made_at, prefetch, num_copies, is_held: as `BlockTensor` has them.
        kind: `MemoryKind`.
        label: position in `BlockArrays.labels` of the block that makes them.
        uses: of the block itself, and of its neighbour: last use in forward, first and last in backward, first and
            last of operators that input gradients need, first and last of the others; positions count from where
            each begins; `NONE` for no use; shape (2, 7, num_tensors).
        is_sent: no neighbour is here: another stage may read it.
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
    """What a block hands on in one pass.

    Args:
        block: makes the tensors.
        other: the block that the pass goes on with; None where it ends here.
        is_forward: which pass.
    """
    arrays = block.arrays
    labels = {label: position for position, label in enumerate(arrays.labels)}
    reads = {read.role: read.uses for read in neighbour_reads(other, is_forward)} if other is not None else {}
    found = [
        (tensor, reads.get(tensor.role, Uses()))
        for tensor in arrays.handed
        if tensor.role is not None and not tensor.role.is_shared and tensor.is_forward == is_forward
    ]
    tensors = [tensor for tensor, _ in found]
    uses = [[_positions(tensor.uses), _positions(read)] for tensor, read in found]
    kinds = (MemoryKind.TRANSIENT, MemoryKind.RECOMPUTED)
    return LinkArrays(
        size_bytes=np.array([tensor.size_bytes for tensor in tensors], np.int64),
        made_at=np.array([tensor.made_at for tensor in tensors], np.int64),
        kind=np.array([kinds[tensor.is_again] for tensor in tensors], np.int64),
        label=np.array([labels[tensor.label] for tensor in tensors], np.int64),
        prefetch=np.array([tensor.prefetch for tensor in tensors], np.int64),
        num_copies=np.array([tensor.num_copies for tensor in tensors], np.int64),
        is_held=np.array([tensor.is_held for tensor in tensors], np.int64),
        uses=np.array(uses, np.int64).reshape(-1, 2, 7).transpose(1, 2, 0),
        is_sent=np.full(len(tensors), other is None),
    )


def _positions(uses: Uses) -> list[int]:
    found = (
        uses.last_forward, uses.first_backward, uses.last_backward,
        uses.first_input, uses.last_input, uses.first_weight, uses.last_weight,
    )  # fmt: skip
    return [NONE if value is None else value for value in found]
