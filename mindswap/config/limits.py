"""Upper limits of numbers that determine the size of the network, the step and its data.

They keep mistyped and hostile files from exhausting memory; no machine or model comes near them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mindswap.config.findings import Finding
from mindswap.config.nodes import Document, DocumentNode, is_int, show


@dataclass(frozen=True)
class Limit:
    """Upper limit of a number, and its reason."""

    largest: int
    reason: str


_CARDS = Limit(1_000_000, "no cluster has so many cards")
_PASSES = Limit(100_000, "every pass through the layers is simulated and scheduled one by one")
_PARTS = Limit(16, "the network is compiled with all parts of a micro-batch")
_LAYERS = Limit(10_000, "no model has so many layers")
_EXPERTS = Limit(100_000, "no model has so many experts")
_WIDTH = Limit(1 << 22, "no model has a layer so wide")
_VOCABULARY = Limit(1 << 24, "no tokenizer has so many tokens")
_TOKENS = Limit(1 << 24, "no model reads so many tokens at once")

# Keys of `model.model_config`, and of `model` in files of MindFormers 2.x.
MODEL_LIMITS = {
    **dict.fromkeys(("num_layers", "num_hidden_layers", "n_layer", "n_layers"), _LAYERS),
    **dict.fromkeys(("mtp_depth", "num_nextn_predict_layers", "mtp_num_layers"), _LAYERS),
    **dict.fromkeys(("pp_interleave_num", "virtual_pipeline_model_parallel_size"), _LAYERS),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_moe_experts", "n_shared_experts"), _EXPERTS),
    **dict.fromkeys(("hidden_size", "intermediate_size", "ffn_hidden_size", "moe_intermediate_size"), _WIDTH),
    **dict.fromkeys(("num_heads", "num_attention_heads", "n_kv_heads", "num_key_value_heads", "head_dim"), _WIDTH),
    "vocab_size": _VOCABULARY,
    **dict.fromkeys(("seq_length", "max_position_embeddings"), _TOKENS),
}
GRAPH_LIMITS: dict[tuple[str, ...], dict[str, Limit]] = {
    ("parallel_config",): {
        **dict.fromkeys(("data_parallel", "model_parallel", "context_parallel", "expert_parallel"), _CARDS),
        "pipeline_stage": _LAYERS,
        **dict.fromkeys(("micro_batch_num", "seq_split_num"), _PASSES),
    },
    ("runner_config",): {"gradient_accumulation_steps": _PASSES, "batch_size": Limit(1 << 20, "no card takes so many")},
    (): {"micro_batch_interleave_num": _PARTS},
    ("moe_config",): {"expert_num": _EXPERTS},
    ("model", "model_config"): MODEL_LIMITS,
}
PYNATIVE_LIMITS: dict[tuple[str, ...], dict[str, Limit]] = {("model",): MODEL_LIMITS}


def find_excess(document: Document, limits: Mapping[tuple[str, ...], Mapping[str, Limit]]) -> Iterator[Finding]:
    """Yield a finding for each key with an integer, or a list with an integer, above its limit."""
    for section, limit_of in limits.items():
        for key, limit in limit_of.items():
            node = document.get(*section, key)
            too_large = next((number for number in _numbers(node) if number.value > limit.largest), None)
            if too_large is not None:
                message = f"{'.'.join((*section, key))}: {show(too_large)} is too large: {limit.reason}"
                yield Finding(too_large.location, message, f"at most {limit.largest}", "a number without extra digits")


def _numbers(node: DocumentNode | None) -> Iterator[DocumentNode]:
    if node is not None:
        yield from (item for item in (node, *(node.items or ())) if is_int(item.value))
