"""Cells for operators without a CPU kernel, made of other operators, at the same cell paths.

The newer models of MindFormers need them to run in PyNative mode on a CPU.

They are on only where the YAML says `mindswap: {cpu_stand_ins: True}`, the device target is CPU and the mode PyNative;
in graph mode such a network compiles as it is, and does not train. `hidden_dropout: 0` has to stand in the YAML.
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


# Experts: the operators of routing that only an NPU has, made of others. Shapes are those of the real ones and the same
# in each step, whatever the router decides, so that a recorded pass is as the next. The grouped product multiplies each
# row with all experts and takes the one that is meant. Only one rank: tokens stay where they are. Names are those of
# mindformers 1.9.0, parallel_core/training_graph/transformer/moe.


class _PrimitiveStandIn(nn.Cell):
    """Stands where a primitive was: what a model sets on that one has no meaning here."""

    def recompute(self, mode=True, **options):
        """As `Primitive.recompute`, which takes a mode; a cell is recomputed with the cell around it."""
        return self

    def shard(self, *_, **__):
        """One rank only."""
        return self


class CpuOneHot(_PrimitiveStandIn):
    """One-hot of the last axis."""

    def __init__(self, axis=-1):
        super().__init__()
        self.one_hot = ops.OneHot(axis)

    def construct(self, labels, num_classes, on_value, off_value):
        """Labels of any shape."""
        return self.one_hot(labels, num_classes, on_value, off_value)


class CpuTopK(_PrimitiveStandIn):
    """The largest of the last axis, and where they are."""

    def __init__(self):
        super().__init__()
        self.topk = ops.TopK(sorted=True)

    def construct(self, x, k):
        """Indices are int64, as an NPU gives them."""
        values, indices = self.topk(x, k)
        return values, ops.cast(indices, ms.int64)


class CpuSwiglu(_PrimitiveStandIn):
    """SiLU of one half times the other."""

    def __init__(self):
        super().__init__()
        self.silu = ops.auto_generate.SiLU()
        self.mul = ops.Mul()

    def construct(self, x, dim):
        """The halves are those of the last axis."""
        half = x.shape[dim] // 2
        return self.mul(self.silu(x[..., :half]), x[..., half:])


class _TwoOutputs(MLP):
    def construct(self, *inputs):
        return super().construct(*inputs)[:2]


class _TwoOutputsInterleaved(MLPInterleaved):
    def construct(self, *inputs):
        return super().construct(*inputs)[:2]


class CpuSharedExpertMLP(shared_experts.SharedExpertMLP, _TwoOutputs):
    """It takes two of the three outputs of an MLP, which only the compiler lets it do."""


class CpuSharedExpertMLPInterleaved(shared_experts.SharedExpertMLPInterleaved, _TwoOutputsInterleaved):
    """As `CpuSharedExpertMLP`."""


class CpuDispatcher(token_dispatcher.MoEAlltoAllTokenDispatcher):
    """Its counts are on the host already."""

    def __init__(self, config):
        super().__init__(config)
        self.sort = _sort
        self.cumsum = ops.cumsum
        self.d2h = _keep_on_host


def _keep_on_host(x, device, blocking):
    return x


def _sort(x, dim=-1):
    """Sort numbers of experts and of rows, without a gradient."""
    values, indices = ops.Sort(axis=dim)(ops.stop_gradient(x))
    return values, ops.cast(indices, ms.int64)


def _select_rows(x, axis, index):
    return ops.gather(x, index, axis)


def _grouped_product(rows, weights, *nothing_and_ends):
    """Each row times the weight of its expert: (rows, in), (experts, in, out), and the row each expert ends at."""
    (x,), (weight,), ends = rows, weights, nothing_and_ends[-1]
    num_rows, (num_experts, width, out_width) = x.shape[0], weight.shape
    places = ops.cast(ops.arange(num_rows).reshape((-1, 1)) >= ends.reshape((1, -1)), ms.int32)
    expert = ops.broadcast_to(places.sum(axis=1).reshape((-1, 1, 1)), (num_rows, 1, out_width))
    side_by_side = ops.transpose(weight, (1, 0, 2)).reshape((width, num_experts * out_width))
    of_all = ops.matmul(x, side_by_side).reshape((num_rows, num_experts, out_width))
    return [ops.gather_elements(of_all, 1, expert).reshape((num_rows, out_width))]


def replace_expert_cells() -> None:
    """Let MindFormers build experts from these, in this process."""
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
