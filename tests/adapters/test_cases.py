"""What the compiled graphs of the shipped configurations move: the operators the policy names, nothing else.

The lists are worked out from the layer and from what its gradient needs; a cell path and the primitive
whose output leaves the device, once per output.
"""

import json
import re

import pytest

from tests import forked
from tests.adapters.graphs import (
    CASES,
    CPU_CASES,
    DEEPSEEK,
    QWEN3,
    compile_jobs,
    expected,
    job,
    layer_swap,
    op_swap,
    pairs_of,
)

pytestmark = pytest.mark.mindspore

NAMES = ["case1_default_swap", "case2_layer_swap", "case3_op_swap", "case4_swap_and_recompute"]

# The small Llama for CPU, float32. Weights are parameters and never copied.
CPU_ATTENTION = [
    ("attention.wq", "Reshape"),  # input of wq, wk, wv as a matrix (one for the three): gradient of their weights
    ("attention.apply_rotary_emb", "Add"),  # rotated query: gradient of the scores by the key
    ("attention.apply_rotary_emb", "Add"),  # rotated key: gradient of the scores by the query
    ("attention", "Transpose"),  # value: gradient of the output by the probabilities
    ("attention.flash_attention", "Softmax"),  # probabilities: gradient of softmax, and of the output by the value
    ("attention.wo", "Reshape"),  # attention output as a matrix: gradient of the weight of wo
]
CPU_FEED_FORWARD = [
    ("feed_forward.w3", "Reshape"),  # input of w1 and w3 as a matrix: gradient of their weights
    ("feed_forward.w1", "MatMul"),  # what silu reads
    ("feed_forward.w1", "Reshape"),  # silu of it, one side of the product
    ("feed_forward.w3", "Reshape"),  # the other side of the product
    ("feed_forward.w2", "Reshape"),  # the product as a matrix: gradient of the weight of w2
]
CPU_REST = [
    ("attention_norm", "Rsqrt"),  # 1 / root mean square
    ("attention_norm", "Mul"),  # normalised input: gradient of the weight of the norm
    ("", "Add"),  # after attention: the input of ffn_norm
    ("ffn_norm", "Rsqrt"),
    ("ffn_norm", "Mul"),
    ("", "Add"),  # after feed_forward: the input of the next norm
]
# Llama2-7B for Ascend, float16 from float32 weights: the float16 copies of the weights are made by a `Cast` in
# their cells, and the gradient of the input of a matrix product needs them.
FLASH = [("attention.flash_attention", "FlashAttentionScore")] * 4  # softmax max and sum, an empty one, the output
ATTENTION = [
    ("attention.wq", "Reshape"),
    ("attention.wq", "Cast"),
    ("attention.wk", "Cast"),
    ("attention.wv", "Cast"),
    ("attention.apply_rotary_emb", "Add"),
    ("attention.apply_rotary_emb", "Add"),
    ("attention", "Transpose"),
    *FLASH,
    ("attention.wo", "Reshape"),
    ("attention.wo", "Cast"),
]
FEED_FORWARD = [*CPU_FEED_FORWARD, *((f"feed_forward.{name}", "Cast") for name in ("w1", "w2", "w3"))]
# The fused norm gives 1 / root mean square as a second output; its float32 input is recomputed by MindFormers.
REST = [("attention_norm", "RmsNorm"), ("", "Add"), ("ffn_norm", "RmsNorm"), ("", "Add")]


def expected_cases(flash, attention, feed_forward, rest):
    """The four cases of the specification."""
    operators = expected(((0,), 20, attention), ((1, 2), 20, attention), ((3,), 10, attention))
    operators += expected(((1, 2), 15, feed_forward))
    return {
        "case1_default_swap": expected((range(4), 10, flash)),
        "case2_layer_swap": expected(((0, 3), 20, [*attention, *feed_forward, *rest])),
        "case3_op_swap": operators,
        # feed_forward is recomputed in layers 0 and 3, where nobody swaps it.
        "case4_swap_and_recompute": operators,
    }


CPU_FLASH = [("attention.flash_attention", "Softmax")]
CPU_EXPECTED = expected_cases(CPU_FLASH, CPU_ATTENTION, CPU_FEED_FORWARD, CPU_REST)
ASCEND_EXPECTED = expected_cases(FLASH, ATTENTION, FEED_FORWARD, REST)


@pytest.fixture(scope="module")
def cpu_graphs():
    return dict(zip(NAMES, compile_jobs([job(CPU_CASES / f"{name}.yaml") for name in NAMES]), strict=True))


@pytest.fixture(scope="module")
def ascend_graphs():
    return dict(zip(NAMES, compile_jobs([job(CASES / f"{name}.yaml") for name in NAMES]), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_small_model_swaps_what_the_policy_names(cpu_graphs, name):
    assert pairs_of(cpu_graphs[name]) == CPU_EXPECTED[name]


@pytest.mark.parametrize("name", NAMES)
def test_llama2_7b_swaps_what_the_policy_names(ascend_graphs, name):
    assert pairs_of(ascend_graphs[name]) == ASCEND_EXPECTED[name]


def recomputed_in(graph, cell):
    """Layers in which backward runs operators of a cell again."""
    return sorted({layer for layer, path, _ in graph["recomputed"] if path.split(".")[0] == cell})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("graphs", ["cpu_graphs", "ascend_graphs"])
def test_feed_forward_is_recomputed_where_the_policy_says(request, graphs, name):
    graph = request.getfixturevalue(graphs)[name]
    assert recomputed_in(graph, "feed_forward") == ([0, 3] if name == NAMES[3] else [])
    assert recomputed_in(graph, "attention") == []


def test_all_of_a_recomputed_feed_forward_runs_again_but_its_output(cpu_graphs):
    """w1, silu, w3, the product; of w2 only the input as a matrix, for the gradient of its weight."""
    again = [(path, op) for layer, path, op in cpu_graphs[NAMES[3]]["recomputed"] if layer == 0 and op != "Load"]
    assert sorted(again) == [
        ("feed_forward", "Mul"),
        ("feed_forward.w1", "MatMul"),
        ("feed_forward.w1", "Reshape"),
        ("feed_forward.w1", "Reshape"),
        ("feed_forward.w1.activation", "SiLU"),
        ("feed_forward.w2", "Reshape"),
        ("feed_forward.w3", "MatMul"),
        ("feed_forward.w3", "Reshape"),
    ]


# The 32 layers of pretraining, through the command.


def test_verify_shows_the_pretraining_file_layer_by_layer(tmp_path):
    command = ["-m", "mindswap", "verify", "--json", str(CASES / "pretrain_llama2_7b.yaml")]
    result = forked.run(command, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["ok"] is True
    assert [layer["layer"] for layer in report["layers"]] == list(range(32))
    for layer in report["layers"]:
        assert layer["ok"] is True and layer["num_pairs"] == 4
        # Output: 32 heads x 4096 x 128 in float16. Softmax max and sum: 32 x 4096 x 8 in float32. Empty one: 2 B.
        assert layer["swapped_bytes"] == 32 * 4096 * 128 * 2 + 2 * 32 * 4096 * 8 * 4 + 2
        assert {pair["num_prefetch_ops"] for pair in layer["pairs"]} == {10}


# The newer models.

QWEN_FLASH = [("self_attention.core_attention", "FlashAttentionScore")] * 4
THREE_LEVELS = r"self_attention\.core_attention\.flash_attention"


@pytest.fixture(scope="module")
def qwen_graphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    names = ("default", "three levels", "star", "layers")
    swaps = (None, op_swap((THREE_LEVELS, 7, [1, 3])), op_swap((".*", 5, [2])), layer_swap((5, [2])))
    jobs = [job(QWEN3, folder, {"swap_config": swap} if swap else None) for swap in swaps]
    return dict(zip(names, compile_jobs(jobs), strict=True))


def test_qwen3_honours_swap_config_and_default_prefetch(qwen_graphs):
    assert pairs_of(qwen_graphs["default"]) == expected((range(4), 10, QWEN_FLASH))


def test_a_pattern_of_three_levels_reaches_flash_attention_of_qwen3(qwen_graphs):
    assert pairs_of(qwen_graphs["three levels"]) == expected(((1, 3), 7, QWEN_FLASH))


def test_star_is_the_whole_layer_of_qwen3(qwen_graphs):
    star = qwen_graphs["star"]["pairs"]
    assert star == qwen_graphs["layers"]["pairs"]
    assert {layer for layer, *_ in star if layer is not None} == {2}
    assert star.count([2, "self_attention.core_attention", "FlashAttentionScore", 5]) == 4
    assert [2, "mlp.activation_func", "SiLU", 5] in star


def test_layers_of_multi_token_prediction_get_the_policy_of_the_last_layer(tmp_path):
    """DeepSeek-V3 with two layers and one MTP layer: as in MindFormers, it counts as layer 1, and is around a layer."""
    both = r"(self_attention|transformer_layer)\.(core_attention|self_attention)"
    swap = op_swap(("self_attention", 3, [0]), (both, 8, [1]))
    (result,) = compile_jobs([job(DEEPSEEK, tmp_path, {"swap_config": swap}, how="set")])
    assert result["lines"] == [
        "Set op_swap at layer 0: .self_attention, value=3",
        "Set op_swap at layer 1: self_attention.core_attention, value=8",
        "Set op_swap at layer 1: transformer_layer.self_attention, value=8",
    ]
    prefetch = {}
    for name, value in result["offload"].items():
        layer, below = re.fullmatch(
            r"model\.(decoder\.layers\.\d|mtp\.layers\.\d\.transformer_layer)\.(.*)", name
        ).groups()
        cell = "core_attention" if below.startswith("self_attention.core_attention.") else below.split(".")[0]
        prefetch.setdefault(layer, {}).setdefault(cell, set()).add(value)
    assert prefetch == {
        "decoder.layers.0": {"self_attention": {3}, "core_attention": {3}},
        "decoder.layers.1": {"core_attention": {8}},
        "mtp.layers.0.transformer_layer": {"self_attention": {8}, "core_attention": {8}},
    }


def test_every_shipped_configuration_is_tested_here():
    assert {path.stem for path in CASES.glob("*.yaml")} == {*NAMES, "pretrain_llama2_7b"}
    assert {path.stem for path in CPU_CASES.glob("*.yaml")} == set(NAMES)
