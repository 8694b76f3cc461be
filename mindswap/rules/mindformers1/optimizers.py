"""Rule for settings of the optimizer at which MindFormers or MindSpore stop."""

from collections.abc import Iterator
from typing import Any

from mindswap.config.findings import Finding, rule
from mindswap.config.problem import Level
from mindswap.rules.context import Context
from mindswap.rules.parts import Part
from mindswap.rules.refusals import WITH_DOT, Refusal, find_refusals, is_positive, of_elements, of_parts, with_dot
from mindswap.rules.values import Values

INFINITY = float("inf")
TYPE, SHARDS = "optimizer.type", "parallel.parallel_optimizer_config.optimizer_weight_shard_size"
BETAS, EPS, DECAY = "optimizer.betas", "optimizer.eps", "optimizer.weight_decay"
# Optimizers whose arguments mindformers/core/optim/adamw.py checks.
ADAMW = ("AdamW", "PmaAdamW")
ADAMW_OPTIONS = frozenset({"type", "params", "betas", "eps", "learning_rate", "weight_decay", "swap", "use_fused"})
FUSED_OPTIONS = frozenset({"amsgrad", "maximize"})


def takes_swap(optimizer: object) -> bool:
    """Return whether MindFormers can have the states of an optimizer (`optimizer.type`) on the host."""
    return optimizer in ADAMW


def _has_no_swap(v: Values) -> bool:
    """Return whether the optimizer is a class of MindSpore or MindFormers without an argument `swap`."""
    is_external = v("optimizer.auto_register") is not None  # a class of the user
    return isinstance(v(TYPE), str) and not (is_external or takes_swap(v(TYPE)) or _is_muon(v))


def _is_plain(v: Values) -> bool:
    return v(TYPE) in ADAMW and not v("optimizer.use_fused")


def _unknown_options(v: Values) -> list[Part]:
    """Return the arguments that the class AdamW does not have."""
    allowed_options = ADAMW_OPTIONS | (FUSED_OPTIONS if v("optimizer.use_fused") else frozenset())
    return (
        [Part((key,), is_key=True) for key in v("optimizer") if key not in allowed_options]
        if v(TYPE) == "AdamW"
        else []
    )


def _is_adamw(v: Values) -> bool:
    return v(TYPE) in ADAMW


def _is_muon(v: Values) -> bool:
    return v(TYPE) == "Muon"


def _is_pma(v: Values) -> bool:
    return v(TYPE) == "PmaAdamW"


def _are_betas(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(beta, float) for beta in value)


def _came(key: str, kind: type, minimum: float, maximum: float) -> Refusal:
    """Return the refusal of an argument of Came that has another type, or is out of its range."""
    path, is_bool = f"optimizer.{key}", kind is bool
    return Refusal(
        f"came-{key}",
        path,
        lambda v: (
            v(TYPE) == "Came"
            and v(path) is not None
            and not (isinstance(v(path), kind) and (is_bool or minimum <= v(path) <= maximum))
        ),
        f"Came takes {'True or False' if is_bool else 'a float in its range'}",
        "True or False"
        if is_bool
        else f"a float, {minimum} or more" + ("" if maximum == INFINITY else f", {maximum} at most"),
        "delete it",
    )


def _lacks_latent_attention(v: Values) -> bool:
    """Return whether a newer model has no multi-head latent attention."""
    words = f"{v('model.architectures')} {v('model.model_type')}".lower()
    is_plain = any(word in words for word in ("qwen", "glm")) and not v.is_written("model.kv_lora_rank")
    return v.is_newer and (v("model.multi_latent_attention") is False or is_plain)


REFUSALS = (
    Refusal(
        "muon-swap",
        "optimizer.swap",
        lambda v: _is_muon(v) and bool(v("optimizer.swap")),
        "Muon has no swap of optimizer states",
        "False",
        "{key}: False",
    ),
    Refusal(
        "swap-unknown",
        "optimizer.swap",
        lambda v: v.is_written("optimizer.swap") and _has_no_swap(v),
        lambda v: f"{v(TYPE)} takes no such argument: AdamW and PmaAdamW do",
        "no swap",
        "delete it",
    ),
    Refusal(
        "muon-legacy",
        TYPE,
        lambda v: _is_muon(v) and v.document.is_legacy and v.is_complete,
        "MindFormers has Muon for newer models only (use_legacy: False)",
        fix="{key}: AdamW",
    ),
    Refusal(
        "muon-attention",
        TYPE,
        lambda v: _is_muon(v) and _lacks_latent_attention(v),
        "MindFormers has Muon for models with multi-head latent attention only",
        fix="{key}: AdamW",
    ),
    Refusal(
        "muon-shards",
        (SHARDS, TYPE),
        lambda v: _is_muon(v) and v.is_split and bool(v("parallel.enable_parallel_optimizer")) and v(SHARDS, -1) < 1,
        "with enable_parallel_optimizer, Muon needs optimizer_weight_shard_size in parallel.parallel_optimizer_config",
        allowed=lambda v: f"1 to {v.data}",
        fix=lambda v: f"optimizer_weight_shard_size: {v.data}",
    ),
    Refusal(
        "muon-shard-ranks",
        SHARDS,
        lambda v: _is_muon(v) and v.is_split and bool(v("parallel.enable_parallel_optimizer")) and v.data < v(SHARDS),
        lambda v: f"Muon takes at most data_parallel, {v.data}",
        allowed=lambda v: f"1 to {v.data}",
        fix=lambda v: f"{{key}}: {v.data}",
    ),
    of_parts(
        "adamw-options",
        "optimizer",
        _unknown_options,
        lambda v: "AdamW takes no such argument" + ("" if v("optimizer.use_fused") else " here"),
        "betas, eps, learning_rate, weight_decay, swap, use_fused; with use_fused: True amsgrad, maximize",
        "delete it",
    ),
    Refusal(
        "pma-options",
        ("optimizer.amsgrad", "optimizer.maximize"),
        lambda v: v(TYPE) == "PmaAdamW" and _is_plain(v) and bool(v("optimizer.amsgrad") or v("optimizer.maximize")),
        "MindFormers takes it with use_fused: True only",
        "False",
        "{key}: False",
    ),
    Refusal(
        "adamw-betas",
        BETAS,
        lambda v: _is_adamw(v) and v.is_written(BETAS) and not _are_betas(v(BETAS)),
        "MindFormers takes two floats",
        "two numbers with a dot, above 0.0 and below 1.0",
        "{key}: [0.9, 0.95]",
    ),
    of_elements(
        "adamw-beta-range",
        BETAS,
        lambda beta: not 0 < beta < 1,
        "it is not between 0.0 and 1.0",
        "above 0.0 and below 1.0",
        "0.9",
        where=lambda v: _is_plain(v) and _are_betas(v(BETAS)),
    ),
    of_elements(
        "fused-beta-range",
        BETAS,
        lambda beta: not 0 <= beta < 1,
        "it is not between 0.0 and 1.0",
        "0.0 or more, and below 1.0",
        "0.9",
        where=lambda v: _is_adamw(v) and not _is_plain(v) and _are_betas(v(BETAS)),
    ),
    Refusal(
        "adamw-eps-type",
        EPS,
        lambda v: _is_adamw(v) and v.is_written(EPS) and not isinstance(v(EPS), float),
        "MindFormers takes a float",
        WITH_DOT,
        lambda v: with_dot(v(EPS)),
    ),
    Refusal(
        "adamw-eps",
        EPS,
        lambda v: _is_plain(v) and v(EPS) <= 0,
        "MindFormers takes more than 0",
        "above 0.0",
        "{key}: 1.e-8",
    ),
    Refusal(
        "fused-eps",
        EPS,
        lambda v: _is_adamw(v) and not _is_plain(v) and v(EPS) < 0,
        "MindFormers takes 0 or more",
        "0.0 or more",
        "{key}: 1.e-8",
    ),
    Refusal(
        "adamw-decay-type",
        DECAY,
        lambda v: _is_adamw(v) and v.is_written(DECAY) and not isinstance(v(DECAY), float),
        "MindFormers takes a float",
        "a number with a dot",
        "{key}: 0.0",
    ),
    Refusal(
        "decay-sign",
        DECAY,
        lambda v: v(DECAY) < 0,
        "MindFormers takes 0 or more",
        "0.0 or more",
        "{key}: 0.0",
    ),
    Refusal(
        "pma-count",
        ("optimizer.fused_num", "optimizer.interleave_step"),
        lambda v: (
            _is_pma(v)
            and not (is_positive(v("optimizer.fused_num", 1)) and is_positive(v("optimizer.interleave_step", 1)))
        ),
        "PmaAdamW takes fused_num and interleave_step of 1 or more",
        "an integer, 1 or more",
        "{key}: 10",
    ),
    Refusal(
        "pma-algorithm",
        "optimizer.fused_algo",
        lambda v: _is_pma(v) and v("optimizer.fused_algo", "ema") not in ("ema", "sma"),
        "PmaAdamW knows no such algorithm",
        "ema, sma",
        "{key}: ema",
    ),
    Refusal(
        "pma-alpha",
        "optimizer.ema_alpha",
        lambda v: (
            _is_pma(v)
            and not (isinstance(v("optimizer.ema_alpha", 0.2), float) and 0 < v("optimizer.ema_alpha", 0.2) < 1)
        ),
        "PmaAdamW takes a float between 0.0 and 1.0",
        "above 0.0 and below 1.0",
        "{key}: 0.2",
    ),
    Refusal(
        "came-compression",
        "optimizer.compression",
        lambda v: v(TYPE) == "Came" and bool(v("optimizer.compression")),
        "Came takes no compression",
        "False",
        "{key}: False",
    ),
    Refusal(
        "came-relative",
        "optimizer.relative_step",
        lambda v: v(TYPE) == "Came" and bool(v("optimizer.relative_step")),
        "MindFormers passes a learning rate to the optimizer, which relative_step forbids",
        "False",
        "{key}: False",
    ),
    Refusal(
        "came-warmup",
        "optimizer.warmup_init",
        lambda v: v(TYPE) == "Came" and bool(v("optimizer.warmup_init")) and not v("optimizer.relative_step"),
        "it needs relative_step: True, which MindFormers does not take",
        "False",
        "{key}: False",
    ),
    _came("clip_threshold", float, 0.0, INFINITY),
    _came("decay_rate", float, 0.0, 1.0),
    _came("weight_decay", float, 0.0, 1.0),
    _came("beta1", float, 0.0, 1.0),
    _came("beta3", float, 0.0, 1.0),
    _came("scale_parameter", bool, 0.0, 1.0),
    of_elements(
        "came-eps-values",
        EPS,
        lambda eps: not (isinstance(eps, float) and eps >= 0),
        "Came takes floats of 0.0 or more",
        "a number with a dot, 0.0 or more",
        "1.e-16",
        where=lambda v: v(TYPE) == "Came",
    ),
    Refusal(
        "came-eps",
        EPS,
        lambda v: v(TYPE) == "Came" and len(v(EPS)) != 3,
        "Came takes three numbers",
        "three numbers with a dot",
        "{key}: [1.e-30, 1.e-3, 1.e-16]",
    ),
)


@rule(Level.ERROR)
def optimizer_refused(context: Context) -> Iterator[Finding]:
    """Settings of the optimizer at which MindFormers or MindSpore stop.

    Numbers such as 1e-5 are among them: without a dot they are strings in YAML 1.1. All conditions are in
    docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: optimizer: {type: AdamW, betas: [0.9, 0.95], eps: 1.e-8}
    FAIL: optimizer: {type: AdamW, betas: [0.9, 0.95], eps: 1e-8}
    """
    yield from find_refusals(context, REFUSALS)
