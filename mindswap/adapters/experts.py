"""Experts of the newer models: what the frontend compiles for them, on one rank and on one of several.

MindFormers writes the exchange of tokens between ranks in `Morph`s, functions for what one rank has. Here the layer
of experts stays so: `ToLocal` takes a tensor of all ranks to the part of one, `FromLocal` back, and what is between
them has the sizes of a rank. `ExchangeTokens` stands for AlltoAllV, whose result has its size only when it runs: here
the rank receives as many tokens as it sends, or `skew` times as many. `graph.ranks.experts` takes them out again.
Names are those of mindformers 1.9.0, parallel_core/training_graph/transformer/moe.
"""

import contextlib
import types
from collections.abc import Iterator

from mindformers.parallel_core.training_graph.transformer.moe import token_dispatcher
from mindspore import Tensor, nn, ops
from mindspore.common import dtype as mstype
from mindspore.ops import functional as F
from mindspore.ops._grad_experimental.grad_base import bprop_getters
from mindspore.ops.composite.multitype_ops.zeros_like_impl import zeros_like
from mindspore.ops.operations import Morph
from mindspore.ops.primitive import PrimitiveWithInfer, prim_attr_register

from mindswap.errors import GraphError
from mindswap.graph.ranks.experts import EXCHANGE, FROM_LOCAL, NAME_MARK, TO_LOCAL

__all__ = ["compiled_experts", "set_exchange", "turn_experts", "turn_moe_layer"]

STATIC_DISPATCHER = "alltoall"
STRATEGY_ATTRIBUTES = ("in_strategy", "out_strategy", "in_layout", "out_layout")
# Rows that a rank sends and receives in one exchange; set for each network.
_rows = {"sent": 0, "received": 0, "num_ranks": 1}


class _Shaped(PrimitiveWithInfer):
    """Gives its first operand the shape of its last."""

    def __infer__(self, x, *rest):
        return {"shape": rest[-1]["value"], "dtype": x["dtype"], "value": None}


class ToLocal(_Shaped):
    """The part of one rank; `parts` cut the first dimension, where no strategy before says how it is cut."""

    @prim_attr_register
    def __init__(self, parts=1):
        super().__init__(TO_LOCAL)
        if parts > 1:
            self.add_prim_attr("in_strategy", ((parts, 1),))


class FromLocal(_Shaped):
    """The tensor of all ranks that a part belongs to."""

    @prim_attr_register
    def __init__(self):
        super().__init__(FROM_LOCAL)


class ExchangeTokens(_Shaped):
    """Rows to other ranks and from them: (rows, sent to each, received from each, shape)."""

    @prim_attr_register
    def __init__(self, num_ranks):
        super().__init__(EXCHANGE)
        self.add_prim_attr("num_ranks", num_ranks)


@bprop_getters.register(ToLocal)
def _to_local_gradient(self):
    back = FromLocal()

    def bprop(x, shape, out, dout):
        return back(dout, F.shape(x)), zeros_like(shape)

    return bprop


@bprop_getters.register(FromLocal)
def _from_local_gradient(self):
    back = ToLocal()

    def bprop(x, shape, out, dout):
        return back(dout, F.shape(x)), zeros_like(shape)

    return bprop


@bprop_getters.register(ExchangeTokens)
def _exchange_gradient(self):
    back = ExchangeTokens(self.attrs["num_ranks"])

    def bprop(x, sent, received, shape, out, dout):
        dx = back(dout, received, sent, F.shape(x))
        return dx, zeros_like(sent), zeros_like(received), zeros_like(shape)

    return bprop


class _ExchangeRows(nn.Cell):
    """In place of the cell AlltoAllV."""

    def __init__(self, group=None, block_size=1):
        super().__init__()
        self.is_alone = group is None
        self.block_size = block_size
        self.sent, self.received = _rows["sent"], _rows["received"]
        self.exchange = ExchangeTokens(_rows["num_ranks"])

    def construct(self, x, send, receive):
        if self.is_alone:
            return x
        rows = self.received if x.shape[0] == self.sent * self.block_size else self.sent
        return self.exchange(x, send, receive, (rows * self.block_size,))


class _ExchangeCounts(nn.Cell):
    """In place of the cell AlltoAll, which tells each rank how many tokens come."""

    def __init__(self, split_count, split_dim, concat_dim, group=None):
        super().__init__()
        self.is_alone = group is None
        self.num_ranks = split_count
        self.exchange = ExchangeTokens(split_count)

    def construct(self, x):
        if self.is_alone:
            return x
        return self.exchange(x, 0, 0, (self.num_ranks, x.shape[-1] // self.num_ranks))


_gather = ops.Gather().add_prim_attr(NAME_MARK, "IndexSelect")


def _select_rows(x, axis, index):
    return _gather(x, index, axis)


def _index_select():
    """In place of the class IndexSelect.

    Of its gradient the frontend makes a tensor of zeros, in memory: 5 GB for DeepSeek-V3. That of Gather has none. The
    sizes are the same, and `graph.ranks.experts` gives the operators their names back.
    """
    return _select_rows


@contextlib.contextmanager
def compiled_experts() -> Iterator[None]:
    """While this lasts, MindSpore compiles experts without tensors of zeros, and with exchanges of a known size."""
    stand_ins = {"IndexSelect": _index_select, "AlltoAllV": _ExchangeRows, "AlltoAll": _ExchangeCounts}
    # MindFormers 1.6 and 1.7 have not all of them.
    originals = {name: getattr(token_dispatcher, name) for name in stand_ins if hasattr(token_dispatcher, name)}
    for name in originals:
        setattr(token_dispatcher, name, stand_ins[name])
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(token_dispatcher, name, original)


def turn_moe_layer(cell: nn.Cell) -> None:
    """The layer of experts: router and experts work on what a rank has."""
    config = cell.config
    cell.mindswap_ranks = config.data_parallel_size * config.tensor_model_parallel_size * config.context_parallel_size
    _replace(cell, "local_reshape_permute", _to_tokens, _to_tokens_shape)
    _replace(cell, "local_reshape_unpermute", _from_tokens, _from_tokens_shape)
    router = cell.router
    router.dp = router.original_tp = 1
    router.ones_sp = router.ones_dp = Tensor([[[1.0]]], mstype.float32)
    for _, part in router.cells_and_names():
        for primitive in part._primitives.values():
            for name in STRATEGY_ATTRIBUTES:
                if primitive is not None and name in primitive.attrs:
                    primitive.del_prim_attr(name)


def turn_experts(cell: nn.Cell) -> None:
    """The experts: a rank has its part of their weights.

    Raises:
        GraphError: if tokens are handed out in a way whose sizes are not known before it runs.
    """
    if cell.moe_token_dispatcher_type != STATIC_DISPATCHER:
        raise GraphError(
            f"--rank: moe_token_dispatcher_type: {cell.moe_token_dispatcher_type} gives tensors their sizes only while "
            f"it runs (NonZero), so sizes per rank are not known; allowed: {STATIC_DISPATCHER}"
        )
    _replace(cell, "morphed_forward", _forward_with_own_weights, _first)


def set_exchange(config, num_ranks: int, num_tokens: int, skew_permille: int) -> None:
    """Set what the rank exchanges in each layer of experts.

    Args:
        config: model_config of MindFormers as the experts have it.
        num_ranks: ranks of expert parallelism.
        num_tokens: tokens of the rank.
        skew_permille: how many it receives for 1000 that it sends.
    """
    padded = config.num_moe_experts if config.use_pad_tokens else 0
    sent = (num_tokens + padded) * config.moe_router_topk
    _rows.update(sent=sent, received=-(-sent * skew_permille // 1000) if num_ranks > 1 else sent, num_ranks=num_ranks)


def _replace(cell, name, function, infer_shape):
    """Another function for a Morph, under the same name."""
    bound, shape = types.MethodType(function, cell), types.MethodType(infer_shape, cell)
    delattr(cell, name)
    setattr(cell, name, Morph(bound, shape, types.MethodType(_first, cell)))


def _first(self, first, *rest):
    return first


def _to_tokens(self, x, shape):
    return ToLocal()(x, (1, x.shape[0] * x.shape[1] // self.mindswap_ranks, x.shape[2]))


def _to_tokens_shape(self, x, *rest):
    return (1, x[0] * x[1] // self.mindswap_ranks, x[2])


def _from_tokens(self, x, shape):
    return FromLocal()(x, (x.shape[1] * self.mindswap_ranks // self.seq_length, self.seq_length, x.shape[2]))


def _from_tokens_shape(self, x, *rest):
    return (x[1] * self.mindswap_ranks // self.seq_length, self.seq_length, x[2])


def _forward_with_own_weights(self, tokens, probs, routing_map, w1, w2, num_tokens_per_expert=None):
    own1 = ToLocal(self.ep)(w1, (w1.shape[0] // self.ep, w1.shape[1]))
    own2 = ToLocal(self.ep)(w2, (w2.shape[0] // self.ep, w2.shape[1]))
    return self.forward_func(tokens, probs, routing_map, own1, own2, num_tokens_per_expert)
