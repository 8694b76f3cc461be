"""Rule for settings of attention at which MindFormers stops."""

from collections.abc import Iterator

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import is_int
from mindswap.config.problem import Level
from mindswap.rules.context import Context
from mindswap.rules.refusals import FLASH, Refusal, find_refusals, has_latent_attention, lacks_flash_attention, of_newer
from mindswap.rules.values import Values

POSITIONS = ("rope", "yarn", "none", "relative", "learned_absolute", "partial_rope")
# Sizes for which MindFormers has sparse attention (MLATransformerConfig).
SPARSE_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "dsa_indexer_head_dim": 128, "dsa_indexer_n_heads": 64}


def _is_sparse(v: Values) -> bool:
    return v.is_newer and v("model.experimental_attention_variant") == "dsa"


def _wrong_sparse_sizes(v: Values) -> dict[str, int]:
    """Return the required sizes of sparse attention that the file does not have."""
    return {key: size for key, size in SPARSE_SIZES.items() if v(f"model.{key}", size) != size}


def _compresses(v: Values) -> bool:
    """Return whether masks are compressed; legacy models look at those of packed samples only."""
    keys = (
        ("use_eod_attn_mask_compression",)
        if v.document.is_legacy
        else ("use_eod_attn_mask_compression", "use_attn_mask_compression")
    )
    return any(v(f"model.{key}") for key in keys)


def _compresses_causal(v: Values) -> bool:
    return bool(v("model.use_attn_mask_compression")) and not v("model.use_eod_attn_mask_compression")


REFUSALS = (
    Refusal(
        "sparse-latent",
        "model.experimental_attention_variant",
        lambda v: _is_sparse(v) and v("model.multi_latent_attention") is False,
        "sparse attention (dsa) needs multi_latent_attention: True",
        fix="multi_latent_attention: True",
    ),
    Refusal(
        "sparse-flash",
        "model.experimental_attention_variant",
        lambda v: _is_sparse(v) and v(FLASH) is False,
        "sparse attention (dsa) needs use_flash_attention: True",
        fix="use_flash_attention: True",
    ),
    Refusal(
        "sparse-sizes",
        "model.experimental_attention_variant",
        lambda v: _is_sparse(v) and bool(_wrong_sparse_sizes(v)),
        lambda v: (
            "sparse attention (dsa) needs "
            + ", ".join(f"{key}: {size}" for key, size in _wrong_sparse_sizes(v).items())
        ),
        fix="delete it, or these sizes",
    ),
    Refusal(
        "mask-compression",
        ("model.use_eod_attn_mask_compression", "model.use_attn_mask_compression"),
        lambda v: (v.is_newer or v.is_complete or v.is_written(FLASH)) and lacks_flash_attention(v) and _compresses(v),
        "compressed masks need use_flash_attention: True",
        fix="use_flash_attention: True",
    ),
    Refusal(
        "ring-attention",
        "model.use_ring_attention",
        lambda v: lacks_flash_attention(v) and bool(v("model.use_ring_attention")),
        "ring attention needs use_flash_attention: True",
        "False",
        "use_flash_attention: True, or {key}: False",
    ),
    Refusal(
        "ring-dropout",
        ("model.attention_dropout", "model.attention_dropout_rate"),
        lambda v: (
            v.is_split
            and v.context > 1
            and bool(v("model.use_ring_attention"))
            and max(v("model.attention_dropout", 0.0), v("model.attention_dropout_rate", 0.0)) > 0
        ),
        "MindSpore's ring attention has no dropout",
        "0.0",
        "{key}: 0.0",
    ),
    Refusal(
        "mask-length",
        "model.seq_length",
        lambda v: _compresses_causal(v) and v("model.seq_length") < 2048,
        "use_attn_mask_compression takes sequences of 2048 tokens or more",
        "2048 or more",
        "use_attn_mask_compression: False",
    ),
    Refusal(
        "latent-rope-fusion",
        "model.apply_rope_fusion",
        lambda v: v.is_newer and bool(v("model.apply_rope_fusion")) and has_latent_attention(v),
        "MindFormers has no fused rotary embedding for multi-head latent attention",
        "False",
        "{key}: False",
    ),
    Refusal(
        "latent-interleaved-rope",
        "model.rotary_interleaved",
        lambda v: v.is_newer and bool(v("model.rotary_interleaved")) and has_latent_attention(v),
        "MindFormers has no interleaved rotary embedding for multi-head latent attention",
        "False",
        "{key}: False",
    ),
    Refusal(
        "latent-head-sizes",
        "model.v_head_dim",
        lambda v: (
            v.is_newer
            and has_latent_attention(v)
            and v("model.qk_nope_head_dim") + v("model.qk_rope_head_dim") < v("model.v_head_dim")
        ),
        "it is more than qk_nope_head_dim and qk_rope_head_dim together",
        fix="{key}: 128",
    ),
    of_newer(
        "position-embedding",
        "position_embedding_type",
        lambda value: value not in POSITIONS,
        "MindFormers knows no such position embedding",
        ", ".join(POSITIONS),
        "{key}: rope",
    ),
    of_newer(
        "nope-interval",
        "nope_layer_interval",
        lambda value: not is_int(value) or value <= 0,
        "MindFormers takes a positive integer",
        "an integer, 1 or more",
        "delete it",
    ),
    of_newer(
        "rotary-half",
        "rotary_dtype",
        lambda value: value in ("float16", "fp16"),
        "rotary embeddings take no float16",
        "float32 or bfloat16",
        "{key}: float32",
    ),
    of_newer(
        "window",
        "window_size",
        lambda value: value[0] < -1 or value[1] < -1,
        "MindFormers takes -1 or more for both numbers",
        "two integers, -1 or more",
        "{key}: [-1, -1]",
    ),
)


@rule(Level.ERROR)
def attention_refused(context: Context) -> Iterator[Finding]:
    """Settings of attention at which MindFormers stops: masks, position embeddings, sparse and latent attention.

    All conditions are in docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: model: {model_config: {use_flash_attention: True, use_ring_attention: True}}
    FAIL: model: {model_config: {use_flash_attention: False, use_ring_attention: True}}
    """
    yield from find_refusals(context, REFUSALS)
