"""Stand-ins of a CPU compute what the cells do that they stand for."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
BATCH, NUM_HEADS, SEQ, HEAD_DIM = 2, 4, 3, 5


def attention(query, key, value, mask, scale):
    """Attention of one head, as in "Attention Is All You Need", section 3.2.1."""
    scores = np.where(mask == 1, -np.inf, query @ key.T * scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ value


@pytest.mark.parametrize(("layout", "num_key_heads"), [("BNSD", 4), ("BNSD", 2), ("BSH", 4)])
def test_attention_of_each_head_with_a_causal_mask(layout, num_key_heads):
    """Several heads of the query share one of key and value where there are fewer of those."""
    import mindspore as ms

    from mindswap.adapters.graph.cpu_stand_ins import CpuFlashAttention

    rng = np.random.default_rng(1)
    shapes = [(BATCH, heads, SEQ, HEAD_DIM) for heads in (NUM_HEADS, num_key_heads, num_key_heads)]
    query, key, value = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    mask = np.triu(np.ones((SEQ, SEQ), np.uint8), 1)
    shared = NUM_HEADS // num_key_heads
    expected = np.array([
        [attention(query[b, h], key[b, h // shared], value[b, h // shared], mask, 0.5) for h in range(NUM_HEADS)]
        for b in range(BATCH)
    ])  # fmt: skip

    def flat(heads):
        return heads.transpose(0, 2, 1, 3).reshape(BATCH, SEQ, -1) if layout == "BSH" else heads

    cell = CpuFlashAttention(NUM_HEADS, scale_value=0.5, input_layout=layout)
    found = cell(*(ms.Tensor(flat(array)) for array in (query, key, value)), ms.Tensor(mask))
    np.testing.assert_allclose(found.asnumpy(), flat(expected), rtol=1e-5, atol=1e-6)
