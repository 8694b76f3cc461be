"""CPU replacements for operators without a CPU kernel, for dense models of MindFormers 2.x in PyNative mode.

They are active only with `mindswap: {cpu_stand_ins: True}` in the YAML and device target CPU, and compute in float32:
values are those of single operators. Imported after `hyper_parallel`.
"""

from typing import Any

import mindspore as ms
import numpy as np
from mindformers.pynative.layers import layer_norm
from mindformers.pynative.layers.flash_attention import FlashAttention
from mindformers.pynative.transformers.moe import moe_utils
from mindspore import mint, ops

from mindswap.errors import LaunchError

MASKED = -1e9  # added to the score of a masked position
_random = np.random.default_rng(0)


def replace_cpu_kernels() -> None:
    """Replace the operators in this process."""
    FlashAttention.construct = _attention
    layer_norm.rms_norm = _rms_norm
    for name, function in {"normal_": _normal_, "fill_": _fill_, "zero_": lambda x: _fill_(x, 0)}.items():
        setattr(ms.Tensor, name, function)
    for name in ("tril", "triu"):
        setattr(mint, name, _on_host(getattr(np, name)))
    mint.full = _full
    mint.zeros, mint.ones = _filled_with(0), _filled_with(1)
    mint.zeros_like, mint.ones_like = _like_filled_with(0), _like_filled_with(1)
    ops.ones_like = mint.ones_like
    mint.arange = _arange
    mint.outer = lambda input, vec2: mint.reshape(input, (-1, 1)) * mint.reshape(vec2, (1, -1))
    mint.index_select, mint.gather, mint.scatter_add = _index_select, _gather, _scatter_add
    mint.stack = lambda tensors, dim=0: mint.concat([mint.unsqueeze(x, dim) for x in tensors], dim)
    for owner in (mint, ops, ms.Tensor):
        owner.addcmul = _addcmul
    moe_utils.clear_aux_losses_tracker = _clear_losses


def _attention(self, query, key, value, attention_mask=None, *_, **__):
    """Compute attention of single operators; tensors are (sequence, batch, heads, size of a head)."""
    if attention_mask is None:
        raise _unsupported("FlashAttention without attention_mask", "a mask of (sequence, sequence)")
    length, batch = query.shape[:2]
    query, key, value = (_heads(x, batch, self.head_num) for x in (query, key, value))
    scores = mint.matmul(query * self.scalar_value, mint.transpose(key, -1, -2))
    scores = scores + ops.cast(attention_mask, ms.float32) * MASKED
    outputs = mint.matmul(mint.nn.functional.softmax(scores, dim=-1), value)
    return mint.reshape(mint.permute(outputs, (2, 0, 1, 3)), (length, batch, -1))


def _heads(x, batch: int, num_heads: int):
    heads = x if x.ndim == 4 else mint.reshape(x, (x.shape[0], batch, num_heads, -1))
    heads = ops.cast(mint.permute(heads, (1, 2, 0, 3)), ms.float32)
    repeats = num_heads // heads.shape[1]
    return heads if repeats == 1 else mint.repeat_interleave(heads, repeats, 1)


def _rms_norm(x, gamma, epsilon: float = 1e-6):
    mean = mint.mean(x * x, -1, True)
    return x * mint.rsqrt(mean + epsilon) * gamma, mean


def _normal_(self, mean=0, std=1, *, generator=None):
    values = _random.normal(float(mean), float(std), self.shape).astype(np.float32)
    self.copy_(ops.cast(ms.Tensor(values), self.dtype))
    return self


def _fill_(self, value):
    self.copy_(_full(self.shape, value, dtype=self.dtype))
    return self


def _full(size, fill_value, *, dtype=None):
    """Fill on the host, in 64 bits, so that integers stay exact."""
    value = fill_value.item() if isinstance(fill_value, ms.Tensor) else fill_value
    return _on_device(np.full(size, value), dtype)


def _filled_with(value: int):
    return lambda size, *, dtype=None: _full(size, value, dtype=dtype or ms.float32)


def _like_filled_with(value: int):
    return lambda input, *, dtype=None: _full(input.shape, value, dtype=dtype or input.dtype)


def _arange(start=0, end=None, step=1, *, dtype=None):
    first, limit = (0, start) if end is None else (start, end)
    return _on_device(np.arange(first, limit, step), dtype)


def _on_device(values: np.ndarray, dtype: Any):
    """Return a tensor; without a type float32 for floating point, otherwise that of the values."""
    return ms.Tensor(values, dtype or (ms.float32 if values.dtype.kind == "f" else None))


def _on_host(function):
    def compute(input, diagonal=0):
        exact = ops.cast(input, ms.float32) if input.dtype == ms.bfloat16 else input  # numpy has no bfloat16
        return ms.Tensor(function(exact.asnumpy(), diagonal), input.dtype)

    return compute


def _one_hot(index, num_classes: int):
    on, off = ms.Tensor(1.0, ms.float32), ms.Tensor(0.0, ms.float32)
    return ops.one_hot(mint.reshape(index, (-1,)), num_classes, on, off)


def _index_select(input, dim, index):
    """Select rows, as a vocabulary embedding does."""
    if dim not in (0, -input.ndim):
        raise _unsupported(f"mint.index_select with dim {dim}", "dim 0")
    rows = mint.matmul(_one_hot(index, input.shape[0]), mint.reshape(input, (input.shape[0], -1)))
    return mint.reshape(rows, (-1, *input.shape[1:]))


def _gather(input, dim, index):
    """Return one value of each row, as a loss does."""
    _require_column("mint.gather", input, dim, index)
    return mint.sum(input * _one_hot(index, input.shape[1]), -1, True)


def _scatter_add(input, dim, index, src):
    """Add to one value of each row, as the gradient of a loss does."""
    _require_column("mint.scatter_add", input, dim, index)
    return input + _one_hot(index, input.shape[1]) * src


def _require_column(name: str, values, dim: int, index) -> None:
    if dim not in (1, -1) or values.ndim != 2 or tuple(index.shape) != (values.shape[0], 1):
        shapes = f"input {tuple(values.shape)} and index {tuple(index.shape)}"
        raise _unsupported(f"{name} with dim {dim}, {shapes}", "dim 1, input (rows, classes) and index (rows, 1)")


def _unsupported(call: str, allowed: str) -> LaunchError:
    return LaunchError(
        f"{call}: the replacement for a CPU does not compute it\n"
        f"    allowed: {allowed}\n"
        "    fix:     a dense model as Qwen3, or device target Ascend"
    )


def _clear_losses() -> None:
    """Clear the losses of experts as a whole; a CPU does not write into the items of a tensor that a loop gives."""
    moe_utils.get_moe_layer_wise_logging_tracker()["values"].zero_()


def _addcmul(x, first, second, value=1, **_):
    return x + first * second * value
