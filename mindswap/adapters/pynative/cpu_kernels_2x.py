"""CPU replacements for operators without a CPU kernel, for dense models of MindFormers 2.x in PyNative mode.

They are active only with `mindswap: {cpu_stand_ins: True}` in the YAML and device target CPU, and compute in float32:
values are those of single operators. Imported after `hyper_parallel`.
"""

from typing import Any

import mindspore as ms
import numpy as np
from mindformers.pynative.layers import layer_norm
from mindformers.pynative.layers.flash_attention import FlashAttention
from mindspore import mint, ops

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
    mint.zeros = lambda *size, dtype=None: _full(_shape(size), 0, dtype=dtype)
    mint.ones = lambda *size, dtype=None: _full(_shape(size), 1, dtype=dtype)
    mint.zeros_like = lambda x, dtype=None: _full(x.shape, 0, dtype=dtype or x.dtype)
    mint.ones_like = ops.ones_like = lambda x, dtype=None: _full(x.shape, 1, dtype=dtype or x.dtype)
    mint.arange = _arange
    mint.outer = lambda x, y: mint.reshape(x, (-1, 1)) * mint.reshape(y, (1, -1))
    mint.index_select = _index_select
    mint.gather = lambda x, dim, index: mint.sum(x * _one_hot(index, x.shape[1]), -1, True)
    mint.scatter_add = lambda x, dim, index, source: x + _one_hot(index, x.shape[1]) * source
    mint.stack = lambda tensors, dim=0: mint.concat([mint.unsqueeze(x, dim) for x in tensors], dim)
    for owner in (mint, ops, ms.Tensor):
        owner.addcmul = _addcmul


def _attention(self, query, key, value, attention_mask=None, *_, **__):
    """Compute attention of single operators; tensors are (sequence, batch, heads, size of a head)."""
    length, batch = query.shape[:2]
    query, key, value = (_heads(x, batch, self.head_num) for x in (query, key, value))
    scores = mint.matmul(query * self.scalar_value, mint.transpose(key, -1, -2))
    if attention_mask is not None:
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
    self.copy_(_full(self.shape, float(value), dtype=self.dtype))
    return self


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else tuple(size)


def _full(size, value, *, dtype=None):
    shape = (size,) if isinstance(size, int) else tuple(size)
    return ops.cast(ms.Tensor(np.full(shape, value, np.float32)), dtype or ms.float32)


def _arange(*bounds, dtype=None):
    values = np.arange(*bounds)
    tensor = ms.Tensor(values.astype(np.float32 if values.dtype.kind == "f" else np.int64))
    return tensor if dtype is None else ops.cast(tensor, dtype)


def _on_host(function):
    def compute(x, diagonal=0):
        return ops.cast(ms.Tensor(function(ops.cast(x, ms.float32).asnumpy(), diagonal)), x.dtype)

    return compute


def _one_hot(index, num_classes: int):
    on, off = ms.Tensor(1.0, ms.float32), ms.Tensor(0.0, ms.float32)
    return ops.one_hot(mint.reshape(index, (-1,)), num_classes, on, off)


def _index_select(x, dim, index):
    """Select rows: `dim` is 0 in a vocabulary embedding."""
    return mint.matmul(_one_hot(index, x.shape[0]), x)


def _addcmul(x, first, second, value=1, **_):
    return x + first * second * value
