"""Policies under which a step that is worked out is compared with one that is compiled."""

from dataclasses import replace

from mindswap.policy.model import (
    ALL_LAYERS,
    ENTRY_FIELDS,
    NO_LAYERS,
    Layers,
    LayerSwap,
    OpRecompute,
    OpSwap,
    Policy,
    union_layers,
)
from tests.strength import is_nightly


def swap(*entries, **settings):
    """From (pattern, distance), in every layer."""
    return Policy(
        True, op_swap=tuple(OpSwap(pattern, ALL_LAYERS, distance) for pattern, distance in entries), **settings
    )


def select(*patterns, **settings):
    return Policy(True, select_recompute=tuple(OpRecompute(pattern, ALL_LAYERS) for pattern in patterns), **settings)


def excludes(*patterns):
    return tuple(OpRecompute(pattern, ALL_LAYERS) for pattern in patterns)


LLAMA = {
    "nothing": Policy(True),
    "whole layers": Policy(True, layer_recompute=ALL_LAYERS),
    "whole layers with their outputs": Policy(True, layer_recompute=ALL_LAYERS, output_recompute=Layers((1, 2))),
    "whole layers with all outputs": Policy(True, layer_recompute=ALL_LAYERS, output_recompute=ALL_LAYERS),
    "whole layers, less one operator": Policy(
        True, layer_recompute=ALL_LAYERS, select_recompute_exclude=excludes(r"feed_forward\.w1\.activation\.silu")
    ),
    "primitives": select(r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu"),
    "a cell": select("feed_forward"),
    "a cell, less one operator": select("feed_forward", select_recompute_exclude=excludes(r"feed_forward\.w3\.matmul")),
    "norms": select(".*_norm"),
    "swap of attention": swap((r"attention\.flash_attention", 10)),
    "swap of a cell": swap(("attention", 3), ("feed_forward", 2)),
    "layer swap": Policy(True, layer_swap=(LayerSwap(ALL_LAYERS, 2),)),
    "both on one operator": swap(
        (r"feed_forward\.mul", 3),
        (r"feed_forward\.w3\.matmul", 3),
        select_recompute=(OpRecompute(r"feed_forward\.mul", ALL_LAYERS),),
    ),
    "swap that feeds recompute": swap(
        (r"feed_forward\.w3\.matmul", 3),
        (r"feed_forward\.w3\.reshape", 4),
        select_recompute=(OpRecompute(r"feed_forward\.mul", ALL_LAYERS),),
    ),
    "layers unlike each other": Policy(
        True, layer_recompute=Layers((0, 1)), op_swap=(OpSwap("feed_forward", Layers((2,)), 3),)
    ),
}

QWEN3 = {
    "nothing": Policy(True),
    "whole layers": Policy(True, layer_recompute=ALL_LAYERS),
    "primitives": select(r"mlp\.mul", r"mlp\.activation_func\.silu"),
    "a cell": select("mlp"),
    "norms": select("input_layernorm", "pre_mlp_layernorm"),
    "attention": select("self_attention"),
    "swap of attention": swap((r"self_attention\.core_attention\.flash_attention", 10)),
    "swap of a cell": swap(("mlp", 3)),
    "layer swap": Policy(True, layer_swap=(LayerSwap(ALL_LAYERS, 2),)),
    "the last cell, and swap of its inputs": swap(("add", 3), select_recompute=(OpRecompute("mlp", ALL_LAYERS),)),
    "another cell, and swap of its inputs": swap(
        ("add", 3), select_recompute=(OpRecompute("self_attention", ALL_LAYERS),)
    ),
    "both on one operator": swap(
        (r"mlp\.mul", 3),
        (r"mlp\.linear_fc2", 3),
        select_recompute=(OpRecompute(r"mlp\.mul", ALL_LAYERS),),
    ),
    "swap that feeds recompute": swap(
        (r"mlp\.linear_fc1", 3), select_recompute=(OpRecompute(r"mlp\.activation_func", ALL_LAYERS),)
    ),
}

# Casts of weights and inputs, which wq, wk and wv (w1 and w3) share.
LLAMA_FLOAT16 = {
    **{name: LLAMA[name] for name in ("nothing", "whole layers", "a cell", "norms", "swap of a cell", "layer swap")},
    "casts": select(r"attention\.w.\.cast", r"feed_forward\.w.\.cast"),
    "swap of one of several casts": swap((r"attention\.wk\.cast", 2), (r"feed_forward\.w1\.cast", 2)),
    "swap of a reshape before one that runs again": swap(
        (r"attention\.w[qk]\.reshape", 3), select_recompute=(OpRecompute(r"attention\.reshape", ALL_LAYERS),)
    ),
    "mixed": swap(
        (r"feed_forward\.w2\.reshape", 3),
        (r"attention\..*", 3),
        select_recompute=(
            OpRecompute(r"feed_forward\.w3\.matmul", ALL_LAYERS),
            OpRecompute("attention_norm", ALL_LAYERS),
        ),
    ),
}

# The layer calls methods of the cell `attention`, not the cell.
LLAMA_INTERLEAVED = {
    **{name: LLAMA[name] for name in ("nothing", "whole layers", "a cell", "swap of attention")},
    "a cell that is not called": select("attention"),
    "cells below it": select(r"attention\.w.*", r"attention\.apply_rotary_emb"),
}

# Of `linear_qkv.reshape`, which the model itself marks, and `reshape_concat` the compiler leaves one.
QKV = (
    r"self_attention\.linear_qkv\.matmul",
    r"self_attention\.split_qkv",
    r"self_attention\.core_attention\.bnsd_transpose",
)
QWEN3_JOINT = {
    "nothing": Policy(True),
    "neither reshape": select(*QKV),
    "the first reshape": select(*QKV, r"self_attention\.linear_qkv\.reshape"),
    "the second reshape": select(*QKV, r"self_attention\.(reshape|reshape_concat)"),
    "both reshapes": select(*QKV, r"self_attention\.linear_qkv\.reshape", r"self_attention\.(reshape|reshape_concat)"),
}

# Fields of a policy that are layers.
WHOLE_LAYERS = ("layer_recompute", "output_recompute")
FAMILIES = {
    "LLAMA": LLAMA,
    "QWEN3": QWEN3,
    "LLAMA_FLOAT16": LLAMA_FLOAT16,
    "LLAMA_INTERLEAVED": LLAMA_INTERLEAVED,
    "QWEN3_JOINT": QWEN3_JOINT,
}
# By day the compiler sees one policy for a family: another in each layer, side by side. Those left out show nothing
# that one of another family, or of the same family, does not show.
MIXED = "another in each layer"
IN_LAYERS = {
    "LLAMA": (
        "swap of attention",
        "a cell, less one operator",
        "whole layers, less one operator",
        "whole layers with all outputs",
        "whole layers with all outputs",
    ),
    "QWEN3": (
        "whole layers",
        "a cell",
        "swap of attention",
        "the last cell, and swap of its inputs",
        "another cell, and swap of its inputs",
        "both on one operator",
        "swap that feeds recompute",
    ),
    "LLAMA_FLOAT16": (
        "nothing",
        "swap of a cell",
        "layer swap",
        "casts",
        "swap of one of several casts",
        "swap of a reshape before one that runs again",
        "mixed",
    ),
    "LLAMA_INTERLEAVED": ("nothing", "a cell that is not called", "cells below it", "a cell", "nothing"),
    "QWEN3_JOINT": tuple(QWEN3_JOINT),
}  # fmt: skip


def policies(family: str) -> dict[str, Policy]:
    """Those of a family that are compared in this run, by name."""
    return {**(FAMILIES[family] if is_nightly() else {}), MIXED: mixed(family)}


def assembled(family: str) -> dict[str, Policy]:
    """Those under which a model put together from a few layers is compared with all of them."""
    names = ("whole layers", "layer swap", *(("nothing", "a cell", "swap of attention") if is_nightly() else ()))
    return {name: FAMILIES[family][name] for name in names}


def mixed(family: str) -> Policy:
    """The policies of IN_LAYERS side by side."""
    return side_by_side([FAMILIES[family][name] for name in IN_LAYERS[family]])


def side_by_side(each: list[Policy]) -> Policy:
    """The first policy in layer 0, the second in layer 1, and so on."""
    own = [in_layer(policy, index) for index, policy in enumerate(each)]
    entries = {name: tuple(entry for policy in own for entry in getattr(policy, name)) for name in ENTRY_FIELDS}
    layers = {name: union_layers(getattr(policy, name) for policy in own) for name in WHOLE_LAYERS}
    return Policy(True, **entries, **layers)


def in_layer(policy: Policy, index: int) -> Policy:
    """What a policy says of this layer."""
    only = Layers(index)
    entries = {
        name: tuple(replace(entry, layers=only) for entry in getattr(policy, name) if index in entry.layers)
        for name in ENTRY_FIELDS
    }
    layers = {name: only if index in getattr(policy, name) else NO_LAYERS for name in WHOLE_LAYERS}
    return replace(policy, **entries, **layers)
