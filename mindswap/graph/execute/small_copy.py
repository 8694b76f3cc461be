"""A configuration of the same model in small: the same layers, cells and operators, less of everything else.

A policy names operators and layers and counts operators, so it means the same in the small model.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

from mindswap.policy.read import NUM_LAYERS_KEYS

# Elements of hidden states of all layers that are run as they are.
LARGEST = 2**22
SEQ_LENGTH, HEAD_DIM, NUM_HEADS, VOCAB_SIZE, FFN_SIZE = 64, 16, 4, 256, 128
HEAD_KEYS = ("num_heads", "num_attention_heads")
KV_HEAD_KEYS = ("n_kv_heads", "num_key_value_heads", "num_query_groups")
# What else grows with the model, and what it is in the small one. A key that the configuration lacks stays away.
SIZES = {
    "batch_size": 1,
    "seq_length": SEQ_LENGTH,
    "max_position_embeddings": SEQ_LENGTH,
    "max_position_embedding": SEQ_LENGTH,
    "hidden_size": NUM_HEADS * HEAD_DIM,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB_SIZE,
    "intermediate_size": FFN_SIZE,
    "ffn_hidden_size": FFN_SIZE,
    "multiple_of": 32,
    "ffn_dim_multiplier": 1.0,
    "moe_intermediate_size": FFN_SIZE,
    "moe_ffn_hidden_size": FFN_SIZE,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": HEAD_DIM,
    "qk_rope_head_dim": HEAD_DIM,
    "v_head_dim": HEAD_DIM,
}
PARALLEL_KEYS = ("model_parallel", "context_parallel", "expert_parallel", "pipeline_stage", "micro_batch_num")


def small_copy(config: Mapping[str, Any]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """A configuration in small, for one rank with the whole model, None where it is; and what was changed, in words."""
    small = copy.deepcopy(dict(config))
    model = (small.get("model") or {}).get("model_config") or {}
    notes = []
    if _elements(small, model) > LARGEST:
        before = {key: model[key] for key in (*HEAD_KEYS, *SIZES) if key in model}
        _shrink(small, model)
        changed = [f"{key} {old} -> {model[key]}" for key, old in before.items() if model[key] != old]
        notes.append(f"a small copy of the model, the same operators and layers: {', '.join(changed)}")
    parallel = small.get("parallel_config") or {}
    spread = [key for key in PARALLEL_KEYS if isinstance(parallel.get(key), int) and parallel[key] > 1]
    for key in spread:
        parallel[key] = 1
    if spread:
        if "offset" in model:
            model["offset"] = 0
        if "pp_interleave_num" in model:
            model["pp_interleave_num"] = 1
        if isinstance(small.get("parallel"), dict):
            small["parallel"].pop("pipeline_config", None)
        notes.append(f"one rank that has the whole model, one micro-batch: without {', '.join(spread)}")
    sections = small.get("parallel")
    if isinstance(sections, dict) and sections.get("enable_parallel_optimizer") is True:
        sections["enable_parallel_optimizer"] = False  # the frontend has no AllGather that could run here
        notes.append("whole weights, so no gathered copies of them: without enable_parallel_optimizer")
    return (small, tuple(notes)) if notes else (None, ())


def _elements(config: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    num_layers = next((model[key] for key in NUM_LAYERS_KEYS if isinstance(model.get(key), int)), 1)
    batch = (config.get("runner_config") or {}).get("batch_size") or 1
    sizes = [batch, model.get("seq_length"), model.get("hidden_size"), num_layers]
    return math.prod(size if isinstance(size, int) else 1 for size in sizes)


def _shrink(config: dict[str, Any], model: dict[str, Any]) -> None:
    num_heads = next((model[key] for key in HEAD_KEYS if isinstance(model.get(key), int)), NUM_HEADS)
    for key in HEAD_KEYS:
        if key in model:
            model[key] = NUM_HEADS
    for key in KV_HEAD_KEYS:
        if isinstance(model.get(key), int):
            model[key] = NUM_HEADS if model[key] == num_heads else NUM_HEADS // 2
    model.update({key: size for key, size in SIZES.items() if model.get(key) is not None})
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(model.get(key), int):
            model[key] = min(model[key], VOCAB_SIZE - 1)
    if isinstance(config.get("runner_config"), dict):
        config["runner_config"]["batch_size"] = 1
