import pytest

from mindswap.config.pipeline_layout import LayoutError, Pipeline, is_stage_counts, read_pipeline
from tests.builders import document


def test_a_rest_goes_where_the_offset_says():
    """7 layers on 2 stages: 3 each and a rest of 1, which stage 1 has: 0 to 2, 3 to 6."""
    pipeline = Pipeline(num_stages=2, offset=[0, 1])
    assert [pipeline.stage_layers(stage, 7) for stage in (0, 1)] == [(0, 1, 2), (3, 4, 5, 6)]


def test_chunks_go_round_the_stages():
    """8 layers, 2 stages x 2 chunks of 2: stage 0 has 0 and 1 of the first round, 4 and 5 of the second."""
    assert Pipeline(2, num_chunks=2).stage_layers(0, 8) == (0, 1, 4, 5)


def test_the_second_chunk_of_zero_bubble_v_runs_back():
    """The second round begins at the last stage: 4 and 5 are on stage 1, 6 and 7 on stage 0."""
    pipeline = Pipeline(2, num_chunks=2, scheduler="zero_bubble_v")
    assert [pipeline.stage_layers(stage, 8) for stage in (0, 1)] == [(0, 1, 6, 7), (2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("pipeline", "num_layers", "reason"),
    [
        (Pipeline(2), 7, "leave a remainder of 1"),
        (Pipeline(2, offset=[0, 1, 0]), 7, "3 numbers, not one per stage"),
        (Pipeline(2, offset="1"), 7, "is not a number"),
        (Pipeline(4, offset=[0, -1, 1, 0]), 4, r"leave \[1, 0, 2, 1\] layers"),
        (Pipeline(2, scheduler="zero_bubble_v"), 8, "takes pp_interleave_num: 2"),
    ],
)
def test_what_mindformers_refuses(pipeline, num_layers, reason):
    with pytest.raises(LayoutError, match=reason):
        pipeline.layout(num_layers)
    assert pipeline.stage_layers(0, num_layers) is None


def test_counts_stand_for_the_first_layers_of_each_cell():
    """Cells 0-1, 2-3, 4-5, 6-7; one of the first, none, two, and more than there are."""
    layout = Pipeline(2, num_chunks=2).layout(8)
    assert layout.first_layers([[1, 0], [2, 9]]) == (0, 4, 5, 6, 7)


def test_chunks_count_only_where_interleaving_is_on():
    text = "{{parallel_config: {{pipeline_stage: 2}}, model: {{model_config: {{pp_interleave_num: 3}}}}, {more}}}"
    is_on = "parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: gpipe}}"
    assert read_pipeline(document(text.format(more="x: 1"))) == Pipeline(2)
    assert read_pipeline(document(text.format(more=is_on))) == Pipeline(2, 3, scheduler="gpipe")


@pytest.mark.parametrize(
    ("written", "is_counts"),
    [
        ("[[1, 2], [3, 4]]", True),
        ("[1, True]", True),
        ("[1, 1]", True),  # a layer twice, so counts
        ("[0, 8]", True),  # no layer 8 of 8
        ("[0, 3]", False),  # layers 0 and 3
        ("[0, 3, 3]", False),  # not one for each of 2 stages
        ("[]", False),
    ],
)
def test_what_can_only_be_counts(written, is_counts):
    node = document(f"x: {written}").get("x")
    assert is_stage_counts(node, Pipeline(2), 8) == is_counts
