import pytest

from tests.builders import found

ON = "swap_config: {swap: True}\n"


def config(parallel="pipeline_stage: 2, seq_split_num: 4", rest="", swap=ON):
    return f"{swap}parallel_config: {{{parallel}}}\n{rest}"


def test_pieces_of_a_pipeline_pass():
    assert found(config(rest="model: {model_config: {seq_length: 4096}}")) == []
    assert found(config("pipeline_stage: 1, seq_split_num: 1", "use_legacy: False")) == []


@pytest.mark.parametrize(
    ("parallel", "rest", "place"),
    [
        ("pipeline_stage: 1, seq_split_num: 4", "", (2, 53)),
        ("pipeline_stage: 2, seq_split_num: 4", "use_legacy: False", (2, 53)),
        ("pipeline_stage: 2, seq_split_num: 3", "model: {model_config: {seq_length: 4096}}", (2, 53)),
        ("pipeline_stage: 2, seq_split_num: 4", "model: {model_config: {use_flash_attention: False}}", (3, 45)),
        ("pipeline_stage: 2, seq_split_num: 4", "model: {model_config: {use_ring_attention: True}}", (3, 44)),
        ("pipeline_stage: 2, seq_split_num: 4", "runner_wrapper: {calculate_per_token_loss: True}", (3, 44)),
    ],
)
def test_what_mindformers_refuses(parallel, rest, place):
    assert found(config(parallel, rest)) == [(*place, "sequence-pieces")]


def test_recompute_of_whole_layers():
    """MindFormers refuses it; with swap on mindswap would let it pass, and gradients would be wrong."""
    text = config(rest="recompute_config: {recompute: [0, 1]}\nmodel: {model_config: {num_layers: 4}}")
    assert found(text) == [(1, 21, "recompute-wins"), (3, 31, "sequence-pieces")]
