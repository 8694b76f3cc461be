"""Replacements for parts of MindFormers' models that the frontend cannot compile without Ascend.

They change no shape and no type. Names are those of mindformers 1.9.0.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindformers.modules.layers import RotaryEmbedding
from mindformers.modules.transformer.transformer import LowerTriangularMaskWithDynamic
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import Zero
from mindspore.ops._grad_experimental.grad_base import bprop_getters
from mindspore.ops.primitive import PrimitiveWithInfer, prim_attr_register

from mindswap.adapters.versions import replaced
from mindswap.graph.analysis.execution_order import ROTATION_NOTE
from mindswap.graph.constants import STAND_IN_NAME
from mindswap.graph.sharding.experts import NAME_MARK

# Longest sequence whose mask is stored as a constant: 4 Mi elements.
MAX_WRITTEN_SEQ_LENGTH = 2048
# Sequence length of the mask that the cell creates during construction, before it is replaced.
SMALL_SEQ_LENGTH = 8


def use_rope_slices(network: nn.Cell) -> list[str]:
    """Let every rotary embedding split its input in halves instead of multiplying it with a permutation matrix.

    The frontend infers shapes for the CPU, whose BatchMatMul does not broadcast. The setting is made on the cells,
    because `use_rope_slice` of the configuration does not reach the layers of `fine_grain_interleave`.

    Returns:
        Notes for the user.
    """
    cells = [cell for _, cell in network.cells_and_names() if isinstance(cell, RotaryEmbedding)]
    changed = [cell for cell in cells if not cell.use_rope_slice]
    for cell in changed:
        cell.use_rope_slice = True
    return [ROTATION_NOTE] if changed else []


class BroadcastProduct(PrimitiveWithInfer):
    """BatchMatMul whose second operand has fewer dimensions, equal to the last ones of the first.

    The frontend infers shapes for the CPU, whose BatchMatMul does not broadcast. The gradients are those of MindSpore
    (grad_math_ops.cc): that of the second operand is a product over all dimensions, summed over the first ones.
    """

    @prim_attr_register
    def __init__(self, transpose_a=False, transpose_b=False):
        self.add_prim_attr(NAME_MARK, "BatchMatMul")

    def __infer__(self, x, y):
        columns = y["shape"][-2 if self.attrs["transpose_b"] else -1]
        return {"shape": (*x["shape"][:-1], columns), "dtype": x["dtype"], "value": None}


@bprop_getters.register(BroadcastProduct)
def _broadcast_gradient(self):
    is_transposed = self.attrs["transpose_b"]
    by_columns = BroadcastProduct(transpose_b=not is_transposed)
    by_rows = ops.BatchMatMul(transpose_a=True)
    add_up = ops.ReduceSum()

    def bprop(x, y, out, dout):
        dx = by_columns(dout, y)
        dy = by_rows(dout, x) if is_transposed else by_rows(x, dout)
        return dx, add_up(dy, tuple(range(x.ndim - y.ndim)))

    return bprop


def use_broadcast_products(network: nn.Cell) -> None:
    """Let the frontend compile products of legacy experts, whose groups of tokens share their weights."""
    for _, cell in network.cells_and_names():
        product = cell._primitives.get("matmul") if getattr(cell, "expert_flag", False) else None
        if isinstance(product, ops.BatchMatMul):
            stand_in = BroadcastProduct(transpose_b=product.transpose_b)
            for name, value in product.attrs.items():
                stand_in.add_prim_attr(name, value)
            cell.matmul = stand_in


def _lengthen(cell: nn.Cell, seq_length: int, batch_size: int, num_pieces: int) -> None:
    """Extend a short mask of a sequence in pieces with the tensors that select a piece."""
    length = seq_length // num_pieces
    cache = ms.Tensor(shape=(batch_size, seq_length), dtype=ms.float32, init=Zero())
    cell.mask_cache = Parameter(cache, name=cell.mask_cache.name, requires_grad=False, parallel_optimizer=False)
    pieces = np.arange(seq_length, dtype=np.int32) // length
    cell.mask_mask = ms.Tensor(np.broadcast_to(pieces, (batch_size, seq_length)).copy())
    cell.seq_seg_len = ms.Tensor(length, dtype=ms.int32)
    cell.seq_seg_range = ms.Tensor(np.arange(length), dtype=ms.int32)


@contextlib.contextmanager
def masks_without_values() -> Iterator[None]:
    """Build causal masks of (sequence, sequence) with shape and type but without values, inside the block.

    As a constant, such a mask is part of the serialized graph: 2 GiB at a sequence of 32768 in bfloat16, more than a
    protobuf can hold, and 32 GiB at 131072. Here it is a parameter without data, which `graph.constants` turns back
    into a constant. Masks of `use_attn_mask_compression` are constants of 2048 x 2048; masks up to that size are not
    changed.
    """
    original = LowerTriangularMaskWithDynamic.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def build(cell: nn.Cell, seq_length: int, *args: object, **kwargs: object) -> None:
        arguments = signature.bind(cell, seq_length, *args, **kwargs)
        arguments.apply_defaults()
        options = arguments.arguments
        is_small = options["use_attn_mask_compression"] or seq_length <= MAX_WRITTEN_SEQ_LENGTH
        if is_small or options["use_past"]:  # masks of inference differ
            original(cell, seq_length, *args, **kwargs)
            return
        num_pieces = options["seq_split_num"]
        original(cell, SMALL_SEQ_LENGTH * num_pieces, *args, **kwargs)
        cell.seq_length = seq_length
        if num_pieces > 1:
            _lengthen(cell, seq_length, options["batch_size"], num_pieces)
        dtype = getattr(cell, STAND_IN_NAME).dtype
        delattr(cell, STAND_IN_NAME)
        mask = ms.Tensor(shape=(seq_length, seq_length), dtype=dtype, init=Zero())
        setattr(cell, STAND_IN_NAME, Parameter(mask, name=STAND_IN_NAME, requires_grad=False))

    with replaced(LowerTriangularMaskWithDynamic, __init__=build):
        yield
