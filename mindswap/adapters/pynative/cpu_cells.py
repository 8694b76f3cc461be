"""CPU replacements for operators without a CPU kernel, for the newer models of MindFormers in PyNative mode.

They keep the cell paths, and are active only with `mindswap: {cpu_stand_ins: True}` in the YAML, device target CPU and
PyNative mode. In graph mode such a network compiles unchanged, and does not train. The YAML must contain
`hidden_dropout: 0`.
"""

from types import SimpleNamespace

import mindspore as ms
from mindformers.parallel_core.training_graph import loss_func
from mindformers.parallel_core.training_graph.base_models.common.embeddings import rotary_pos_embedding
from mindformers.parallel_core.training_graph.base_models.gpt import moe_module_specs
from mindformers.parallel_core.training_graph.tensor_parallel import layers
from mindformers.parallel_core.training_graph.transformer import flash_attention, norm
from mindformers.parallel_core.training_graph.transformer.mlp import MLP, MLPInterleaved
from mindformers.parallel_core.training_graph.transformer.moe import ffn, router, shared_experts, token_dispatcher
from mindspore import nn, ops

from mindswap.adapters.graph.cpu_stand_ins import CpuFlashAttention


class CpuFlashAttentionScore(CpuFlashAttention):
    """Replacement with the signature of MindSpore's primitive; of its four outputs only attention is computed."""

    def __init__(self, head_num, scale_value=1.0, input_layout="BNSD", **_):
        super().__init__(head_num, scale_value, input_layout)

    def construct(  # type: ignore[override]
        self, query, key, value, real_shift=None, drop_mask=None, padding_mask=None, attn_mask=None, *_
    ):
        """Compute in float32, the only type of a CPU; maxima, sums and the empty output are None."""
        wide = [ops.cast(x, ms.float32) for x in (query, key, value)]
        return None, None, None, ops.cast(super().construct(*wide, attn_mask), query.dtype)


class CpuOuter(nn.Cell):
    """Outer product of two vectors."""

    def construct(self, x, y):
        """Multiply vectors of shape (n,) and (m,)."""
        return ops.mul(ops.reshape(x, (-1, 1)), ops.reshape(y, (1, -1)))

    def shard(self, *_):
        """Do nothing: there is only one rank."""
        return self


def _embedding(indices, weight):
    """Look up rows of a matrix; `mindspore.mint` has no CPU kernel for it."""
    return ops.gather(weight, indices, 0)


def _call_morph(morph, *args):
    """Call the function of a Morph, which refuses PyNative mode only because nothing is compiled there."""
    return morph.__morph_fn__(*args)


def replace_cpu_cells() -> None:
    """Let MindFormers build its newer models from these replacements, in this process."""
    ops.operations.Morph.__call__ = _call_morph
    flash_attention.FlashAttentionScore = CpuFlashAttentionScore
    norm.FusedRMSNorm = norm.RMSNorm  # MindFormers' own, of single operators
    rotary_pos_embedding.Outer = CpuOuter
    loss_func.OneHotExt = CpuOneHot
    loss_func.ZerosLikeExt = ops.ZerosLike
    layers.mint = SimpleNamespace(nn=SimpleNamespace(functional=SimpleNamespace(embedding=_embedding)))
    replace_expert_cells()


# Experts: routing operators that only an NPU has. Shapes equal those of the real operators and are the same in each
# step, independent of the router, so that every pass matches the recorded one. The grouped product multiplies each
# row with all experts and selects the right one. There is only one rank, so tokens are not exchanged. Names are those
# of mindformers 1.9.0, parallel_core/training_graph/transformer/moe.


class _PrimitiveStandIn(nn.Cell):
    """Cell in place of a primitive, which ignores the settings of the model for that primitive."""

    def recompute(self, mode=True, **options):
        """Do nothing: the cell is recomputed together with the enclosing cell."""
        return self

    def shard(self, *_, **__):
        """Do nothing: there is only one rank."""
        return self


class CpuOneHot(_PrimitiveStandIn):
    """One-hot encoding along the last axis."""

    def __init__(self, axis=-1):
        super().__init__()
        self.one_hot = ops.OneHot(axis)

    def construct(self, labels, num_classes, on_value, off_value):
        """Encode labels of any shape."""
        return self.one_hot(labels, num_classes, on_value, off_value)


class CpuTopK(_PrimitiveStandIn):
    """Largest values along the last axis, with their indices."""

    def __init__(self):
        super().__init__()
        self.topk = ops.TopK(sorted=True)

    def construct(self, x, k):
        """Return indices as int64, as an NPU does."""
        values, indices = self.topk(x, k)
        return values, ops.cast(indices, ms.int64)


class CpuSwiglu(_PrimitiveStandIn):
    """SiLU of one half, times the other half."""

    def __init__(self):
        super().__init__()
        self.silu = ops.auto_generate.SiLU()
        self.mul = ops.Mul()

    def construct(self, x, dim):
        """Split along the last axis."""
        half = x.shape[dim] // 2
        return self.mul(self.silu(x[..., :half]), x[..., half:])


class _TwoOutputs(MLP):
    def construct(self, *inputs):
        return super().construct(*inputs)[:2]


class _TwoOutputsInterleaved(MLPInterleaved):
    def construct(self, *inputs):
        return super().construct(*inputs)[:2]


class CpuSharedExpertMLP(shared_experts.SharedExpertMLP, _TwoOutputs):
    """Shared experts that use two of the three outputs of an MLP, which otherwise only the compiler accepts."""


class CpuSharedExpertMLPInterleaved(shared_experts.SharedExpertMLPInterleaved, _TwoOutputsInterleaved):
    """See `CpuSharedExpertMLP`."""


class CpuDispatcher(token_dispatcher.MoEAlltoAllTokenDispatcher):
    """Token dispatcher whose counts are on the host already."""

    def __init__(self, config):
        super().__init__(config)
        self.sort = _sort
        self.cumsum = ops.cumsum
        self.d2h = _keep_on_host


def _keep_on_host(x, device, blocking):
    return x


def _sort(x, dim=-1):
    """Sort indices of experts and rows, without a gradient."""
    values, indices = ops.Sort(axis=dim)(ops.stop_gradient(x))
    return values, ops.cast(indices, ms.int64)


def _select_rows(x, axis, index):
    return ops.gather(x, index, axis)


def _grouped_product(rows, weights, *nothing_and_ends):
    """Multiply each row with the weight of its expert.

    Args:
        rows: list of one tensor (rows, in).
        weights: list of one tensor (experts, in, out).
        nothing_and_ends: unused arguments; the last one is the end row of each expert.
    """
    (x,), (weight,), ends = rows, weights, nothing_and_ends[-1]
    num_rows, (num_experts, width, out_width) = x.shape[0], weight.shape
    is_after_end = ops.cast(ops.arange(num_rows).reshape((-1, 1)) >= ends.reshape((1, -1)), ms.int32)
    expert = ops.broadcast_to(is_after_end.sum(axis=1).reshape((-1, 1, 1)), (num_rows, 1, out_width))
    side_by_side = ops.transpose(weight, (1, 0, 2)).reshape((width, num_experts * out_width))
    of_all = ops.matmul(x, side_by_side).reshape((num_rows, num_experts, out_width))
    return [ops.gather_elements(of_all, 1, expert).reshape((num_rows, out_width))]


def replace_expert_cells() -> None:
    """Let MindFormers build experts from these replacements, in this process."""
    router.TopkExt = CpuTopK
    router.OneHotExt = token_dispatcher.OneHotExt = CpuOneHot
    token_dispatcher.SortExt = lambda: _sort
    token_dispatcher.IndexSelect = lambda: _select_rows
    token_dispatcher.FmodScalar = lambda: ops.floor_mod
    ffn.MoEAlltoAllTokenDispatcher = CpuDispatcher
    ffn.Swiglu = CpuSwiglu
    ffn.GroupedMatmul = lambda **_: _grouped_product
    moe_module_specs.SharedExpertMLP = CpuSharedExpertMLP
    moe_module_specs.SharedExpertMLPInterleaved = CpuSharedExpertMLPInterleaved
