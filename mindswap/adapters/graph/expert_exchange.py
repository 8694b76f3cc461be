"""Exchange of tokens between ranks, and what gives its sizes: stand-ins of known sizes.

AlltoAllV, NonZero and MaskedSelect have results whose sizes are known only when they run. Here a rank sends and
receives as many rows as `set_exchange` was told, and the frontend compiles with those. `graph.sharding.experts` gives
the operators their names back. Names are those of mindformers 1.9.0, parallel_core/training_graph/transformer/moe.
"""

import contextlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

from mindformers.parallel_core.training_graph.transformer.moe import token_dispatcher
from mindspore import nn, ops
from mindspore.common import dtype as mstype
from mindspore.ops._grad_experimental.grad_base import bprop_getters
from mindspore.ops.auto_generate import MaskedSelectGrad
from mindspore.ops.composite.multitype_ops.zeros_like_impl import zeros_like
from mindspore.ops.primitive import PrimitiveWithInfer, prim_attr_register

from mindswap.adapters.versions import replaced
from mindswap.graph.ops import operator_info
from mindswap.graph.sharding.experts import EXCHANGE, NAME_MARK, num_copies

# The compiler looks a module up by its name.
OPS_NAME = "mindswap_ops_of_known_sizes"


@dataclass
class _Sizes:
    """Of the network that is compiled; the class of a dispatcher -> what it exchanges."""

    # sent, received: rows that a rank sends and receives in an exchange of tokens
    sent: int = 0
    received: int = 0
    rows: int = 0  # pairs of a token and an expert that the experts of the rank compute
    # name of a group of ranks -> how many, and from one to the next
    groups: dict[str, tuple[int, int]] = field(default_factory=dict)


_sizes = _Sizes()


class Exchange(PrimitiveWithInfer):
    """Communication of the ranks of one group: (tensor, counts sent, counts received).

    Args:
        kind: its name on a rank.
        num_ranks, stride: ranks of the group, and from one to the next.
        cut, joined: dimensions that a rank gives parts of, and in which parts of others come; at most one each.
        before, after: instead of these, elements before and after.
    """

    substitute_name = EXCHANGE

    @prim_attr_register
    def __init__(self, kind, num_ranks, stride=1, cut=(), joined=(), before=0, after=0):
        """Its arguments are attributes."""

    def __infer__(self, x, sent, received):
        at, shape = self.attrs, list(x["shape"])
        if at["after"]:
            shape = [at["after"]]
        for dim in at["cut"]:
            shape[dim] //= at["num_ranks"]
        for dim in at["joined"]:
            shape[dim] *= at["num_ranks"]
        return {"shape": tuple(shape), "dtype": x["dtype"], "value": None}


@bprop_getters.register(Exchange)
def _exchange_gradient(self):
    at = self.attrs
    kind = operator_info(at["kind"]).gradient or at["kind"]
    back = Exchange(kind, at["num_ranks"], at["stride"], at["joined"], at["cut"], at["after"], at["before"])

    def bprop(x, sent, received, out, dout):
        return back(dout, received, sent), zeros_like(sent), zeros_like(received)

    return bprop


class FixedSizeSelect(PrimitiveWithInfer):
    """The rows of a tensor that are chosen while it runs; of a known number."""

    @prim_attr_register
    def __init__(self, op, size):
        self.add_prim_attr(NAME_MARK, op)

    def __infer__(self, x, mask):
        dtype = x["dtype"] if self.attrs[NAME_MARK] == "MaskedSelect" else mstype.TensorType(mstype.int64)
        return {"shape": self.attrs["size"], "dtype": dtype, "value": None}


@bprop_getters.register(FixedSizeSelect)
def _chosen_gradient(self):
    is_part = self.attrs[NAME_MARK] == "MaskedSelect"
    back = MaskedSelectGrad()

    def bprop(x, mask, out, dout):
        dx = back(x, mask, dout) if is_part else zeros_like(x)
        return dx, zeros_like(mask)

    return bprop


class _GroupCell(nn.Cell):
    """In place of a primitive of communication: what the group is, and whether there is one."""

    def __init__(self, group):
        super().__init__()
        self.is_alone = group is None
        self.num_ranks, self.stride = _sizes.groups.get(group, (1, 1))


class _ExchangeRows(_GroupCell):
    """In place of the cell, and of the primitive, AlltoAllV."""

    kind = "AlltoAllV"

    def __init__(self, group=None, block_size=1):
        super().__init__(group)
        self.sent, self.received = _sizes.sent * block_size, _sizes.received * block_size
        self.there = Exchange(self.kind, self.num_ranks, self.stride, before=self.sent, after=self.received)
        self.back = Exchange(self.kind, self.num_ranks, self.stride, before=self.received, after=self.sent)

    def construct(self, x, send, receive):
        if self.is_alone:
            return x
        return self.there(x, send, receive) if x.shape[0] == self.sent else self.back(x, send, receive)


class _ExchangeByMatrix(_ExchangeRows):
    """In place of AlltoAllVC: one matrix says what all ranks send."""

    kind = "AlltoAllVC"

    def construct(self, x, counts, _=0):
        return self.there(x, counts, counts) if x.shape[0] == self.sent else self.back(x, counts, counts)


class _ExchangeCounts(_GroupCell):
    """In place of AlltoAllV for counts, as many for each rank."""

    def __init__(self, group=None):
        super().__init__(group)
        self.exchange = Exchange("AlltoAllV", self.num_ranks, self.stride)

    def construct(self, x, send, receive):
        return self.exchange(x, 0, 0)


class _ExchangeParts(_GroupCell):
    """In place of the cell, and of the primitive, AlltoAll."""

    def __init__(self, split_count, split_dim, concat_dim, group=None):
        super().__init__(group)
        self.exchange = Exchange("AlltoAll", self.num_ranks, self.stride, cut=(split_dim,), joined=(concat_dim,))

    def construct(self, x):
        return x if self.is_alone else self.exchange(x, 0, 0)


class _AllGather(_GroupCell):
    """In place of AllGather."""

    kind, dims = "AllGather", {"joined": (0,)}

    def __init__(self, group=None):
        super().__init__(group)
        self.exchange = Exchange(self.kind, self.num_ranks, self.stride, **self.dims)

    def construct(self, x):
        return self.exchange(x, 0, 0)


class _ReduceScatter(_AllGather):
    """In place of ReduceScatter."""

    kind, dims = "ReduceScatter", {"cut": (0,)}


class _NonZero(nn.Cell):
    """In place of NonZero: of a mask the tokens that are sent, of probabilities the rows of the experts."""

    def __init__(self):
        super().__init__()
        self.of_mask = FixedSizeSelect("NonZero", (_sizes.sent, 1))
        self.of_probs = FixedSizeSelect("NonZero", (_sizes.rows, 1))

    def construct(self, x):
        return self.of_mask(x, 0) if x.dtype == mstype.bool_ else self.of_probs(x, 0)


_gather = ops.Gather().add_prim_attr(NAME_MARK, "IndexSelect")


def _select_rows(x, axis, index):
    return _gather(x, index, axis)


def _index_select():
    """In place of the class IndexSelect.

    Of its gradient the frontend makes a tensor of zeros, in memory: 5 GB for DeepSeek-V3. That of Gather has none. The
    sizes are the same, and `graph.sharding.experts` gives the operators their names back.
    """
    return _select_rows


def _fixed_size_ops() -> types.ModuleType:
    """`mindspore.ops` as the dispatchers have it, with exchanges of known sizes."""
    module = types.ModuleType(OPS_NAME)
    vars(module).update({name: value for name, value in vars(ops).items() if not name.startswith("__")})
    vars(module).update(
        AllGather=_AllGather, AlltoAll=_ExchangeParts, AlltoAllV=_ExchangeRows, ReduceScatter=_ReduceScatter
    )
    return module


@contextlib.contextmanager
def compiled_experts() -> Iterator[None]:
    """While this lasts, MindSpore compiles experts without tensors of zeros, and with exchanges of a known size."""
    stand_ins = {"IndexSelect": _index_select, "AlltoAllV": _ExchangeRows, "AlltoAll": _ExchangeParts}
    # MindFormers 1.6 and 1.7 have not all of them.
    if hasattr(token_dispatcher, "AlltoAllV"):
        stand_ins["ops"] = sys.modules[OPS_NAME] = _fixed_size_ops()
    stand_ins_there = {name: stand_in for name, stand_in in stand_ins.items() if hasattr(token_dispatcher, name)}
    try:
        with replaced(token_dispatcher, **stand_ins_there):
            yield
    finally:
        sys.modules.pop(OPS_NAME, None)


def set_exchange(experts: nn.Cell, num_tokens: int, skew_permille: int) -> list[str]:
    """Set what the rank exchanges in each layer of experts, which are all alike; gives notes for the user.

    `num_tokens` are of the rank; for 1000 that it sends it receives `skew_permille`.
    """
    config, dispatcher, num_ranks = experts.config, experts.token_dispatcher, experts.ep
    kind, top_k, num_experts = experts.moe_token_dispatcher_type, config.moe_router_topk, config.num_moe_experts
    skew = skew_permille if num_ranks > 1 else 1000
    _sizes.groups = {dispatcher.ep_group: (num_ranks, 1)}
    notes = []
    if kind == "alltoall_zero_redundancy":
        groups = (config.moe_router_num_groups or 1, config.moe_router_group_topk or 1)
        _sizes.sent = num_copies(num_tokens, num_experts, top_k, num_ranks, *groups)
        _sizes.rows = _skewed(num_tokens * top_k, skew)
        notes = [f"assumed: a token goes to {_sizes.sent / num_tokens:.2f} ranks: experts are chosen evenly"]
    else:
        padded = num_experts
        if kind == "alltoall_deredundency":
            padded //= dispatcher.oep
            _sizes.groups |= {
                dispatcher.iep_group: (dispatcher.iep, 1),
                dispatcher.oep_group: (dispatcher.oep, dispatcher.iep),
            }
        _sizes.sent = (num_tokens + padded * bool(config.use_pad_tokens)) * top_k
        _sizes.rows = _skewed(_sizes.sent, skew)
    _sizes.received = _skewed(_sizes.sent, skew)
    return notes


def use_fixed_sizes(experts: nn.Cell) -> None:
    """Replace what the dispatcher of a layer made when it was built."""
    dispatcher = experts.token_dispatcher
    local_experts = experts.config.num_moe_experts // experts.ep
    if hasattr(dispatcher, "nonzero"):
        dispatcher.nonzero = _NonZero()
    if hasattr(dispatcher, "oep_group"):
        dispatcher.oep_allgather = _AllGather(dispatcher.oep_group)
        dispatcher.iep_alltoallv = _ExchangeCounts(dispatcher.iep_group)
    if hasattr(dispatcher, "all2allvc"):
        dispatcher.all2allvc = _ExchangeByMatrix
        dispatcher.masked_select_op = FixedSizeSelect("MaskedSelect", (local_experts * _sizes.received,))


def _skewed(rows: int, skew_permille: int) -> int:
    return -(-rows * skew_permille // 1000)
