"""Rule for settings of experts at which MindFormers stops."""

from collections.abc import Iterator

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import is_int
from mindswap.config.problem import Level
from mindswap.rules.context import Context
from mindswap.rules.refusals import Refusal, find_refusals, is_number, of_elements
from mindswap.rules.values import Values

EXPERTS, CHOSEN, GROUPS, CHOSEN_GROUPS = (
    f"model.{key}" for key in ("experts", "chosen_experts", "groups", "chosen_groups")
)
BALANCE, DISPATCHER, FREQUENCY = (
    f"model.moe_{key}" for key in ("router_load_balancing_type", "token_dispatcher_type", "layer_freq")
)
DENSE, LAYERS = "model.first_k_dense_replace", "model.layers"
BALANCES = ("sub_seq_aux_loss", "seq_aux_loss", "gbs_aux_loss")
DISPATCHERS = ("alltoall", "alltoall_deredundency", "alltoall_zero_redundancy")
EXPERT_RANKS = "parallel_config.expert_parallel"


def _has(v: Values, *paths: str) -> bool:
    """Return whether a newer model has these values."""
    return v.is_newer and all(v(path) is not None for path in paths)


def _frequency_template(v: Values) -> list[int]:
    """Return the list of `moe_layer_freq` that is equivalent to `first_k_dense_replace`."""
    return [0] * v(DENSE) + [1] * (v(LAYERS) - v(DENSE))


def _moves_experts(v: Values) -> bool:
    return v.is_newer and bool(v("model.print_expert_load") or v("model.enable_expert_relocation"))


MOVED = ("model.enable_expert_relocation", "model.print_expert_load")
DISABLE_RELOCATION = "print_expert_load and enable_expert_relocation: False"

REFUSALS = (
    Refusal(
        "experts-positive",
        EXPERTS,
        lambda v: _has(v, EXPERTS) and v(EXPERTS) <= 0,
        "a model has one expert or more",
        "1 or more",
        "delete it",
    ),
    Refusal(
        "deredundency-ranks",
        DISPATCHER,
        lambda v: (
            v.is_newer
            and v.is_split
            and v(DISPATCHER) == "alltoall_deredundency"
            and v.count(EXPERT_RANKS) < v("model.npu_nums_per_device", 8)
        ),
        lambda v: f"it takes expert_parallel of npu_nums_per_device, {v('model.npu_nums_per_device', 8)}, or more",
        "alltoall",
        "{key}: alltoall",
    ),
    Refusal(
        "dispatcher",
        DISPATCHER,
        lambda v: _has(v, DISPATCHER) and v(DISPATCHER) not in DISPATCHERS,
        "MindFormers has no such dispatcher",
        ", ".join(DISPATCHERS),
        "{key}: alltoall",
    ),
    Refusal(
        "dispatcher-alone",
        DISPATCHER,
        lambda v: v.is_newer and v("use_parallel") is False and v(DISPATCHER) in DISPATCHERS[1:],
        "without parallelism MindFormers takes alltoall only",
        "alltoall",
        "{key}: alltoall",
    ),
    Refusal(
        "capacity-balance",
        "model.moe_expert_capacity_factor",
        lambda v: _has(v, "model.moe_expert_capacity_factor", BALANCE) and v(BALANCE) not in BALANCES,
        "a capacity needs a load balancing type",
        fix="moe_router_load_balancing_type: sub_seq_aux_loss",
    ),
    Refusal(
        "balance",
        BALANCE,
        lambda v: _has(v, BALANCE) and isinstance(v(BALANCE), str) and v(BALANCE) not in BALANCES,
        "MindFormers knows no such balancing",
        ", ".join(BALANCES),
        "{key}: sub_seq_aux_loss",
    ),
    Refusal(
        "balance-type",
        BALANCE,
        lambda v: _has(v, BALANCE) and not isinstance(v(BALANCE), str),
        "MindFormers takes a string",
        ", ".join(BALANCES),
        "{key}: sub_seq_aux_loss",
    ),
    Refusal(
        "loss-coefficient",
        "model.moe_aux_loss_coeff",
        lambda v: _has(v, "model.moe_aux_loss_coeff") and not is_number(v("model.moe_aux_loss_coeff")),
        "MindFormers takes a number",
        "a number",
        "{key}: 0.0001",
    ),
    Refusal(
        "experts-bias",
        "model.add_bias_linear",
        lambda v: _has(v, EXPERTS) and v("model.add_bias_linear") is True,
        "MindFormers has no bias for experts",
        "False",
        "{key}: False",
    ),
    Refusal(
        "expert-bias-score",
        "model.moe_router_enable_expert_bias",
        lambda v: (
            v.is_newer
            and bool(v("model.moe_router_enable_expert_bias"))
            and v("model.moe_router_score_function", "sigmoid") != "sigmoid"
        ),
        "it needs moe_router_score_function: sigmoid",
        "False",
        "moe_router_score_function: sigmoid",
    ),
    Refusal(
        "one-chosen",
        CHOSEN,
        lambda v: (
            _has(v, CHOSEN)
            and v(CHOSEN) == 1
            and v("model.moe_router_score_function") == "softmax"
            and not v("model.moe_router_pre_softmax")
        ),
        "one expert for a token needs moe_router_pre_softmax: True",
        fix="moe_router_pre_softmax: True",
    ),
    Refusal(
        "groups-missing",
        CHOSEN_GROUPS,
        lambda v: v.is_newer and bool(v(CHOSEN_GROUPS)) and v.is_written(GROUPS) and not v(GROUPS),
        "groups of experts are chosen, and n_group is missing",
        fix=lambda v: f"n_group: {v(CHOSEN_GROUPS)}",
    ),
    Refusal(
        "groups-divisor",
        GROUPS,
        lambda v: _has(v, CHOSEN_GROUPS) and bool(v(CHOSEN_GROUPS)) and v(EXPERTS) % v(GROUPS) != 0,
        lambda v: f"it does not divide the {v(EXPERTS)} experts",
        lambda v: f"a divisor of {v(EXPERTS)}",
        "{key}: 1",
    ),
    Refusal(
        "groups-chosen",
        CHOSEN_GROUPS,
        lambda v: _has(v, GROUPS) and v(CHOSEN_GROUPS) > v(GROUPS),
        lambda v: f"there are {v(GROUPS)} groups of experts only",
        lambda v: f"1 to {v(GROUPS)}",
        lambda v: f"{{key}}: {v(GROUPS)}",
    ),
    Refusal(
        "chosen-divisor",
        CHOSEN,
        lambda v: v.is_newer and bool(v(CHOSEN_GROUPS)) and v(CHOSEN) % v(CHOSEN_GROUPS) != 0,
        lambda v: f"it cannot be divided by the {v(CHOSEN_GROUPS)} chosen groups",
        lambda v: f"a multiple of {v(CHOSEN_GROUPS)}",
        lambda v: (
            f"{{key}}: {v(CHOSEN) - v(CHOSEN) % v(CHOSEN_GROUPS) or v(CHOSEN_GROUPS)}, "
            f"or topk_group: a divisor of {v(CHOSEN)}"
        ),
    ),
    Refusal(
        "dense-frequency",
        FREQUENCY,
        lambda v: v.is_newer and bool(v(DENSE)) and is_int(v(FREQUENCY)) and v(FREQUENCY) > 1,
        "it cannot be set together with first_k_dense_replace",
        "1",
        "{key}: 1",
    ),
    Refusal(
        "dense-frequency-list",
        FREQUENCY,
        lambda v: (
            v.is_newer and bool(v(DENSE)) and isinstance(v(FREQUENCY), list) and v(FREQUENCY) != _frequency_template(v)
        ),
        lambda v: f"first_k_dense_replace: {v(DENSE)} is another list",
        fix="delete one of the two",
    ),
    Refusal(
        "frequency-type",
        FREQUENCY,
        lambda v: _has(v, FREQUENCY) and not is_int(v(FREQUENCY)) and not isinstance(v(FREQUENCY), list),
        "MindFormers takes an integer or a list",
        "an integer, or a list of 0 and 1",
        "{key}: 1",
    ),
    Refusal(
        "dense-layers",
        DENSE,
        lambda v: _has(v, DENSE, LAYERS) and v(DENSE) > v(LAYERS),
        lambda v: f"the model has {v(LAYERS)} layers only",
        lambda v: f"0 to {v(LAYERS)}",
        lambda v: f"{{key}}: {v(LAYERS)}, or more layers",
    ),
    Refusal(
        "frequency-layers",
        FREQUENCY,
        lambda v: _has(v, FREQUENCY, LAYERS) and not v(DENSE) and is_int(v(FREQUENCY)) and v(FREQUENCY) > v(LAYERS),
        lambda v: f"the model has {v(LAYERS)} layers only",
        lambda v: f"1 to {v(LAYERS)}",
        "{key}: 1",
    ),
    Refusal(
        "frequency-length",
        FREQUENCY,
        lambda v: (
            _has(v, FREQUENCY, LAYERS)
            and not v(DENSE)
            and isinstance(v(FREQUENCY), list)
            and len(v(FREQUENCY)) != v(LAYERS)
        ),
        lambda v: f"it has {len(v(FREQUENCY))} numbers for {v(LAYERS)} layers",
        lambda v: f"{v(LAYERS)} numbers, 0 or 1",
        "{key}: 1",
    ),
    of_elements(
        "frequency-numbers",
        FREQUENCY,
        lambda number: number not in (0, 1),
        "MindFormers takes 0 and 1 only",
        "0 for a dense layer, 1 for one with experts",
        "1",
        where=lambda v: _has(v, LAYERS) and not v(DENSE) and len(v(FREQUENCY)) == v(LAYERS),
    ),
    Refusal(
        "relocation-dispatcher",
        MOVED,
        lambda v: _moves_experts(v) and v(DISPATCHER, "alltoall") != "alltoall",
        "it needs moe_token_dispatcher_type: alltoall",
        fix="moe_token_dispatcher_type: alltoall",
    ),
    Refusal(
        "relocation-optimizer",
        MOVED,
        lambda v: _moves_experts(v) and v("optimizer.type", "AdamW") != "AdamW",
        "it needs optimizer.type: AdamW",
        fix="optimizer.type: AdamW, or {key}: False",
    ),
    Refusal(
        "relocation-parallel-optimizer",
        MOVED,
        lambda v: _moves_experts(v) and bool(v("parallel.enable_parallel_optimizer")),
        "MindFormers refuses it with the parallel optimizer",
        fix="enable_parallel_optimizer: False, or {key}: False",
    ),
    Refusal(
        "relocation-groups",
        MOVED,
        lambda v: _moves_experts(v) and v(GROUPS, 0) > 1,
        "MindFormers refuses it with groups of experts (n_group)",
        fix="{key}: False",
    ),
    Refusal(
        "relocation-checkpoints",
        MOVED,
        lambda v: (
            _moves_experts(v) and any(callback.get("type") == "CheckpointMonitor" for callback in v("callbacks", []))
        ),
        "MindFormers refuses it with CheckpointMonitor in callbacks",
        fix="{key}: False",
    ),
    Refusal(
        "legacy-expert-ranks",
        "moe_config.expert_model_parallel",
        lambda v: (
            v.document.is_legacy and v.is_split and v("moe_config.expert_model_parallel") not in (None, 1, v.tensor)
        ),
        lambda v: f"MindFormers takes 1, or model_parallel, {v.tensor}",
        lambda v: f"1, {v.tensor}",
        "{key}: 1",
    ),
)


@rule(Level.ERROR)
def experts_refused(context: Context) -> Iterator[Finding]:
    """Settings of experts and of their router at which MindFormers stops.

    All conditions are in docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: {use_legacy: False, model: {model_config: {n_routed_experts: 8, n_group: 4, topk_group: 2}}}
    FAIL: {use_legacy: False, model: {model_config: {n_routed_experts: 8, n_group: 3, topk_group: 2}}}
    """
    yield from find_refusals(context, REFUSALS)
