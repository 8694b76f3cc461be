"""The graph that MindSpore compiles, run operator by operator: Qwen3, swap and recompute mixed.

The four cases of Llama are run so by the demo, and looked at in `tests/test_demo.py`.
"""

import json

import pytest
import yaml

from tests import forked
from tests.adapters.edits import edited
from tests.adapters.graphs import QWEN3, ROOT, op_swap

pytestmark = pytest.mark.mindspore

KIB = 1024


def execute(*configs):
    command = ["-m", "tests.adapters.executions", *map(str, configs)]
    result = forked.run(command, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    mixed = op_swap((r"self_attention\.core_attention", 7, [1, 3]), ("mlp", 4, [2]))
    edits = {"swap_config": mixed, "recompute_config": {"recompute": False, "select_recompute": {"mlp": [0]}}}
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
        assert result["gradients_equal"] and result["different"] == result["misreads"] == [], result["text"]
    assert swapped["num_copies"] == 16
    assert mixed["num_backward"] > swapped["num_backward"]  # layer 0 computes its mlp again
    assert mixed["num_forward"] == swapped["num_forward"]


def test_qwen3_copies_once_for_nothing(qwen):
    """`mlp` of layer 2 names linear_fc1, too: 64 tokens of 2 * 128 numbers of 4 B leave, and a split reads them."""
    result = qwen[1]
    # Layers 1 and 3: q, attention output 8 KiB (64 * 64 * 2 B), k, v 4 KiB, two statistics of 8 KiB (4 * 64 * 8 * 4 B)
    # and an empty output of 2 B; layer 2: outputs of SiLU and Mul, 32 KiB each, and 64 KiB for nothing.
    assert (result["num_copies"], result["num_one_way"]) == (2 * 7 + 2, 1)
    assert result["offloaded_bytes"] == 2 * (40 * KIB + 2) + 2 * 32 * KIB + 64 * KIB
