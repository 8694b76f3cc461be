"""Memory of a layer of experts, on one rank and on one of four, by hand."""

import pytest
import yaml

from tests.adapters.edits import edited
from tests.adapters.graphs import QWEN3_MOE
from tests.adapters.reports import inspect_jobs

pytestmark = pytest.mark.mindspore

# A rank has half of the tokens of each of two samples.
PARALLEL = {"data_parallel": 2, "model_parallel": 2, "expert_parallel": 4, "use_seq_parallel": True}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    one_layer = edited(yaml.safe_load(QWEN3_MOE.read_text()), {"model.model_config.num_hidden_layers": 1})
    whole, rank = folder / "whole.yaml", folder / "rank.yaml"
    whole.write_text(yaml.safe_dump(one_layer))
    rank.write_text(yaml.safe_dump(edited(one_layer, {"parallel_config": PARALLEL})))
    return inspect_jobs([{"config": str(whole), "rank": None}, {"config": str(rank), "rank": 0}])


def expert_bytes(report):
    layer = report["layers"][0]
    return sum(size for cell, size in layer["kept_in_cells"].items() if cell.startswith("mlp"))


def by_hand(tokens: int, experts: int, own_experts: int) -> int:
    """float32, width 64, 2 of the experts for each token, each 32 wide with a gate."""
    rows = 2 * tokens
    return (
        tokens * 64 * 4  # what the router reads
        + tokens * experts * 4  # its probabilities
        + rows * 8  # which experts, int64
        + 4 * rows * 8  # the order of the rows: out, by expert, and both ways back, int64
        + rows * 4 + experts * 4  # weights of the sum; share of each expert
        + rows * 64 * 4  # input of the experts
        + own_experts * 8  # rows of each, int64
        + rows * 2 * 32 * 4  # gate and value; their product runs again (`Swiglu().recompute`)
        + rows * 64 * 4  # what came back, before the sum
    )  # fmt: skip


def test_one_rank_that_has_all_experts(reports):
    assert by_hand(64, 4, 4) == 121_392
    assert expert_bytes(reports[0]) == 121_392


def test_one_rank_of_four_with_one_expert_each(reports):
    assert by_hand(32, 4, 1) == 60_696
    assert expert_bytes(reports[1]) == 60_696


def test_that_tokens_are_spread_evenly_is_said(reports):
    assert any("as many tokens as it sends out" in note for note in reports[1]["notes"])
