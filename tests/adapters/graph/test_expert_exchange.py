"""The dispatchers of tokens that are not `alltoall`: what a rank keeps and exchanges, in bytes by hand.

A micro-batch of 4 samples of 64 tokens over 4 x 2 ranks: a rank has 32 tokens, width 64, float32; each goes to 2 of 4
experts, 32 wide with a gate, of which a rank has one. Two ranks are a node.
"""

import pytest
import yaml

from tests.adapters.edits import edited
from tests.adapters.graphs import QWEN3_MOE
from tests.adapters.test_collectives import run

pytestmark = pytest.mark.mindspore

PARALLEL = {"data_parallel": 4, "model_parallel": 2, "expert_parallel": 4, "use_seq_parallel": True}
TYPE, NODE = "model.model_config.moe_token_dispatcher_type", "model.model_config.npu_nums_per_device"
INSIDE, ROWS = "alltoall_deredundency", "alltoall_zero_redundancy"
TOKENS, PAIRS, WIDTH = 32, 64, 64 * 4


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    source, folder, configs = yaml.safe_load(QWEN3_MOE.read_text()), tmp_path_factory.mktemp("dispatchers"), {}
    for name in (INSIDE, ROWS):
        changes = {"parallel_config": PARALLEL, TYPE: name, NODE: 2, "model.model_config.num_hidden_layers": 1}
        configs[name] = str(folder / f"{name}.yaml")
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(edited(source, changes)))
    return run(configs)


def exchanged(step, which):
    """[kind, bytes, ranks, from one to the next] of the experts."""
    return sorted(row[2:6] for row in step["rows"] if row[:2] == [0, which] and row[6] == "mlp.experts")


def kept(step):
    return sum(size for layer, cell, size in step["kept"] if layer == 0 and cell.startswith("mlp"))


def test_across_nodes_all_tokens_are_gathered_and_within_one_each_goes_to_its_experts(steps):
    """Of the 2 x 64 pairs that both nodes have, 64 are for the experts of this node, spread over its 2 ranks."""
    whole, pairs = 2 * TOKENS * WIDTH, PAIRS * WIDTH
    assert exchanged(steps[INSIDE], "forward") == sorted([
        ["AllGather", 2 * TOKENS * 2 * 4, 2, 2],  # which experts, int32
        ["AllToAll", 2 * 4, 2, 1],  # tokens for each expert of the node
        ["AllGather", 2 * TOKENS * 2 * 2, 2, 2],  # their weights, bfloat16
        ["AllGather", whole, 2, 2],
        ["AllToAll", pairs, 2, 1],
        ["AllToAll", PAIRS * 4, 2, 1],  # the expert of each
        ["AllToAll", pairs, 2, 1],  # back
        ["ReduceScatter", whole, 2, 2],
    ])  # fmt: skip
    assert exchanged(steps[INSIDE], "backward") == sorted([
        ["AllGather", whole, 2, 2],
        ["AllToAll", pairs, 2, 1],
        ["ReduceScatter", 2 * TOKENS * 2 * 2, 2, 2],
        ["AllToAll", pairs, 2, 1],
        ["ReduceScatter", whole, 2, 2],
    ])  # fmt: skip


def test_a_token_goes_once_to_each_rank_that_has_an_expert_of_it(steps):
    """2 of 4 experts, each on a rank of its own: 2 x 32 tokens."""
    rows, weights = PAIRS * WIDTH, 4 * TOKENS * 2
    assert exchanged(steps[ROWS], "forward") == sorted([
        ["AllToAll", weights, 4, 1],  # weight of each token for each expert, bfloat16
        ["AllGather", 4 * 4 * 8, 4, 1],  # what all send, int64
        ["AllGather", 4 * 4 * 8, 4, 1],
        ["AllToAll", rows, 4, 1],
        ["AllToAll", rows, 4, 1],  # back
    ])  # fmt: skip
    assert exchanged(steps[ROWS], "backward") == sorted([["AllToAll", weights, 4, 1]] + [["AllToAll", rows, 4, 1]] * 2)


def test_bytes_that_backward_keeps(steps):
    router = TOKENS * WIDTH + TOKENS * 4 * 4 + PAIRS * 8 + 4 * 4  # its input, probabilities, experts, shares
    experts = 2 * PAIRS * WIDTH  # their input; gate and value, 2 x 32 wide
    inside = (
        2 * PAIRS * 4  # the order of the pairs of both nodes, int32
        + PAIRS * 8 + PAIRS * 4  # which of these are of this node, and whose tokens they are
        + 2 * PAIRS * 4  # the order by expert, and back
        + 8 + 2 * 2 * 8  # rows of the expert; rows to and from each rank of the node, int64
        + PAIRS * WIDTH + PAIRS * 2  # what came back, and its weights in bfloat16
    )  # fmt: skip
    assert kept(steps[INSIDE]) == router + experts + inside == 60_344
    rows = (
        PAIRS * 4  # which experts, int32
        + 4 * TOKENS * 2 + 4 * TOKENS  # weights of all tokens for this expert, bfloat16, and which of them it gets
        + PAIRS * 8 + 2 * PAIRS * (8 + 4)  # places of the rows; two orders of them, in int64 and in int32
        + 8  # rows of the expert
        + PAIRS * WIDTH + PAIRS * 2  # what the experts gave, and its weights
    )  # fmt: skip
    assert kept(steps[ROWS]) == router + experts + rows == 61_208


def test_what_is_assumed_is_said(steps):
    assert any("a token goes to 2.00 ranks" in note for note in steps[ROWS]["notes"])
    assert all(any("as many tokens as it sends out" in n for n in step["notes"]) for step in steps.values())
