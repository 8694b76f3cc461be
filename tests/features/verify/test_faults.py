"""`mindswap verify` finds what a policy asks for and does not get, and says why."""

import json
import re
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).resolve().parents[3]
CPU_CASE = ROOT / "configs" / "llama2_7b" / "cpu" / "case1_default_swap.yaml"

pytestmark = pytest.mark.mindspore

# One fault to a layer. 0: none. 1: a swapped operator inside a recomputed cell, and a swapped output that a
# recomputed cell reads. 2: a recompute of an operator that backward does not need, and a copy of memory that
# stays for another operator. 3: an operator whose output backward keeps under the name of the next one.
FAULTS = r"""
swap_config:
  swap: True
  op_swap:
    - {op_name: 'ffn_norm', backward_prefetch: 3, layers: [0, 1]}
    - {op_name: 'feed_forward\.w1', backward_prefetch: 4, layers: [1]}
    - {op_name: 'attention\.wq', backward_prefetch: 5, layers: [2]}
    - {op_name: 'feed_forward\.mul', backward_prefetch: 6, layers: [3]}
recompute_config:
  select_recompute: {'feed_forward': [1], 'attention\.wo\.matmul': [2]}
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    config = tmp_path_factory.mktemp("faults") / "faults.yaml"
    settings = re.sub(r"(?ms)^(recompute|swap)_config:\n( .*\n)+", "", CPU_CASE.read_text())
    config.write_text(settings + FAULTS)
    command = ["-m", "mindswap", "verify", "--no-cache", "--json", str(config)]
    return forked.run(command, cwd=ROOT)


def layer(result, index):
    return json.loads(result.stdout)["layers"][index]


def test_the_exit_code_says_that_something_is_not_as_asked(result):
    assert result.returncode == 1, result.stderr
    assert [layer(result, index)["ok"] for index in range(4)] == [True, False, False, False]


def test_recompute_wins_over_swap(result):
    assert layer(result, 1)["without_effect"] == [
        {"entry": r"feed_forward\.w1", "reason": "recompute wins: the operators are recomputed", "keeps_instead": []}
    ]


def test_a_swap_whose_output_is_recomputed_is_told_apart_from_the_specification(result):
    # By the specification this swap has no effect; MindSpore 2.9.0 inserts the copies, and they are in the graph.
    assert layer(result, 1)["beyond_specification"] == ["ffn_norm Mul"]
    assert layer(result, 0)["beyond_specification"] == []


def test_a_recompute_that_nothing_needs_is_found(result):
    assert [idle["entry"] for idle in layer(result, 2)["without_effect"]] == ["attention.wo.matmul"]


def test_a_copy_of_memory_that_stays_is_found(result):
    # The normed input of wq, 2 x 64 x 64 in float32, is also the input of wk and wv.
    assert layer(result, 2)["wasted_bytes"] == 2 * 64 * 64 * 4
    assert layer(result, 2)["kept_bytes"] == layer(result, 2)["kept_before_bytes"]


def test_an_operator_that_backward_does_not_keep_is_found(result):
    assert layer(result, 3)["without_effect"] == [
        {
            "entry": r"feed_forward\.mul",
            "reason": "backward needs none of these outputs",
            "keeps_instead": ["feed_forward.w2 Reshape"],
        }
    ]
