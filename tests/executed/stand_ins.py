"""Operators that have no CPU kernel, in numpy: the same mathematics, deterministic.

Inputs are those of the primitive, in its order (documentation of mindspore.ops of the same names).
"""

from collections.abc import Callable

import numpy as np

from mindswap.errors import GraphError

SOFTMAX_WIDTH = 8  # the NPU's softmax maxima and sums have eight equal columns
FAR_BELOW = -1.0e9


def rms_norm(x, gamma, epsilon=1e-6):
    """x / root mean square of the last axes * gamma, and 1 / root mean square in float32."""
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    wide = x.astype(np.float32)
    rstd = (1 / np.sqrt(np.mean(wide * wide, axis=axes, keepdims=True) + np.float32(epsilon))).astype(np.float32)
    return (wide * rstd * gamma).astype(x.dtype), rstd


def rms_norm_grad(dy, x, rstd, gamma):
    """Gradients by x and by gamma."""
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    wide, scaled = x.astype(np.float32), dy.astype(np.float32) * gamma
    mean = np.mean(scaled * wide, axis=axes, keepdims=True)
    dx = rstd * scaled - wide * rstd**3 * mean
    dgamma = np.sum(dy.astype(np.float32) * wide * rstd, axis=tuple(range(x.ndim - gamma.ndim)))
    return dx.astype(x.dtype), dgamma.astype(np.float32)


def flash_attention(q, k, v, shift, drop, padding, mask, prefix, q_lengths, kv_lengths, *settings):  # noqa: PLR0913 the kernel's
    """Attention: maxima and sums of its softmax, an empty output, and what it attends to."""
    num_heads, _, scale, _, _, _, layout, sparse_mode = settings
    queries, keys, values = (_to_heads(x, layout, num_heads, q) for x in (q, k, v))
    scores = _scores(queries, _match(keys, queries), mask, scale, sparse_mode)
    maxima = scores.max(-1, keepdims=True)
    weights = np.exp(scores - maxima)
    sums = weights.sum(-1, keepdims=True)
    output = np.matmul(weights / sums, _match(values, queries))
    wide = [np.repeat(x, SOFTMAX_WIDTH, -1).astype(np.float32) for x in (maxima, sums)]
    return (*wide, np.zeros((1,), q.dtype), _from_heads(output, layout).astype(q.dtype))


def flash_attention_grad(q, k, v, dy, shift, drop, padding, mask, maxima, sums, empty, attended, *settings):  # noqa: PLR0913
    """Gradients by query, key and value, and an empty one, from what forward kept."""
    num_heads, _, scale, _, _, _, layout, sparse_mode = settings[-8:]
    queries, keys, values, grads, outputs = (_to_heads(x, layout, num_heads, q) for x in (q, k, v, dy, attended))
    all_keys, all_values = _match(keys, queries), _match(values, queries)
    weights = np.exp(_scores(queries, all_keys, mask, scale, sparse_mode) - maxima[..., :1]) / sums[..., :1]
    d_weights = np.matmul(grads, all_values.swapaxes(-1, -2))
    d_scores = weights * (d_weights - np.sum(grads * outputs, -1, keepdims=True)) * np.float32(scale)
    dq = np.matmul(d_scores, all_keys)
    dk = _gather_heads(np.matmul(d_scores.swapaxes(-1, -2), queries), keys)
    dv = _gather_heads(np.matmul(weights.swapaxes(-1, -2), grads), values)
    return (*(_from_heads(x, layout).astype(q.dtype) for x in (dq, dk, dv)), np.zeros((0,), q.dtype))


def _scores(queries, keys, mask, scale, sparse_mode):
    scores = np.matmul(queries, keys.swapaxes(-1, -2)) * np.float32(scale)
    if sparse_mode in (2, 3):  # causal; the mask is a small one that the NPU repeats
        num_queries, num_keys = scores.shape[-2:]
        mask = np.triu(np.ones((num_queries, num_keys), np.uint8), 1 + (num_keys - num_queries) * (sparse_mode == 3))
    if mask is not None:
        # Poison in the mask must reach the result: it is no 0 or 1.
        allowed = np.where(mask == 0, np.float32(0), np.where(mask == 1, np.float32(FAR_BELOW), np.float32(np.nan)))
        scores = scores + allowed
    return scores


def _to_heads(x, layout, num_heads, query):
    """(batch, heads, sequence, head size) in float32, from any layout of FlashAttentionScore but TND."""
    x = x.astype(np.float32)
    if layout == 1:  # BNSD
        return x
    if layout == 3:  # BSND
        return x.transpose(0, 2, 1, 3)
    if layout in (0, 2):  # BSH, SBH
        x = x if layout == 0 else x.transpose(1, 0, 2)
        head_dim = query.shape[-1] // num_heads
        return x.reshape(*x.shape[:2], -1, head_dim).transpose(0, 2, 1, 3)
    raise GraphError(f"no stand-in for FlashAttentionScore with input layout {layout}")


def _from_heads(x, layout):
    if layout == 1:
        return x
    x = x.transpose(0, 2, 1, 3)
    if layout == 3:
        return x
    x = x.reshape(*x.shape[:2], -1)
    return x if layout == 0 else x.transpose(1, 0, 2)


def _match(few, queries):
    """Key and value heads, each as often as query heads share it."""
    return np.repeat(few, queries.shape[1] // few.shape[1], 1)


def _gather_heads(many, few):
    shape = few.shape
    return many.reshape(shape[0], shape[1], -1, *shape[2:]).sum(2)


def dropout(x, p, seed, offset):
    """Dropout that drops the same elements each time it runs on this shape; the mask has one bit for each."""
    keep = np.random.default_rng(x.shape).random(x.size) >= float(p)
    mask = np.zeros(-(-x.size // 128) * 16, np.uint8)
    bits = np.packbits(keep)
    mask[: len(bits)] = bits
    return (x * _kept(mask, x.shape, p).astype(x.dtype), mask)


def dropout_grad(dy, mask, p):
    """As `dropout`."""
    return (dy * _kept(mask, dy.shape, p).astype(dy.dtype),)


def _kept(mask, shape, p):
    """1 / (1 - p) where an element is kept, else 0."""
    size = int(np.prod(shape))
    return np.unpackbits(mask)[:size].reshape(shape) / np.float32(1 - float(p) or 1)


def outer(x, y):
    """Every product of two vectors."""
    return (np.outer(x, y),)


def embedding_grad(dy, indices, num_weights, padding_idx=None, scale_grad_by_freq=False):
    """Sum of the gradients of each row."""
    grad = np.zeros((int(num_weights), dy.shape[-1]), dy.dtype)
    rows = indices.reshape(-1)
    is_row = (rows >= 0) & (rows < len(grad))
    np.add.at(grad, rows[is_row], dy.reshape(-1, dy.shape[-1])[is_row])
    if padding_idx is not None:
        grad[int(padding_idx)] = 0
    return (grad,)


STAND_INS: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
    "DropoutExt": dropout,
    "DropoutGradExt": dropout_grad,
    "EmbeddingDenseBackward": embedding_grad,
    "FlashAttentionScore": flash_attention,
    "FlashAttentionScoreGrad": flash_attention_grad,
    "Outer": outer,
    "RmsNorm": rms_norm,
    "RmsNormGrad": rms_norm_grad,
}
