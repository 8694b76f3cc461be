"""The swap of small models with experts, from the compiled graph: copies of the operators named, and their bytes.

2 samples of 64 tokens, hidden 64, float32. A small DeepSeek-V3 (one dense layer, then experts) and a small Qwen3-MoE
(experts in every layer), cut to two layers; no operator is swapped in layer 3.
"""

import json

import pytest
import yaml

from tests import forked
from tests.adapters.edits import edited
from tests.adapters.graphs import ROOT

pytestmark = pytest.mark.mindspore

STATISTICS = 2 * 4 * 64 * 8 * 4  # maximum or sum of each row of the softmax, eight times, float32
# Latent attention: 4 heads of 24 for queries and keys (16 and the 8 that are rotated), of 16 for values.
LATENT_ATTENTION = [
    ("self_attention.core_attention Transpose", 20, 2 * 4 * 64 * 24 * 4),  # query
    ("self_attention.core_attention Transpose", 20, 2 * 4 * 64 * 24 * 4),  # key
    ("self_attention.core_attention Transpose", 20, 2 * 4 * 64 * 16 * 4),  # value
    ("self_attention.core_attention TupleGetItem", 20, STATISTICS),
    ("self_attention.core_attention TupleGetItem", 20, STATISTICS),
    ("self_attention.core_attention TupleGetItem", 20, 4),  # an output that holds nothing
    ("self_attention.core_attention TupleGetItem", 20, 2 * 4 * 64 * 16 * 4),  # what it attended to
    ("self_attention.linear_proj Reshape", 20, 128 * 64 * 4),  # the same by token
]
# 4 heads of queries and 2 of keys and values, 16 wide, float16: the kernel has no float32 here.
GROUPED_ATTENTION = [
    ("self_attention.core_attention Transpose", 20, 2 * 4 * 64 * 16 * 2),
    ("self_attention.core_attention Transpose", 20, 2 * 2 * 64 * 16 * 2),
    ("self_attention.core_attention Transpose", 20, 2 * 2 * 64 * 16 * 2),
    ("self_attention.core_attention TupleGetItem", 20, STATISTICS),
    ("self_attention.core_attention TupleGetItem", 20, STATISTICS),
    ("self_attention.core_attention TupleGetItem", 20, 2),
    ("self_attention.core_attention TupleGetItem", 20, 2 * 4 * 64 * 16 * 2),
]
TOKENS = ("mlp Transpose", 15, 128 * 64 * 4)  # by sample, as router and experts read them
DENSE_SILU = ("mlp.activation_func SiLU", 15, 128 * 128 * 4)  # the dense layer is 128 wide
SHARED_SILU = ("mlp.shared_experts.activation_func SiLU", 15, 128 * 32 * 4)  # an expert is 32 wide

# family -> pairs of each layer
PAIRS = {
    "deepseek3": [
        [*LATENT_ATTENTION, DENSE_SILU],
        LATENT_ATTENTION,
        [*LATENT_ATTENTION, TOKENS, SHARED_SILU],
        [],
    ],
    "qwen3_moe": [
        [*GROUPED_ATTENTION, TOKENS],
        GROUPED_ATTENTION,
    ],
}
# 229380 = 98304 query and key, 98304 value and both outputs, 32768 statistics, 4.
# 81922 = 32768 query and output, 16384 key and value, 32768 statistics, 2.
SWAPPED_BYTES = {
    "deepseek3": [229_380 + 65_536, 229_380, 229_380 + 32_768 + 16_384, 0],
    "qwen3_moe": [81_922 + 32_768, 81_922],
}
# What a layer keeps without swap, by tensor. A row is a token, or one of the two experts of a token; float32 but int64
# for order and choice. All layers read cosines and sines of positions, which layer 0 makes. A layer's input is the sum
# that the layer before ends with.
TOKENS_BYTES = 128 * 64 * 4
ROW_SCALE = 128 * 4  # of a norm
EXPERTS = (
    TOKENS_BYTES  # by sample
    + 4 * 256 * 8  # order of rows: out, by expert, and both ways back
    + 8 * 8  # rows of each expert
    + 256 * 64 * 4  # rows
    + 256 * 2 * 32 * 4  # gate and value; their product runs again
    + 256 * 64 * 4  # what came back
)
LATENT = (
    (TOKENS_BYTES + ROW_SCALE)  # norm
    + (128 * 32 * 4 * 2 + ROW_SCALE)  # what queries are made of, and its norm
    + (128 * 16 * 4 * 2 + ROW_SCALE)  # the same for keys and values
    + 229_380  # attention, as above
    + TOKENS_BYTES  # sum
    + (TOKENS_BYTES + ROW_SCALE)  # norm
)
DENSE = LATENT + 4 * 128 * 128 * 4 + TOKENS_BYTES  # gate, value, SiLU, product; sum
GROUPED_CHOICE = (
    128 * 8 * 4  # probabilities
    + 128 * 2 * 2 * 8  # two best experts of each of two groups
    + 128 * 8  # the best group
    + 128 * 8  # which experts are not in it, bool
    + 128 * 2 * (8 + 4)  # the experts of a token, int64 and int32
    + 128 * 4 + 2 * 128 * 2 * 4  # sum of both weights, weights by it, and scaled
    + 128 * 4 + 128 * 8 * 4 + 8 * 4  # loss of balance: sums of probabilities, probabilities by them, share of experts
)  # fmt: skip
LATENT_EXPERTS = LATENT + EXPERTS + GROUPED_CHOICE + 4 * 128 * 32 * 4 + TOKENS_BYTES  # as dense, of the shared expert
GROUPED_EXPERTS = (
    (TOKENS_BYTES + ROW_SCALE)  # norm
    + 128 * (4 + 2) * (16 + 1) * 4  # queries and keys before their norms, and those
    + 81_922  # attention, as above
    + TOKENS_BYTES  # its output, float32
    + TOKENS_BYTES  # sum
    + ROW_SCALE  # norm; the experts read it by sample
    + EXPERTS
    + 128 * 8 * 4 + 128 * 2 * (4 + 8) + 8 * 4  # probabilities, two best and which, share of experts
    + TOKENS_BYTES  # sum
)  # fmt: skip
KEPT_BYTES = {
    "deepseek3": [DENSE + 2 * 64 * 8 * 4, LATENT_EXPERTS, LATENT_EXPERTS, LATENT_EXPERTS],
    "qwen3_moe": [GROUPED_EXPERTS + 2 * 64 * 16 * 4, GROUPED_EXPERTS],
}


def test_sums_by_hand():
    assert KEPT_BYTES == {
        "deepseek3": [677_892, 735_332, 735_332, 735_332],
        "qwen3_moe": [519_266, 511_074],
    }


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """family -> what `mindswap verify` says of its example with as many layers as PAIRS has."""
    folder, found = tmp_path_factory.mktemp("experts"), {}
    for family, pairs in PAIRS.items():
        config = yaml.safe_load((ROOT / "configs" / family / "cpu" / "op_swap.yaml").read_text())
        for entry in config["swap_config"]["op_swap"]:
            entry["layers"] = [layer for layer in entry["layers"] if layer < len(pairs)]
        path = folder / f"{family}.yaml"
        path.write_text(yaml.safe_dump(edited(config, {"model.model_config.num_hidden_layers": len(pairs)})))
        result = forked.run(["-m", "mindswap", "verify", "--json", str(path)], cwd=ROOT)
        assert result.returncode == 0, result.stdout + result.stderr
        found[family] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("family", PAIRS)
def test_what_is_named_moves_and_nothing_else(reports, family):
    report = reports[family]
    assert report["ok"] is True
    keys = ("operator", "num_prefetch_ops", "size_bytes")
    found = [sorted(tuple(pair[key] for key in keys) for pair in layer["pairs"]) for layer in report["layers"]]
    assert found == [sorted(pairs) for pairs in PAIRS[family]]
    assert [layer["swapped_bytes"] for layer in report["layers"]] == SWAPPED_BYTES[family]
    assert not any(layer["one_way"] for layer in report["layers"])
    assert [layer["kept_before_bytes"] for layer in report["layers"]] == KEPT_BYTES[family]
    # All that moves is off the device between forward and backward.
    kept = [layer["kept_before_bytes"] - layer["kept_bytes"] for layer in report["layers"]]
    assert kept == SWAPPED_BYTES[family]


DENSE_LAYERS = {
    "first_k_dense_replace": {"first_k_dense_replace": 5},
    "a list": {"first_k_dense_replace": 0, "moe_layer_freq": [0, 0, 0, 0, 0, 1, 1]},
    "every third": {"first_k_dense_replace": 0, "moe_layer_freq": 3},
}


@pytest.mark.parametrize("setting", DENSE_LAYERS)
def test_layers_have_their_kind_though_few_are_compiled(tmp_path, setting):
    """Of 7 layers 5 are dense, or two of three: those of which no like is compiled before them, too."""
    config = yaml.safe_load((ROOT / "configs/deepseek3/cpu/op_swap.yaml").read_text())
    attention = {"op_name": "self_attention", "backward_prefetch": 20, "layers": [1]}
    config["swap_config"]["op_swap"] = [attention]
    edits = {"num_hidden_layers": 7, **DENSE_LAYERS[setting]}
    path = tmp_path / "dense.yaml"
    path.write_text(yaml.safe_dump(edited(config, {f"model.model_config.{key}": edits[key] for key in edits})))
    result = forked.run(["-m", "mindswap", "verify", "--json", str(path)], cwd=ROOT)
    dense, experts, positions = DENSE, LATENT_EXPERTS, 2 * 64 * 8 * 4  # all layers read positions, the first makes them
    kinds = [dense] * 5 + [experts] * 2 if setting != "every third" else [experts, dense, dense] * 2 + [experts]
    kept = [layer["kept_before_bytes"] for layer in json.loads(result.stdout)["layers"]]
    assert kept == [kinds[0] + positions, *kinds[1:]], result.stderr


def test_a_pattern_of_multi_token_prediction_moves_what_is_behind_the_layers(tmp_path):
    """Attention as in a layer, without the reshape of its projection."""
    source = yaml.safe_load((ROOT / "configs" / "deepseek3" / "cpu" / "op_swap.yaml").read_text())
    entry = {"op_name": r"transformer_layer\.self_attention\.core_attention", "backward_prefetch": 5, "layers": [1]}
    edits = {"swap_config": {"swap": True, "op_swap": [entry]}, "model.model_config.num_hidden_layers": 2}
    config = tmp_path / "prediction.yaml"
    config.write_text(yaml.safe_dump(edited(source, edits)))
    result = forked.run(["-m", "mindswap", "verify", "--json", str(config)], cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert not any(layer["pairs"] for layer in report["layers"])
    # 229380 - 32768 = 196612 bytes
    assert any("7 MoveTo pairs, 192.0 KiB swapped" in note for note in report["notes"])
