"""Rule for settings of the model at which MindFormers stops."""

import re
from collections.abc import Iterator
from typing import Any

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import is_int, show
from mindswap.config.problem import Level
from mindswap.files import package_data
from mindswap.rules.context import Context
from mindswap.rules.parts import Part
from mindswap.rules.refusals import Refusal, find_refusals, is_number, of_elements, of_newer, of_parts
from mindswap.rules.values import Values

MODEL_CONFIG = "model.model_config"
DTYPES = ("params_dtype", "compute_dtype", "layernorm_compute_dtype", "rotary_dtype", "softmax_compute_dtype")
# Names of `ms_dtype_mapping` (parallel_core/transformer_config.py).
DTYPE_NAMES = frozenset(
    [
        "fp16",
        "float16",
        "fp32",
        "float32",
        "fp64",
        "float64",
        "bf16",
        "bfloat16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
        "complex64",
        "complex128",
    ]
)
ACTIVATIONS = ("gelu", "swiglu", "silu", "fusedswiglu")
MAX_PATTERN_LENGTH = 256
UNSAFE = ("(?=", "(?!", "(?<=", "(?<!", "(?>", "\\g<")
NESTED = re.compile(r"\((?:[^()\\]|\\.)*(?:[*+]|\{\d+(?:,\d*)?\})(?:[^()\\]|\\.)*\)\s*(?:[*+]|\{\d+(?:,\d*)?\})")


def _conflicts(v: Values) -> list[Part]:
    """Return keys of TransformerConfig in the model section for which the class of the model has another key."""
    tables = package_data("check/model_keys.yaml")
    config = v(MODEL_CONFIG)
    if not v.is_newer or not isinstance(config, dict):
        return []
    architectures = v("model.architectures")
    names = {v("model.model_type"), *(architectures if isinstance(architectures, list) else [architectures])}
    models = [model for model in tables["models"] if names.intersection(model["names"])]
    refused = tables["every"] | {name: key for model in models for name, key in model["with_default"].items()}
    # For an unknown class, only keys that the file has under both names.
    kinds = ("without_default",) if models else ("without_default", "with_default")
    doubled = {
        n: key for m in models or tables["models"] for kind in kinds for n, key in m[kind].items() if key in config
    }
    return [
        Part((name,), is_key=True, allowed=key, fix="delete it" if key in config else f"{key}: {show(config[name])}")
        for name, key in (refused | doubled).items()
        if name in config
    ]


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value < 1


def _initial_std(name: str, is_wrong: Any, message: str, allowed: str, key: str = "", fix: str = "") -> Refusal:
    """Return the refusal of an entry of `param_init_std_rules`, or of the value of `key` in it."""
    path = "model.param_init_std_rules"
    return of_elements(
        name=name,
        at=path,
        is_wrong=is_wrong,
        message=message,
        allowed=allowed,
        fix=fix,
        key=key,
        where=lambda v: v.is_newer,
    )


def _has_target(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("target"), str)


REFUSALS = (
    *(
        of_newer(
            f"dtype-{key}",
            key,
            lambda value: not isinstance(value, str) or value not in DTYPE_NAMES,
            "it is no type of numbers",
            "float32, bfloat16 or float16",
            "{key}: bfloat16",
        )
        for key in DTYPES
    ),
    *(
        of_newer(
            f"dropout-{key}",
            key,
            lambda value: not _is_fraction(value),
            "MindFormers takes a float from 0.0 on and below 1",
            "0.0 to below 1.0, with a dot",
            "{key}: 0.0",
        )
        for key in ("hidden_dropout", "attention_dropout")
    ),
    of_newer(
        "prediction-layers",
        "prediction_layers",
        lambda value: not is_int(value) or value < 0 or value > 1,
        "MindFormers 1.9 trains at most one layer for multi-token prediction",
        "0 or 1",
        "{key}: 1",
    ),
    Refusal(
        "swiglu-fusion",
        "model.bias_swiglu_fusion",
        lambda v: v.is_newer and bool(v("model.bias_swiglu_fusion")) and v("model.hidden_act", "silu") != "swiglu",
        "it fuses hidden_act: swiglu only",
        "False",
        "hidden_act: swiglu, or {key}: False",
    ),
    of_newer(
        "activation",
        "hidden_act",
        lambda value: str(value).lower() not in ACTIVATIONS,
        "MindFormers has no such activation",
        ", ".join(ACTIVATIONS),
        "{key}: silu",
    ),
    Refusal(
        "sliced-recompute",
        "recompute_config.recompute_slice_activation",
        lambda v: v.is_newer and bool(v("recompute_config.recompute_slice_activation")) and not v.is_swap_enabled,
        "newer models (use_legacy: False) do not take it",
        "False",
        "{key}: False",
    ),
    of_newer(
        "architecture",
        "model_architecture",
        lambda value: value not in ("decoder_only", "yoco"),
        "MindFormers knows no such architecture",
        "decoder_only, yoco",
        "{key}: decoder_only",
    ),
    Refusal(
        "yoco-layers",
        "model.model_architecture",
        lambda v: (
            v.is_newer
            and v("model.model_architecture") == "yoco"
            and v("model.num_encoder_layers") is None
            and v("model.num_decoder_layers") is None
        ),
        "yoco needs num_encoder_layers or num_decoder_layers",
        fix=lambda v: f"num_decoder_layers: {v('model.layers', 1)}",
    ),
    Refusal(
        "coder-layers",
        "model.num_encoder_layers",
        # A decoder-only model ignores both numbers.
        lambda v: (
            v.is_newer
            and v("model.model_architecture") == "yoco"
            and v("model.num_encoder_layers") * v("model.num_decoder_layers") > 0
            and v("model.num_encoder_layers") + v("model.num_decoder_layers") != v("model.layers")
        ),
        lambda v: f"num_encoder_layers and num_decoder_layers are not the {v('model.layers')} layers together",
        fix=lambda v: f"{{key}}: {v('model.layers') - v('model.num_decoder_layers')}",
    ),
    of_parts(
        "key-conflict",
        MODEL_CONFIG,
        _conflicts,
        "the model has another key for it with a value, and MindFormers stops at both",
    ),
    of_newer(
        "init-rules",
        "param_init_std_rules",
        lambda value: bool(value) and not isinstance(value, list),
        "MindFormers takes a list",
        "a list of mappings with target and init_method_std",
        "{key}: [{target: '.*', init_method_std: 0.02}]",
    ),
    _initial_std(
        "init-rule",
        lambda entry: not isinstance(entry, dict),
        "MindFormers takes a mapping",
        "a mapping with target and init_method_std",
        fix="{target: '.*', init_method_std: 0.02}",
    ),
    _initial_std(
        "init-target",
        lambda entry: isinstance(entry, dict) and not _has_target(entry),
        "it needs a string, target",
        "a regular expression",
        "target",
        "target: '.*'",
    ),
    _initial_std(
        "init-std",
        lambda entry: _has_target(entry) and not is_number(entry.get("init_method_std")),
        "it needs a number, init_method_std",
        "a number, 0 or more",
        "init_method_std",
        "init_method_std: 0.02",
    ),
    _initial_std(
        "init-std-sign",
        lambda entry: _has_target(entry) and entry["init_method_std"] < 0,
        "a deviation is 0 or more",
        "a number, 0 or more",
        "init_method_std",
        "init_method_std: 0.02",
    ),
    _initial_std(
        "init-target-length",
        lambda entry: _has_target(entry) and len(entry["target"]) > MAX_PATTERN_LENGTH,
        "the expression is too long",
        f"{MAX_PATTERN_LENGTH} characters at most",
        "target",
    ),
    _initial_std(
        "init-target-syntax",
        lambda entry: _has_target(entry) and any(token in entry["target"] for token in UNSAFE),
        "MindFormers takes no expression that looks ahead or back",
        "a plain regular expression",
        "target",
    ),
    _initial_std(
        "init-target-nested",
        lambda entry: _has_target(entry) and NESTED.search(entry["target"]) is not None,
        "MindFormers takes no repetition of a repetition",
        "a plain regular expression",
        "target",
    ),
)


@rule(Level.ERROR)
def model_refused(context: Context) -> Iterator[Finding]:
    """Settings of the model at which MindFormers stops, most of them for newer models (`use_legacy: False`).

    All conditions are in docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: {use_legacy: False, model: {model_config: {hidden_dropout: 0.0}}}
    FAIL (an integer): {use_legacy: False, model: {model_config: {hidden_dropout: 0}}}
    """
    yield from find_refusals(context, REFUSALS)
