"""Exchange of tokens between expert parallel ranks, compiled with fixed sizes.

AlltoAllV, NonZero and MaskedSelect have outputs whose sizes are known at run time only. The cells of this module
replace them, with as many rows as `ExchangeSizes` states, so that the frontend can compile the token dispatchers.
`graph.sharding.experts` renames the operators afterwards. Names are those of mindformers 1.9.0,
parallel_core/training_graph/transformer/moe.
"""

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping
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


@dataclass(frozen=True)
class RankGroup:
    """A communication group of ranks."""

    num_ranks: int = 1
    stride: int = 1  # difference between consecutive ranks


@dataclass(frozen=True)
class ExchangeSizes:
    """Rows that the experts of one rank exchange and compute, equal for all layers of a network."""

    sent: int = 0  # rows that a rank sends in one exchange
    received: int = 0  # rows that it receives
    rows: int = 0  # (token, expert) pairs that its experts compute
    groups: Mapping[str, RankGroup] = field(default_factory=dict)  # communication groups by name
    notes: tuple[str, ...] = ()  # assumptions, for the user

    def bind(self, cell_type: type["_SizedCell"]) -> type["_SizedCell"]:
        """Return a subclass of a cell type with these sizes; the dispatchers create its instances."""
        return type(cell_type.__name__, (cell_type,), {"sizes": self, "__module__": cell_type.__module__})


class Exchange(PrimitiveWithInfer):
    """Communication within a group of ranks, with the inputs (tensor, sent counts, received counts).

    Args:
        kind: type of the operator on a rank.
        num_ranks: ranks of the group.
        stride: difference between consecutive ranks.
        split_dims: dimension that the operator splits over the ranks, at most one.
        joined_dims: dimension along which it concatenates the parts of the ranks, at most one.
        num_before: number of input elements, if it is not a multiple of the number of output elements.
        num_after: number of output elements in that case.
    """

    substitute_name = EXCHANGE

    @prim_attr_register
    def __init__(self, kind, num_ranks, stride=1, split_dims=(), joined_dims=(), num_before=0, num_after=0):
        """Store the arguments as attributes of the primitive."""

    def __infer__(self, x, sent, received):
        at, shape = self.attrs, list(x["shape"])
        if at["num_after"]:
            shape = [at["num_after"]]
        for dim in at["split_dims"]:
            shape[dim] //= at["num_ranks"]
        for dim in at["joined_dims"]:
            shape[dim] *= at["num_ranks"]
        return {"shape": tuple(shape), "dtype": x["dtype"], "value": None}


@bprop_getters.register(Exchange)
def _exchange_gradient(self):
    at = self.attrs
    kind = operator_info(at["kind"]).gradient or at["kind"]
    back = Exchange(
        kind,
        num_ranks=at["num_ranks"],
        stride=at["stride"],
        split_dims=at["joined_dims"],
        joined_dims=at["split_dims"],
        num_before=at["num_after"],
        num_after=at["num_before"],
    )

    def bprop(x, sent, received, out, dout):
        return back(dout, received, sent), zeros_like(sent), zeros_like(received)

    return bprop


class FixedSizeSelect(PrimitiveWithInfer):
    """Selection of rows at run time, with a fixed number of selected rows.

    Args:
        op: type of the replaced operator, NonZero or MaskedSelect.
        size: shape of the output.
    """

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


class _SizedCell(nn.Cell):
    """Base of all replacements, whose subclasses made by `ExchangeSizes.bind` have the sizes of a network."""

    sizes = ExchangeSizes()


class _GroupCell(_SizedCell):
    """Base of the replacements of communication within a group; without a group there is one rank."""

    def __init__(self, group):
        super().__init__()
        ranks = self.sizes.groups.get(group, RankGroup())
        self.is_alone = group is None
        self.num_ranks, self.stride = ranks.num_ranks, ranks.stride


class _ExchangeRows(_GroupCell):
    """Replacement of AlltoAllV, cell and primitive."""

    kind = "AlltoAllV"

    def __init__(self, group=None, block_size=1):
        super().__init__(group)
        self.sent, self.received = self.sizes.sent * block_size, self.sizes.received * block_size
        self.dispatch = Exchange(self.kind, self.num_ranks, self.stride, num_before=self.sent, num_after=self.received)
        self.combine = Exchange(self.kind, self.num_ranks, self.stride, num_before=self.received, num_after=self.sent)

    def construct(self, x, send, receive):
        if self.is_alone:
            return x
        return self.dispatch(x, send, receive) if x.shape[0] == self.sent else self.combine(x, send, receive)


class _ExchangeByMatrix(_ExchangeRows):
    """Replacement of AlltoAllVC, in which one matrix contains the counts of all ranks."""

    kind = "AlltoAllVC"

    def construct(self, x, counts, _=0):
        return self.dispatch(x, counts, counts) if x.shape[0] == self.sent else self.combine(x, counts, counts)


class _ExchangeCounts(_GroupCell):
    """Replacement of AlltoAllV for counts, of which each rank sends the same number."""

    def __init__(self, group=None):
        super().__init__(group)
        self.exchange = Exchange("AlltoAllV", self.num_ranks, self.stride)

    def construct(self, x, send, receive):
        return self.exchange(x, 0, 0)


class _ExchangeParts(_GroupCell):
    """Replacement of AlltoAll, cell and primitive."""

    def __init__(self, split_count, split_dim, concat_dim, group=None):
        super().__init__(group)
        self.exchange = Exchange(
            "AlltoAll", self.num_ranks, self.stride, split_dims=(split_dim,), joined_dims=(concat_dim,)
        )

    def construct(self, x):
        return x if self.is_alone else self.exchange(x, 0, 0)


class _AllGather(_GroupCell):
    """Replacement of AllGather."""

    kind, dims = "AllGather", {"joined_dims": (0,)}

    def __init__(self, group=None):
        super().__init__(group)
        self.exchange = Exchange(self.kind, self.num_ranks, self.stride, **self.dims)

    def construct(self, x):
        return self.exchange(x, 0, 0)


class _ReduceScatter(_AllGather):
    """Replacement of ReduceScatter."""

    kind, dims = "ReduceScatter", {"split_dims": (0,)}


class _NonZero(_SizedCell):
    """Replacement of NonZero: selects the sent tokens of a mask, or the rows of the experts of probabilities."""

    def __init__(self):
        super().__init__()
        self.of_mask = FixedSizeSelect("NonZero", (self.sizes.sent, 1))
        self.of_probs = FixedSizeSelect("NonZero", (self.sizes.rows, 1))

    def construct(self, x):
        return self.of_mask(x, 0) if x.dtype == mstype.bool_ else self.of_probs(x, 0)


_gather = ops.Gather().add_prim_attr(NAME_MARK, "IndexSelect")


def _select_rows(x, axis, index):
    return _gather(x, index, axis)


def _index_select():
    """Return the replacement of an IndexSelect.

    The frontend creates a tensor of zeros in memory for the gradient of IndexSelect, 5 GB for DeepSeek-V3; the gradient
    of Gather needs none. The sizes are equal, and `graph.sharding.experts` renames both operators.
    """
    return _select_rows


def _fixed_size_ops(sizes: ExchangeSizes) -> types.ModuleType:
    """Return `mindspore.ops`, as the dispatchers import it, with the replacements."""
    module = types.ModuleType(OPS_NAME)
    vars(module).update({name: value for name, value in vars(ops).items() if not name.startswith("__")})
    vars(module).update(
        AllGather=sizes.bind(_AllGather),
        AlltoAll=sizes.bind(_ExchangeParts),
        AlltoAllV=sizes.bind(_ExchangeRows),
        ReduceScatter=sizes.bind(_ReduceScatter),
    )
    return module


@contextlib.contextmanager
def compiled_experts(sizes: ExchangeSizes) -> Iterator[None]:
    """Let MindSpore compile experts with exchanges of these sizes, inside the block."""
    stand_ins = {
        "IndexSelect": _index_select,
        "AlltoAllV": sizes.bind(_ExchangeRows),
        "AlltoAll": sizes.bind(_ExchangeParts),
    }
    # MindFormers 1.6 and 1.7 lack some of them.
    if hasattr(token_dispatcher, "AlltoAllV"):
        stand_ins["ops"] = sys.modules[OPS_NAME] = _fixed_size_ops(sizes)
    replaceable = {name: stand_in for name, stand_in in stand_ins.items() if hasattr(token_dispatcher, name)}
    try:
        with replaced(token_dispatcher, **replaceable):
            yield
    finally:
        sys.modules.pop(OPS_NAME, None)


def exchange_sizes(experts: nn.Cell, num_tokens: int, skew_permille: int) -> ExchangeSizes:
    """Return the sizes that a rank exchanges in each layer of experts.

    Args:
        experts: experts of any layer; all layers are equal.
        num_tokens: tokens of the rank.
        skew_permille: rows that the rank receives for each 1000 that it sends.
    """
    config, dispatcher, num_ranks = experts.config, experts.token_dispatcher, experts.ep
    kind, top_k, num_experts = experts.moe_token_dispatcher_type, config.moe_router_topk, config.num_moe_experts
    skew = skew_permille if num_ranks > 1 else 1000
    groups = {dispatcher.ep_group: RankGroup(num_ranks)}
    if kind == "alltoall_zero_redundancy":
        sent = num_copies(
            num_tokens=num_tokens,
            num_experts=num_experts,
            top_k=top_k,
            num_ranks=num_ranks,
            num_groups=config.moe_router_num_groups or 1,
            top_groups=config.moe_router_group_topk or 1,
        )
        return ExchangeSizes(
            sent=sent,
            received=_skewed(sent, skew),
            rows=_skewed(num_tokens * top_k, skew),
            groups=groups,
            notes=(f"assumed: a token goes to {sent / num_tokens:.2f} ranks: experts are chosen evenly",),
        )
    num_padded = num_experts
    if kind == "alltoall_deredundency":
        num_padded //= dispatcher.oep
        groups[dispatcher.iep_group] = RankGroup(dispatcher.iep)
        groups[dispatcher.oep_group] = RankGroup(dispatcher.oep, stride=dispatcher.iep)
    sent = (num_tokens + num_padded * bool(config.use_pad_tokens)) * top_k
    return ExchangeSizes(sent=sent, received=_skewed(sent, skew), rows=_skewed(sent, skew), groups=groups)


def use_fixed_sizes(experts: nn.Cell, sizes: ExchangeSizes) -> None:
    """Replace the cells that the dispatcher of a layer created during construction."""
    dispatcher = experts.token_dispatcher
    local_experts = experts.config.num_moe_experts // experts.ep
    if hasattr(dispatcher, "nonzero"):
        dispatcher.nonzero = sizes.bind(_NonZero)()
    if hasattr(dispatcher, "oep_group"):
        dispatcher.oep_allgather = sizes.bind(_AllGather)(dispatcher.oep_group)
        dispatcher.iep_alltoallv = sizes.bind(_ExchangeCounts)(dispatcher.iep_group)
    if hasattr(dispatcher, "all2allvc"):
        dispatcher.all2allvc = sizes.bind(_ExchangeByMatrix)
        dispatcher.masked_select_op = FixedSizeSelect("MaskedSelect", (local_experts * sizes.received,))


def _skewed(rows: int, skew_permille: int) -> int:
    return -(-rows * skew_permille // 1000)
