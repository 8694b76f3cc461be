"""Rule for data, tensor, context and expert parallel settings at which MindFormers or MindSpore stop."""

from collections.abc import Iterator
from typing import Any

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import is_int
from mindswap.config.problem import Level
from mindswap.config.weight_sharding import AUTO_MODES
from mindswap.rules.context import Context
from mindswap.rules.refusals import (
    DATA_MODES,
    FLASH,
    PARALLEL_MODES,
    Refusal,
    find_refusals,
    has_latent_attention,
    is_bool,
    is_positive,
    lacks_flash_attention,
    typed,
)
from mindswap.rules.values import Values

TENSOR, CONTEXT, EXPERT = (f"parallel_config.{kind}_parallel" for kind in ("model", "context", "expert"))
ALGORITHM, DEGREE = "parallel_config.context_parallel_algo", "parallel_config.ulysses_degree_in_cp"
ALGORITHMS = ("colossalai_cp", "ulysses_cp", "hybrid_cp")
SEQUENCE_PARALLEL = "parallel_config.use_seq_parallel"
MODE, STRATEGY = "parallel.parallel_mode", "parallel.dataset_strategy"
POSITIVE = ("data_parallel", "model_parallel", "context_parallel", "expert_parallel", "pipeline_stage")
FLAGS = ("enable_parallel_optimizer", "gradients_mean", "enable_alltoall", "sharding_propagation")
SEARCHES = ("recursive_programming", "dynamic_programming", "sharding_propagation")
THREE_D = "model.use_3d_tensor_parallel"


def _heads(v: Values) -> Any:
    """Return the attention heads that check_rules.py compares with context and tensor parallel ranks."""
    keys = ("n_kv_heads", "multi_query_group_num", "num_heads", "num_attention_heads")
    return next(filter(None, (v(f"model.{key}") for key in keys)), None)


def _num_experts(v: Values) -> int:
    experts = v("moe_config.expert_num", 1) if v.document.is_legacy else v("model.experts", 0)
    return experts if is_int(experts) else 0


def _other_mode(v: Values) -> bool:
    """Return whether the mode in the file is invalid; MindSpore's names, which a run has, have no location."""
    _, node = v.find(MODE)
    return node is not None and bool(node.location.line) and node.value not in PARALLEL_MODES


def _is_3d(v: Values) -> bool:
    return v.document.is_legacy and v.is_split and v(THREE_D) is True


def _cuts_legacy(v: Values) -> bool:
    """Return whether tensor parallelism shards the layers of a legacy model along one axis."""
    return v.document.is_legacy and v.is_split and not _is_3d(v)


def _cuts_no_states(v: Values) -> bool:
    """Return whether the parallel optimizer is on for an optimizer that does not support it in data parallel mode."""
    handles_states = v("optimizer.type", "AdamW") in ("Lamb", "AdamWeightDecay", "AdaFactor")
    is_data_parallel = v(MODE) in DATA_MODES
    return bool(v("parallel.enable_parallel_optimizer")) and not (handles_states and is_data_parallel)


def _strategy_is_another(v: Values) -> bool:
    """Return whether the dataset strategy does not shard over the data parallel ranks."""
    strategy = v(STRATEGY)
    return v.is_split and isinstance(strategy, list) and v("parallel.full_batch") is False and strategy[0][0] != v.data


REFUSALS = (
    *(typed(f"parallel_config.{key}", is_positive, "an integer, 1 or more", "{key}: 1") for key in POSITIVE),
    *(
        typed(f"parallel_config.{key}", is_positive, "an integer, 1 or more", "{key}: 1")
        for key in ("micro_batch_num", "seq_split_num")
    ),
    *(typed(f"parallel.{key}", is_bool, "True or False", "{key}: False") for key in FLAGS),
    *(
        typed(f"parallel_config.{key}", is_bool, "True or False", "{key}: False")
        for key in ("use_seq_parallel", "vocab_emb_dp")
    ),
    typed("parallel_config.gradient_aggregation_group", is_positive, "an integer, 1 or more", "{key}: 4"),
    typed("parallel.search_mode", lambda value: value in SEARCHES, ", ".join(SEARCHES), "{key}: sharding_propagation"),
    typed(ALGORITHM, lambda value: value in ALGORITHMS, ", ".join(ALGORITHMS), "{key}: colossalai_cp"),
    Refusal(
        "parallel-mode",
        MODE,
        _other_mode,
        "MindFormers knows no such mode",
        allowed="0 to 3, DATA_PARALLEL, SEMI_AUTO_PARALLEL, AUTO_PARALLEL, HYBRID_PARALLEL, STAND_ALONE",
        fix="{key}: 1",
        is_always_read=True,
    ),
    Refusal(
        "parallel-optimizer-mode",
        "parallel.enable_parallel_optimizer",
        lambda v: not v.is_split and _cuts_no_states(v),
        "MindSpore refuses it for this optimizer outside of semi-auto and auto parallel mode",
        allowed="False",
        fix="{key}: False, or parallel_mode: 1",
    ),
    Refusal(
        "context-parallel-attention",
        (FLASH, CONTEXT),
        # check_rules.py reads the file in semi-auto mode; in auto mode the class of the model decides.
        lambda v: (
            v.is_split
            and v.context > 1
            and (lacks_flash_attention(v) if v(MODE, 1) in AUTO_MODES else not v(FLASH))
            and (v.is_complete or v.is_written(FLASH))
        ),
        lambda v: f"with context_parallel {v.context} MindFormers wants use_flash_attention: True in model_config",
        allowed="use_flash_attention: True",
        fix="use_flash_attention: True, or context_parallel: 1",
    ),
    Refusal(
        "ulysses-heads",
        (ALGORITHM, CONTEXT),
        lambda v: v.is_split and v(ALGORITHM) == "ulysses_cp" and v.context > 1 and v.context * v.tensor > _heads(v),
        lambda v: f"context x model parallel, {v.context * v.tensor}, is more than the {_heads(v)} attention heads",
        fix="{key}: colossalai_cp",
    ),
    Refusal(
        "ulysses-degree",
        DEGREE,
        lambda v: v(ALGORITHM) == "hybrid_cp" and v.context > 1 and v.context % v(DEGREE) != 0,
        lambda v: f"hybrid_cp takes a divisor of context_parallel, {v.context}",
        allowed=lambda v: f"a divisor of {v.context}",
        fix=lambda v: f"{{key}}: {v.context}",
    ),
    Refusal(
        "hybrid-newer",
        ALGORITHM,
        lambda v: v.is_newer and v(ALGORITHM) == "hybrid_cp",
        "MindFormers 1.9 has hybrid_cp for legacy models only",
        allowed="colossalai_cp, ulysses_cp",
        fix="{key}: colossalai_cp",
    ),
    Refusal(
        "experts-sequence-parallel",
        (SEQUENCE_PARALLEL, TENSOR),
        lambda v: (
            v.is_split
            and v.tensor > 1
            and not v(SEQUENCE_PARALLEL)
            and _num_experts(v) > (1 if v.document.is_legacy else 0)
            and (v.is_complete or v.is_written(SEQUENCE_PARALLEL))
        ),
        "MindFormers trains experts with tensor parallelism only if use_seq_parallel is True",
        allowed="True",
        fix="use_seq_parallel: True, or model_parallel: 1",
    ),
    Refusal(
        "sequence-parallel-ranks",
        SEQUENCE_PARALLEL,
        lambda v: v.is_newer and v.is_split and bool(v(SEQUENCE_PARALLEL)) and v.tensor == 1 and v.is_complete,
        "MindFormers takes sequence parallelism with tensor parallelism only, and model_parallel is 1",
        allowed="False",
        fix="{key}: False",
    ),
    Refusal(
        "experts-missing",
        EXPERT,
        lambda v: v.is_newer and v.is_split and v.count(EXPERT) > 1 and v.is_complete and not _may_have_experts(v),
        "the model has no experts",
        allowed="1",
        fix="{key}: 1",
    ),
    Refusal(
        "experts-ranks",
        EXPERT,
        lambda v: v.is_newer and v.is_split and v.is_complete and (v.data * v.tensor) % v.count(EXPERT) != 0,
        lambda v: f"it does not divide data x model parallel, {v.data * v.tensor}",
        allowed=lambda v: f"a divisor of {v.data * v.tensor}",
        fix=lambda v: f"{{key}}: {v.data * v.tensor}, if the experts can be divided by it",
    ),
    Refusal(
        "experts-divisor",
        (EXPERT, "model.experts"),
        lambda v: v.is_newer and v.is_split and _num_experts(v) % v.count(EXPERT) != 0,
        lambda v: f"it does not divide the {_num_experts(v)} experts",
        allowed=lambda v: f"a divisor of {_num_experts(v)}",
        fix="{key}: 1",
    ),
    Refusal(
        "heads-divisor",
        ("model.heads", TENSOR),
        lambda v: v.is_split and not _is_3d(v) and v("model.heads") % (v.tensor * v.ulysses) != 0,
        lambda v: f"the heads cannot be divided by model_parallel x ulysses ranks, {v.tensor * v.ulysses}",
        allowed=lambda v: f"a multiple of {v.tensor * v.ulysses}",
        fix="model_parallel: a divisor of the heads",
    ),
    Refusal(
        "kv-heads-divisor",
        ("model.kv_heads", TENSOR),
        # Newer models repeat key and value heads for ulysses ranks; those with latent attention have none.
        lambda v: (
            v.is_split and not _is_3d(v) and v("model.kv_heads") % _kv_ranks(v) != 0 and not has_latent_attention(v)
        ),
        lambda v: f"the key and value heads cannot be divided by model_parallel, {_kv_ranks(v)}",
        allowed=lambda v: f"a multiple of {_kv_ranks(v)}",
        fix="model_parallel: a divisor of the key and value heads",
    ),
    Refusal(
        "hidden-size-heads",
        "model.hidden_size",
        lambda v: not has_latent_attention(v) and v("model.hidden_size") % v("model.heads") != 0,
        lambda v: f"it cannot be divided by the {v('model.heads')} attention heads",
        allowed=lambda v: f"a multiple of {v('model.heads')}",
        fix=lambda v: (
            f"num_attention_heads: a divisor of {v('model.hidden_size')}, or "
            f"{{key}}: {v('model.hidden_size') // v('model.heads') * v('model.heads') or v('model.heads')}"
        ),
    ),
    Refusal(
        "hidden-size-ranks",
        ("model.hidden_size", TENSOR),
        lambda v: _cuts_legacy(v) and v("model.hidden_size") % v.tensor != 0,
        lambda v: f"it cannot be divided by model_parallel, {v.tensor}",
        allowed=lambda v: f"a multiple of {v.tensor}",
        fix="model_parallel: a divisor of hidden_size",
    ),
    Refusal(
        "intermediate-size-ranks",
        ("model.intermediate_size", TENSOR),
        lambda v: _cuts_legacy(v) and v("model.intermediate_size") % v.tensor != 0,
        lambda v: f"it cannot be divided by model_parallel, {v.tensor}",
        allowed=lambda v: f"a multiple of {v.tensor}",
        fix="model_parallel: a divisor of intermediate_size",
    ),
    Refusal(
        "dataset-strategy-ranks",
        STRATEGY,
        _strategy_is_another,
        lambda v: f"its first number is not data_parallel, {v.data}",
        fix=lambda v: f"{{key}}: {[[v.data, *row[1:]] for row in v(STRATEGY)]}",
    ),
    Refusal(
        "dataset-strategy-form",
        STRATEGY,
        lambda v: v.is_written(STRATEGY) and not isinstance(v(STRATEGY), list) and v(STRATEGY) != "full_batch",
        "MindFormers takes a list of lists",
        allowed="full_batch, or a list such as [[data_parallel, 1], [data_parallel, 1]]",
        fix=lambda v: f"{{key}}: [[{v.data}, 1], [{v.data}, 1]]",
    ),
    Refusal(
        "3d-attention",
        THREE_D,
        lambda v: _is_3d(v) and not v("model.use_flash_attention") and v.is_complete,
        "3d tensor parallelism needs use_flash_attention: True",
        fix="use_flash_attention: True",
    ),
    Refusal(
        "3d-ulysses",
        THREE_D,
        lambda v: _is_3d(v) and v.ulysses > 1,
        "MindFormers refuses 3d tensor parallelism with ulysses context parallelism",
        fix="context_parallel_algo: colossalai_cp",
    ),
    Refusal(
        "3d-auto-parallel",
        THREE_D,
        lambda v: _is_3d(v) and v(MODE) in AUTO_MODES and v("parallel.search_mode", SEARCHES[2]) == SEARCHES[2],
        "MindFormers refuses 3d tensor parallelism in auto parallel mode",
        fix="parallel_mode: 1",
    ),
    Refusal(
        "3d-experts",
        THREE_D,
        lambda v: _is_3d(v) and _num_experts(v) > 1,
        "MindFormers refuses 3d tensor parallelism with experts",
        fix="{key}: False",
    ),
    Refusal(
        "3d-sequence-parallel",
        THREE_D,
        lambda v: _is_3d(v) and not v(SEQUENCE_PARALLEL) and v.is_complete,
        "3d tensor parallelism needs use_seq_parallel: True",
        fix="use_seq_parallel: True",
    ),
    Refusal(
        "3d-halves",
        THREE_D,
        lambda v: _is_3d(v) and v("model.fine_grain_interleave", 1) > 1 and v.tensor > 1,
        "MindFormers refuses 3d tensor parallelism with fine_grain_interleave",
        fix="fine_grain_interleave: 1",
    ),
    Refusal(
        "3d-product",
        THREE_D,
        lambda v: _is_3d(v) and v.tensor > 1 and _product_3d(v) != v.tensor,
        lambda v: f"tp_x x tp_y x tp_z is {_product_3d(v)}, and model_parallel is {v.tensor}",
        fix=lambda v: f"tp_x, tp_y and tp_z whose product is {v.tensor}",
    ),
)


def _kv_ranks(v: Values) -> int:
    return v.tensor * v.ulysses if v.document.is_legacy else v.tensor


def _may_have_experts(v: Values) -> bool:
    """Return whether the model has experts, or is of a class whose default has some."""
    architecture = f"{v('model.architectures')} {v('model.model_type')} {v('model.type')}".lower()
    return v.is_written("model.experts") or any(word in architecture for word in ("moe", "deepseek", "telechat"))


def _product_3d(v: Values) -> int:
    product = 1
    for axis in ("tp_x", "tp_y", "tp_z"):
        product *= v(f"model.{axis}", 1)
    return product


@rule(Level.ERROR)
def split_refused(context: Context) -> Iterator[Finding]:
    """Data, tensor, context or expert parallel settings at which MindFormers or MindSpore stop.

    All conditions are in docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: parallel_config: {context_parallel: 4, context_parallel_algo: hybrid_cp, ulysses_degree_in_cp: 2}
    FAIL: parallel_config: {context_parallel: 4, context_parallel_algo: hybrid_cp, ulysses_degree_in_cp: 3}
    """
    yield from find_refusals(context, REFUSALS)
