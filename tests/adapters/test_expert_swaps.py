"""The swap of small models with experts, from the compiled graph: copies of the operators named, and their bytes.

2 samples of 64 tokens, hidden 64, float32. A small DeepSeek-V3 (one dense layer, then experts) and a small Qwen3-MoE
(experts in every layer); no operator is swapped in layer 3.
"""

import json
import subprocess
import sys

import pytest

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
    ("self_attention.core_attention Reshape", 20, 128 * 64 * 4),  # the same by token, which linear_proj reads
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

# family -> pairs of layers 0 to 3
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
        [*GROUPED_ATTENTION, TOKENS],
        [],
    ],
}
# 229380 = 98304 query and key, 98304 value and both outputs, 32768 statistics, 4.
# 81922 = 32768 query and output, 16384 key and value, 32768 statistics, 2.
SWAPPED_BYTES = {
    "deepseek3": [229_380 + 65_536, 229_380, 229_380 + 32_768 + 16_384, 0],
    "qwen3_moe": [81_922 + 32_768, 81_922, 81_922 + 32_768, 0],
}


@pytest.mark.parametrize("family", PAIRS)
def test_what_is_named_moves_and_nothing_else(family):
    command = [sys.executable, "-m", "mindswap", "verify", "--json", f"configs/{family}/cpu/op_swap.yaml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["ok"] is True
    keys = ("operator", "num_prefetch_ops", "size_bytes")
    found = [sorted(tuple(pair[key] for key in keys) for pair in layer["pairs"]) for layer in report["layers"]]
    assert found == [sorted(pairs) for pairs in PAIRS[family]]
    assert [layer["swapped_bytes"] for layer in report["layers"]] == SWAPPED_BYTES[family]
    assert [layer["one_way"] for layer in report["layers"]] == [[]] * 4
    # All that moves is off the device between forward and backward.
    kept = [layer["kept_before_bytes"] - layer["kept_bytes"] for layer in report["layers"]]
    assert kept == SWAPPED_BYTES[family]
