"""What the newer models of MindFormers need to run in PyNative mode on a CPU: operators without a CPU kernel, made of
others, at the same cell paths.

They are on only where the YAML says `mindswap: {cpu_stand_ins: True}`, the device target is CPU and the mode PyNative;
in graph mode such a network compiles as it is, and does not train. `hidden_dropout: 0` has to stand in the YAML.
"""

from types import SimpleNamespace

import mindspore as ms
from mindformers.parallel_core.training_graph import loss_func
from mindformers.parallel_core.training_graph.base_models.common.embeddings import rotary_pos_embedding
from mindformers.parallel_core.training_graph.tensor_parallel import layers
from mindformers.parallel_core.training_graph.transformer import flash_attention, norm
from mindspore import nn, ops

from mindswap.adapters.cpu import CpuFlashAttention
from mindswap.adapters.pynative.cpu_experts import CpuOneHot, replace_expert_cells


class CpuFlashAttentionScore(CpuFlashAttention):
    """Called as the primitive of MindSpore; of its four outputs only the attention is there."""

    def __init__(self, head_num, scale_value=1.0, input_layout="BNSD", **_):
        super().__init__(head_num, scale_value, input_layout)

    def construct(  # type: ignore[override]
        self, query, key, value, real_shift=None, drop_mask=None, padding_mask=None, attn_mask=None, *_
    ):
        """In float32, as a CPU has no other; maxima, sums and the empty output are None."""
        wide = [ops.cast(x, ms.float32) for x in (query, key, value)]
        return None, None, None, ops.cast(super().construct(*wide, attn_mask), query.dtype)


class CpuOuter(nn.Cell):
    """Every product of two vectors."""

    def construct(self, x, y):
        """Of shape (n,) and (m,)."""
        return ops.mul(ops.reshape(x, (-1, 1)), ops.reshape(y, (1, -1)))

    def shard(self, *_):
        """One rank only."""
        return self


def _embedding(indices, weight):
    """Rows of a matrix; that of `mindspore.mint` has no CPU kernel."""
    return ops.gather(weight, indices, 0)


def _call_morph(morph, *args):
    """A Morph is its function; it refuses PyNative mode only because nobody compiles it there."""
    return morph.__morph_fn__(*args)


def replace_cpu_cells() -> None:
    """Let MindFormers build its newer models from these, in this process."""
    ops.operations.Morph.__call__ = _call_morph
    flash_attention.FlashAttentionScore = CpuFlashAttentionScore
    norm.FusedRMSNorm = norm.RMSNorm  # MindFormers' own, of single operators
    rotary_pos_embedding.Outer = CpuOuter
    loss_func.OneHotExt = CpuOneHot
    loss_func.ZerosLikeExt = ops.ZerosLike
    layers.mint = SimpleNamespace(nn=SimpleNamespace(functional=SimpleNamespace(embedding=_embedding)))
    replace_expert_cells()
