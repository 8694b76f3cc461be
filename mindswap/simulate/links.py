"""What a block hands to its neighbour, as arrays: made once for each pair, as a planner meets few pairs often. Pure."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mindswap.simulate.block import Block, TensorArrays, tensor_arrays, use_rows
from mindswap.simulate.block_parts import Uses
from mindswap.simulate.stage_pass import neighbour_reads


class TensorLink(NamedTuple):
    """Tensors that a block makes in one pass and its neighbour, or another stage, reads."""

    made: TensorArrays  # as the block has them
    reads: np.ndarray  # uses by the neighbour, positions from where it begins: as `TensorArrays.uses`
    is_sent: np.ndarray  # no neighbour is here: another stage may read it; shape (num_tensors,)


@lru_cache(maxsize=2**14)
def links_of(block: Block, other: Block | None, is_forward: bool) -> TensorLink:
    """What a block hands on in one pass, which goes on with the other block; None where it ends here."""
    arrays = block.arrays
    labels = {label: position for position, label in enumerate(arrays.labels)}
    reads = {read.role: read.uses for read in neighbour_reads(other, is_forward)} if other is not None else {}
    handed = [
        (tensor, reads.get(tensor.role, Uses()))
        for tensor in arrays.handed
        if tensor.role is not None and not tensor.role.is_shared and tensor.is_forward == is_forward
    ]
    made = tensor_arrays([tensor for tensor, _ in handed], labels.__getitem__)
    return TensorLink(made, use_rows([uses for _, uses in handed]), np.full(len(handed), other is None))
