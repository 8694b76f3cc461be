"""Rule for `moe_config` of legacy models, of which MindFormers checks every value (`MoEConfig`)."""

from collections.abc import Callable, Iterator
from typing import Any

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import is_int
from mindswap.config.problem import Level
from mindswap.rules.context import Context
from mindswap.rules.refusals import Refusal, find_refusals, is_bool, is_positive, of_elements
from mindswap.rules.values import Values

LOSSES = ("expert", "device", "comm")
DTYPES = ("float16", "float32", "bfloat16")
EXPERTS, CHOSEN, HOT, COLD = (
    f"moe_config.{key}" for key in ("expert_num", "num_experts_chosen", "hot_expert_num", "cold_token_percent")
)


def _moe(key: str, is_right: Callable[[Any], bool], allowed: str, fix: str) -> Refusal:
    """Return the refusal of one value of moe_config."""
    path = f"moe_config.{key}"
    return Refusal(
        f"moe-{key}",
        path,
        lambda v: v.document.is_legacy and v.is_written(path) and not is_right(v(path)),
        f"it is not {allowed}",
        allowed,
        fix,
    )


def _is_count(value: Any) -> bool:
    return is_int(value) and value >= 0


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def _refused(name: str, at: str, holds: Callable[[Values], bool], message: str, allowed: str, fix: str) -> Refusal:
    return Refusal(name, at, lambda v: v.document.is_legacy and holds(v), message, allowed, fix)


COUNTS = ("expert_num", "num_experts_chosen", "comp_comm_parallel_degree", "update_step")
FLAGS = ("group_wise_a2a", "comp_comm_parallel", "save_token_distribution", "enable_cold_hot_expert", "ep_extend_tp")
TYPES, FACTORS = "moe_config.aux_loss_types", "moe_config.aux_loss_factors"

REFUSALS = (
    *(_moe(key, is_positive, "an integer, 1 or more", "{key}: 1") for key in COUNTS),
    *(_moe(key, is_bool, "True or False", "{key}: False") for key in FLAGS),
    *(_moe(key, _is_count, "an integer, 0 or more", "{key}: 0") for key in ("cur_layer", "hot_expert_num")),
    _moe("expert_group_size", lambda size: size is None or is_positive(size), "an integer, 1 or more", "delete it"),
    _moe("aux_loss_factor", lambda factor: _is_float(factor) and factor > 0, "a float above 0.0", "{key}: 0.05"),
    _moe("cold_token_percent", _is_float, "a float, above 0.0 and 1.0 at most", "{key}: 1.0"),
    _moe("router_dense_type", lambda name: name in DTYPES, ", ".join(DTYPES), "{key}: float32"),
    _refused(
        "moe-loss-range",
        "moe_config.aux_loss_factor",
        lambda v: v("moe_config.aux_loss_factor") >= 1.0,
        "it must be below 1.0",
        "below 1.0",
        "{key}: 0.05",
    ),
    _refused(
        "moe-chosen",
        CHOSEN,
        lambda v: v(CHOSEN) > v(EXPERTS, 1),
        "there are fewer experts",
        "at most expert_num",
        "{key}: 1",
    ),
    _refused(
        "moe-hot", HOT, lambda v: v(HOT) > v(EXPERTS, 1), "there are fewer experts", "at most expert_num", "{key}: 0"
    ),
    _refused(
        "moe-cold",
        COLD,
        lambda v: v(COLD) > 1.0 or v(COLD) <= 0.0,
        "it must be above 0.0 and 1.0 at most",
        "above 0.0, at most 1.0",
        "{key}: 1.0",
    ),
    _refused(
        "moe-loss-lists",
        TYPES,
        lambda v: v(TYPES) is not None and not (isinstance(v(TYPES), list) and isinstance(v(FACTORS), list)),
        "aux_loss_types and aux_loss_factors must be lists",
        "a list",
        "{key}: [expert]",
    ),
    of_elements(
        "moe-loss-types",
        TYPES,
        lambda loss: loss not in LOSSES,
        "MindFormers knows no such loss",
        ", ".join(LOSSES),
        "expert",
        where=lambda v: v.document.is_legacy,
    ),
    _refused(
        "moe-routing",
        "moe_config.routing_policy",
        lambda v: v(EXPERTS) > 1 and not v("moe_config.use_gmm") and v("moe_config.routing_policy") != "TopkRouterV2",
        "the cells of a legacy model without use_gmm take TopkRouterV2 only",
        "TopkRouterV2",
        "{key}: TopkRouterV2",
    ),
)


@rule(Level.ERROR)
def moe_refused(context: Context) -> Iterator[Finding]:
    """A value of `moe_config` at which MindFormers stops; legacy models only, as newer ones do not read the section.

    All conditions are in docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: moe_config: {expert_num: 8, num_experts_chosen: 2, routing_policy: TopkRouterV2}
    FAIL: moe_config: {expert_num: 8, num_experts_chosen: 9, routing_policy: TopkRouterV2}
    """
    yield from find_refusals(context, REFUSALS)
