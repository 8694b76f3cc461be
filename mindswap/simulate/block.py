"""A part of a step that can be put beside others in any number and order, and the same as flat arrays."""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace

import numpy as np

from mindswap.graph.names import Label
from mindswap.simulate.block_arrays import BlockArrays, make_arrays
from mindswap.simulate.block_parts import BlockOp, BlockTensor, Read

__all__ = ["Block"]


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the step: its operators of forward and backward in order, its tensors, what it reads.

    Attributes:
        forward, backward: run for each micro-batch.
        tensors, reads: as above.
        once: operators that run before forward of the first micro-batch, once in a step: what depends on weights
            only and is shared by all micro-batches.
        known_arrays: the arrays, where the caller has them; they must say the same as the rest.
        arrays: derived: operators and tensors as arrays, so that eighty layers are put together in a millisecond.
    """

    forward: tuple[BlockOp, ...]
    backward: tuple[BlockOp, ...]
    tensors: tuple[BlockTensor, ...]
    reads: tuple[Read, ...]
    once: tuple[BlockOp, ...] = ()
    known_arrays: InitVar[BlockArrays | None] = None
    arrays: BlockArrays = field(init=False, repr=False)

    def __post_init__(self, known_arrays: BlockArrays | None) -> None:
        arrays = known_arrays or make_arrays(self.forward, self.backward, self.once, self.tensors)
        object.__setattr__(self, "arrays", arrays)

    def with_copies(self, copies: Mapping[Label, tuple[int, int, bool]]) -> "Block":
        """The block with some of its tensors swapped; its operators stay as they are.

        A planner asks for thousands of them, so the arrays are changed and not made again.

        Args:
            copies: label of a tensor -> `prefetch`, `num_copies` and `is_held` as `BlockTensor` has them. The block
                itself has no swap of its own.
        """
        arrays = self.arrays
        by_label = np.array([copies.get(label, (0, 0, False)) for label in arrays.labels], np.int64).reshape(-1, 3)
        prefetch, num_copies, is_held = by_label[arrays.own.label].T
        own = replace(arrays.own, prefetch=prefetch, num_copies=num_copies, is_held=is_held.astype(bool))
        tensors = tuple(_with_copy(tensor, copies) for tensor in self.tensors)
        handed = tuple(tensor for tensor in tensors if tensor.role is not None)
        known = replace(arrays, own=own, handed=handed)
        return Block(self.forward, self.backward, tensors, self.reads, self.once, known)


def _with_copy(tensor: BlockTensor, copies: Mapping[Label, tuple[int, int, bool]]) -> BlockTensor:
    if tensor.label not in copies or (tensor.is_once and tensor.role is None):
        return tensor
    prefetch, num_copies, is_held = copies[tensor.label]
    return replace(tensor, prefetch=prefetch, num_copies=num_copies, is_held=is_held)
