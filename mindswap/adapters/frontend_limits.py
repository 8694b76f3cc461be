"""What the frontend cannot take from MindFormers' models on a machine without Ascend, and what stands for it.

Nothing here changes a shape or a type that a device has. Names are those of mindformers 1.9.0.
"""

import contextlib
import functools
from collections.abc import Iterator

import mindspore as ms
from mindformers.modules.layers import RotaryEmbedding
from mindformers.modules.transformer.transformer import LowerTriangularMaskWithDynamic
from mindspore import Parameter, nn
from mindspore.common.initializer import Zero

from mindswap.graph.constants import STAND_IN_NAME

__all__ = ["masks_without_values", "use_rope_slices"]

# Masks of a sequence up to this are written out, 4 Mi elements.
MAX_WRITTEN_SEQ_LENGTH = 2048
# Elements of a mask that the cell itself makes while the model is built; its own mask has its true shape.
SMALL_SEQ_LENGTH = 8


def use_rope_slices(network: nn.Cell) -> list[str]:
    """Let every rotary embedding cut its input in halves where it would multiply by a matrix that swaps them.

    The frontend infers shapes for the CPU, whose BatchMatMul does not broadcast. It is set on the cells, because
    `use_rope_slice` of the configuration does not reach the layers of `fine_grain_interleave`.

    Returns:
        Notes for the user.
    """
    cells = [cell for _, cell in network.cells_and_names() if isinstance(cell, RotaryEmbedding)]
    changed = [cell for cell in cells if not cell.use_rope_slice]
    for cell in changed:
        cell.use_rope_slice = True
    return ["compiled with use_rope_slice: True, because BatchMatMul does not broadcast on CPU"] if changed else []


@contextlib.contextmanager
def masks_without_values() -> Iterator[None]:
    """While this lasts, causal masks of (sequence, sequence) have their shape and type, and no values.

    As a constant of the graph such a mask is written out with it: 2 GiB at a sequence of 32768 in bfloat16, which is
    more than a protobuf takes, and 32 GiB at 131072. Here it is a parameter without data; `graph.constants` makes a
    constant of it again, so that the step has the tensor that the device has. Masks of `use_attn_mask_compression` are
    constants of 2048 x 2048, and stay, as do those that are no larger.
    """
    original = LowerTriangularMaskWithDynamic.__init__

    @functools.wraps(original)
    def build(cell: nn.Cell, seq_length: int, *args: object, **kwargs: object) -> None:
        is_small = bool(kwargs.get("use_attn_mask_compression")) or seq_length <= MAX_WRITTEN_SEQ_LENGTH
        # A sequence cut for the pipeline has more tensors of its length; inference has other masks.
        if is_small or kwargs.get("use_past") or kwargs.get("seq_split_num", 1) != 1:
            original(cell, seq_length, *args, **kwargs)
            return
        original(cell, SMALL_SEQ_LENGTH, *args, **kwargs)
        cell.seq_length = seq_length
        dtype = getattr(cell, STAND_IN_NAME).dtype
        delattr(cell, STAND_IN_NAME)
        mask = ms.Tensor(shape=(seq_length, seq_length), dtype=dtype, init=Zero())
        setattr(cell, STAND_IN_NAME, Parameter(mask, name=STAND_IN_NAME, requires_grad=False))

    LowerTriangularMaskWithDynamic.__init__ = build
    try:
        yield
    finally:
        LowerTriangularMaskWithDynamic.__init__ = original
