"""Names of cells in MindFormers 1.9 and in 2.x.

Source: facts of mindformers 1.9.0 (`mindformers/models/llama`) and 2.1.0 (`mindformers/pynative/transformers`). A name
converts, its meaning not always: see `convert`.
"""

__all__ = ["LEGACY_CELLS", "to_2x_path"]

# Cells of the legacy models, longest first. Newer 1.9 models have the names of 2.x.
LEGACY_CELLS = {
    "attention.flash_attention": "self_attention.core_attention",
    "attention.infer_attention": "self_attention.core_attention",
    "attention.apply_rotary_emb": "self_attention.apply_rotary_pos_emb",
    "attention.wq": "self_attention.linear_qkv",
    "attention.wk": "self_attention.linear_qkv",
    "attention.wv": "self_attention.linear_qkv",
    "attention.w_qkv": "self_attention.linear_qkv",
    "attention.w": "self_attention.linear_qkv",
    "attention.wo": "self_attention.linear_proj",
    "attention": "self_attention",
    "feed_forward.w1.activation": "mlp.activation_func",
    "feed_forward.w_gate_hidden": "mlp.linear_fc1",
    "feed_forward.w1": "mlp.linear_fc1",
    "feed_forward.w3": "mlp.linear_fc1",
    "feed_forward.w2": "mlp.linear_fc2",
    "feed_forward": "mlp",
    "attention_norm": "input_layernorm",
    "ffn_norm": "pre_mlp_layernorm",
    # Newer 1.9 models have flash attention one level deeper.
    "self_attention.core_attention.flash_attention": "self_attention.core_attention",
}


def to_2x_path(path: str) -> str:
    """A dotted path of MindFormers 1.9 with the names of 2.x; what has no other name stays."""
    for old, new in LEGACY_CELLS.items():
        if path == old or path.startswith(old + "."):
            return new + path[len(old) :]
    return path
