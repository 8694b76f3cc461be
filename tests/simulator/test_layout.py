"""Which sections are on which stage; section 0 is the embedding, layers are numbered from 1, the head is the last."""

import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.errors import SimulationError
from mindswap.simulator.layout import build_stage_layout, require_schedule
from mindswap.simulator.schedules.rounds import LESS_MEMORY


def chunks(num_layers, **settings):
    return build_stage_layout(Pipeline(**settings), num_layers, 4).chunks


def test_one_stage_has_all():
    assert chunks(2) == (((0, 1, 2, 3),),)


def test_layers_are_spread_evenly():
    assert chunks(4, num_stages=2) == (((0, 1, 2),), ((3, 4, 5),))


def test_offset_shifts_layers():
    # 5 layers on 2 stages: 2 each and one more; the offset [1, 0] gives it to the first.
    assert chunks(5, num_stages=2, offset=[1, 0]) == (((0, 1, 2, 3),), ((4, 5, 6),))
    # The last stage has the head only.
    assert chunks(2, num_stages=2, offset=[1, -1]) == (((0, 1, 2),), ((3,),))


def test_interleaved_chunks_go_round_the_stages():
    assert chunks(4, num_stages=2, num_chunks=2) == (((0, 1), (3,)), ((2,), (4, 5)))


def test_the_second_chunk_of_a_v_runs_backwards():
    assert chunks(4, num_stages=2, num_chunks=2, scheduler="zero_bubble_v") == (((0, 1), (4, 5)), ((2,), (3,)))


def test_where_embedding_and_head_are_on_one_stage():
    """The turn of a V; not where the second stage has every layer and the head, and the first the embedding alone."""

    def are_together(num_layers, **settings):
        return build_stage_layout(Pipeline(**settings), num_layers, 4).are_ends_together

    assert are_together(2) and are_together(4, num_stages=2, num_chunks=2, scheduler="zero_bubble_v")
    assert not are_together(4, num_stages=2)
    assert chunks(2, num_stages=2, offset=[-1, 1]) == (((0,),), ((1, 2, 3),))
    assert not are_together(2, num_stages=2, offset=[-1, 1])


def test_an_offset_for_each_chunk():
    # 6 layers on 2 stages x 2 chunks: 1 each, and two more as the offset says.
    assert chunks(6, num_stages=2, num_chunks=2, offset=[[1, 0], [0, 1]]) == (((0, 1, 2), (4,)), ((3,), (5, 6, 7)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_stages": 3}, "leave a remainder of 1"),
        ({"num_stages": 3, "num_chunks": 2, "scheduler": "zero_bubble_v"}, "it takes 6 micro-batches or more"),
        ({"num_stages": 2, "scheduler": "zero_bubble_h"}, "'zero_bubble_h' is not known"),
    ],
)
def test_what_cannot_be_laid_out_is_an_error(settings, words):
    with pytest.raises(SimulationError, match=words):
        chunks(4, **settings)


def test_a_configuration_cannot_ask_for_what_the_environment_sets():
    pipeline = Pipeline(2, 2, 0, LESS_MEMORY)
    with pytest.raises(SimulationError, match="is not known"):
        require_schedule(pipeline, 4)
    assert build_stage_layout(pipeline, 4, 4).scheduler == LESS_MEMORY


def test_pieces_of_sequences_take_a_schedule_that_orders_them():
    for name in ("1f1b", LESS_MEMORY, "gpipe", "zero_bubble_v"):
        pipeline = Pipeline(num_stages=2, num_chunks=2, scheduler=name)
        with pytest.raises(SimulationError, match=f"order {name} runs pieces of sequences"):
            build_stage_layout(pipeline, 4, 4, num_sequences=2)
    # With one chunk MindSpore runs seqpipe in place of 1f1b.
    assert build_stage_layout(Pipeline(num_stages=2), 4, 4, num_sequences=2).num_micro_steps == 8
    seqpipe = Pipeline(num_stages=2, num_chunks=2, scheduler="seqpipe")
    assert build_stage_layout(seqpipe, 4, 4, num_sequences=2).num_micro_steps == 8


def test_a_step_that_is_too_long_is_refused():
    """32 layers 7812 times are 249,984 passes, and 7813 times are more than a quarter of a million."""
    assert build_stage_layout(Pipeline(), 32, 7812).num_micro_steps == 7812
    with pytest.raises(SimulationError, match="allowed: up to 250000 passes, 7812 micro-batches here"):
        build_stage_layout(Pipeline(), 32, 7813)
    with pytest.raises(SimulationError, match="too long to simulate"):
        build_stage_layout(Pipeline(), 2, 10**30)


@pytest.mark.parametrize(
    ("pipeline", "num_sequences", "expected"),
    [
        (Pipeline(4), 1, [4, 3, 2, 1]),
        (Pipeline(1), 1, [1]),
        (Pipeline(2, num_chunks=2), 1, [None, None]),
        (Pipeline(2, scheduler="seqpipe"), 2, [None, None]),
    ],
)
def test_forwards_that_go_ahead_where_forward_and_backward_take_turns(pipeline, num_sequences, expected):
    layout = build_stage_layout(pipeline, 8, 6, num_sequences)
    assert [layout.num_ahead(stage) for stage in range(layout.num_stages)] == expected
