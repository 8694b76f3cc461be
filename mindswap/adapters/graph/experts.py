"""Experts of the newer models: layers that the frontend can compile for one of several ranks.

MindFormers implements the exchange of tokens between ranks in `Morph`s, functions with the tensor sizes of one rank.
Here the layer of experts keeps these sizes: `ToLocal` converts a tensor of all ranks to the shard of one, `FromLocal`
converts back. `expert_exchange` contains the communication. `graph.sharding.experts` removes these operators from the
graph. Names are those of mindformers 1.9.0, parallel_core/training_graph/transformer/moe.
"""

import contextlib
import functools
import types
from collections.abc import Iterator, Sequence

from mindformers.models.llama import llama
from mindspore import Tensor, nn
from mindspore.common import dtype as mstype
from mindspore.ops import functional as F  # noqa: N812 its name in MindSpore's own code
from mindspore.ops._grad_experimental.grad_base import bprop_getters
from mindspore.ops.composite.multitype_ops.zeros_like_impl import zeros_like
from mindspore.ops.operations import Morph
from mindspore.ops.primitive import PrimitiveWithInfer, prim_attr_register

from mindswap.adapters.graph.expert_exchange import ExchangeSizes, use_fixed_sizes
from mindswap.adapters.versions import replaced
from mindswap.graph.sharding.experts import FROM_LOCAL, TO_LOCAL

STRATEGY_ATTRIBUTES = ("in_strategy", "out_strategy", "in_layout", "out_layout")


class _Shaped(PrimitiveWithInfer):
    """Primitive whose output has the dtype of its first and the shape of its last operand."""

    def __infer__(self, x, *rest):
        return {"shape": rest[-1]["value"], "dtype": x["dtype"], "value": None}


class ToLocal(_Shaped):
    """Shard of one rank; `parts` splits the first dimension if no strategy of a producer defines its split."""

    @prim_attr_register
    def __init__(self, parts=1):
        super().__init__(TO_LOCAL)
        if parts > 1:
            self.add_prim_attr("in_strategy", ((parts, 1),))


class FromLocal(_Shaped):
    """Tensor of all ranks to which a shard belongs."""

    @prim_attr_register
    def __init__(self):
        super().__init__(FROM_LOCAL)


def _gradient_is(kind):
    """Return a gradient function that applies `kind` to the shape of the input."""

    def make(self):
        back = kind()

        def bprop(x, shape, out, dout):
            return back(dout, F.shape(x)), zeros_like(shape)

        return bprop

    return make


bprop_getters.register(ToLocal)(_gradient_is(FromLocal))
bprop_getters.register(FromLocal)(_gradient_is(ToLocal))


def globalize_moe_layer(cell: nn.Cell) -> None:
    """Embed the layer of experts in a graph of unsharded tensors: router and experts work on the shard of a rank."""
    config = cell.config
    cell.mindswap_ranks = config.data_parallel_size * config.tensor_model_parallel_size * config.context_parallel_size
    _replace(cell, "local_reshape_permute", _to_tokens, _to_tokens_shape)
    _replace(cell, "local_reshape_unpermute", _from_tokens, _from_tokens_shape)
    router = cell.router
    router.dp = router.original_tp = 1
    router.ones_sp = router.ones_dp = Tensor([[[1.0]]], mstype.float32)
    for _, cell_of_router in router.cells_and_names():
        for primitive in cell_of_router._primitives.values():
            for name in STRATEGY_ATTRIBUTES:
                if primitive is not None and name in primitive.attrs:
                    primitive.del_prim_attr(name)


def globalize_experts(cell: nn.Cell, sizes: ExchangeSizes) -> None:
    """Embed the experts in a graph of unsharded tensors: a rank uses its shard of their weights."""
    use_fixed_sizes(cell, sizes)
    _replace(cell, "morphed_forward", _forward_with_local_weights, _first)


def _replace(cell, name, function, infer_shape):
    """Replace the function of a Morph under the same name."""
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


def _forward_with_local_weights(self, tokens, probs, routing_map, w1, w2, num_tokens_per_expert=None):
    own1 = ToLocal(self.ep)(w1, (w1.shape[0] // self.ep, w1.shape[1]))
    own2 = ToLocal(self.ep)(w2, (w2.shape[0] // self.ep, w2.shape[1]))
    return self.forward_func(tokens, probs, routing_map, own1, own2, num_tokens_per_expert)


# Layers of `fine_grain_interleave`, which compute in two halves so that communication of one half overlaps computation
# of the other.
#
# Their position in the model matters: the first computes query, key and value of both halves together, the last
# everything after attention, and the last but one outputs a gathered tensor. Names are those of mindformers 1.9.0,
# models/llama/llama_interleave.py.

CLASS_NAME = "LLamaDecodeLayerInterleave"
# Number of layers at the end that differ from those before them.
NUM_LAST = 2


def layer_position(layer: nn.Cell) -> int:
    """Return the position class of a layer: 0 any, 1 first, -1 last, -2 last but one; 0 without interleaving."""
    if type(layer).__name__ != CLASS_NAME:
        return 0
    if layer.layer_id == 0:
        return 1
    return max(-NUM_LAST, layer.layer_id - layer.num_layers) if layer.layer_id >= layer.num_layers - NUM_LAST else 0


@contextlib.contextmanager
def with_model_layer_numbers(indices: Sequence[int], num_layers: int) -> Iterator[None]:
    """Build the layers of a truncated network as the layers of the full model, inside the block.

    Args:
        indices: index in the model of each layer that is built.
        num_layers: number of layers of the model.
    """
    original = getattr(llama, CLASS_NAME)

    @functools.wraps(original, updated=())
    def build(batch_size: int, seq_length: int, layer_id: int, **settings: object) -> nn.Cell:
        return original(batch_size, seq_length, indices[layer_id], **{**settings, "num_layers": num_layers})

    with replaced(llama, **{CLASS_NAME: build}):
        yield
