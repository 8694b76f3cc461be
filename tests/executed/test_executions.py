"""The graph that MindSpore compiles, run operator by operator.

The four cases, a Llama whose recomputed layers have swapped inputs or no output, and Qwen3 with recompute mixed in.
"""

import json

import pytest
import yaml

from tests import forked
from tests.adapters.edits import edited
from tests.adapters.graphs import CPU_CASES, QWEN3, ROOT, op_swap

pytestmark = pytest.mark.mindspore

KIB = 1024
# Copies: attention 6, feed_forward 5, a whole layer 17 (tests/adapters/test_cases.py). Bytes by hand, 2 samples of 64
# tokens, hidden 64, ffn 192, 4 heads of 16: hidden states
# 32 KiB (2 * 64 * 64 * 4 B), of ffn 96 KiB, probabilities 128 KiB (2 * 4 * 64 * 64 * 4 B), 1 / root mean square 512 B.
ATTENTION = 5 * 32 * KIB + 128 * KIB
FEED_FORWARD = 32 * KIB + 4 * 96 * KIB
REST = 4 * 32 * KIB + 2 * 512
COPIED = {
    "case1_default_swap": (4, 4 * 128 * KIB),
    "case2_layer_swap": (2 * 17, 2 * (ATTENTION + FEED_FORWARD + REST)),
    "case3_op_swap": (4 * 6 + 2 * 5, 4 * ATTENTION + 2 * FEED_FORWARD),
    "case4_swap_and_recompute": (4 * 6 + 2 * 5, 4 * ATTENTION + 2 * FEED_FORWARD),
    # Layers 0 and 1 are one group of recomputed layers; layers 2 and 3 swap both sums, the inputs of their cells.
    "recomputed layers": (2 * 2, 2 * 2 * 32 * KIB),
}
CASES = tuple(COPIED)[:4]


# Swap of the inputs of recomputed layers: every cell is recomputed, and `add` is swapped.
LLAMA_CELLS = ("attention_norm", "attention", "ffn_norm", "feed_forward")
QWEN3_CELLS = ("input_layernorm", "self_attention", "pre_mlp_layernorm", "mlp")


def execute(*configs):
    command = ["-m", "tests.executed", *map(str, configs)]
    result = forked.run(command, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    mixed = op_swap((r"self_attention\.core_attention", 7, [1]), ("mlp", 4, [2]), ("add", 3, [3]))
    select = {**{cell: [3] for cell in QWEN3_CELLS}, "mlp": [0, 3]}
    edits = {"swap_config": mixed, "recompute_config": {"recompute": False, "select_recompute": select}}
    config = folder / "mixed.yaml"
    config.write_text(yaml.safe_dump(edited(yaml.safe_load(QWEN3.read_text()), edits)))
    return execute(QWEN3, config)


def test_qwen3_runs_with_stand_ins_that_are_named(qwen):
    for result in qwen:
        assert set(result["stand_ins"]) == {
            "DropoutExt", "DropoutGradExt", "EmbeddingDenseBackward", "FlashAttentionScore", "FlashAttentionScoreGrad",
            "Outer", "RmsNorm", "RmsNormGrad",
        }  # fmt: skip


def test_qwen3_gives_equal_gradients_with_swap_and_with_swap_and_recompute(qwen):
    swapped, mixed = qwen
    for result in qwen:
        assert result["ok"] and result["is_loss_equal"] and result["is_finite"], result
        assert result["different"] == result["misreads"] == []
    assert swapped["num_copies"] == 16
    assert mixed["num_backward"] > swapped["num_backward"]  # layer 0 computes its mlp again
    assert mixed["num_forward"] == swapped["num_forward"]


def test_qwen3_copies_once_for_nothing(qwen):
    """`mlp` of layer 2 names linear_fc1, too: 64 tokens of 2 * 128 numbers of 4 B leave, and a split reads them."""
    result = qwen[1]
    # Layer 1: q, attention output 8 KiB (64 * 64 * 2 B), k, v 4 KiB, two statistics of 8 KiB (4 * 64 * 8 * 4 B)
    # and an empty output of 2 B; layer 2: outputs of SiLU and Mul, 32 KiB each, and 64 KiB for nothing; layer 3: the
    # first of its two sums, 16 KiB (64 * 64 * 4 B). Its last one is read through a `Depend`, which makes no copy.
    assert (result["num_copies"], result["num_one_way"]) == (7 + 2 + 1, 1)
    assert result["offloaded_bytes"] == (40 * KIB + 2) + 2 * 32 * KIB + 64 * KIB + 16 * KIB


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    edits = {
        "swap_config": op_swap(("add", 3, [2, 3])),
        "recompute_config": {"recompute": [0, 1], "select_recompute": {cell: [2, 3] for cell in LLAMA_CELLS}},
        "mindswap": {"cpu_stand_ins": True, "output_recompute": [0]},
    }
    recomputed = tmp_path_factory.mktemp("llama") / "recomputed.yaml"
    recomputed.write_text(yaml.safe_dump(edited(yaml.safe_load((CPU_CASES / f"{CASES[0]}.yaml").read_text()), edits)))
    configs = (*(CPU_CASES / f"{name}.yaml" for name in CASES), recomputed)
    return dict(zip(COPIED, execute(*configs), strict=True))


@pytest.mark.parametrize("name", COPIED)
def test_gradients_of_a_case_are_bit_equal(cases, name):
    executed = cases[name]
    assert executed["ok"] and executed["num_gradients"] == 39  # embedding, 4 layers of 9 weights, last norm, head
    assert executed["different"] == executed["misreads"] == []
    assert (executed["num_copies"], executed["offloaded_bytes"]) == COPIED[name]
    assert executed["peak_bytes"] < executed["plain_peak_bytes"]


@pytest.mark.parametrize("name", COPIED)
def test_every_operator_is_mindspores_own_and_mindspore_gets_the_same(cases, name):
    executed = cases[name]
    assert executed["stand_ins"] == executed["in_float32"] == {}
    assert executed["witness"] == {"is_loss_equal": True, "num_equal": 39, "relative_difference": 0.0, "failure": ""}
