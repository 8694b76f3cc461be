"""Layers handed from stage to stage, and the bubble of a pipeline in parts."""

import pytest

from mindswap.config.pipeline import Layout, Pipeline
from mindswap.planner.balance import busy_of, moved_layers, split_bubble
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from tests.planner.models import small_model


def test_the_busiest_stage_hands_a_layer_to_the_idlest_first():
    found = list(moved_layers(Layout(((2, 3, 2),), 7), [5, 9, 4]))
    assert [layout.sizes for layout in found] == [((2, 2, 3),), ((3, 2, 2),)]


def test_a_stage_with_one_layer_keeps_it():
    assert list(moved_layers(Layout(((1, 3),), 4), [9, 5])) == []


def test_of_chunks_each_may_hand_over_one_within_itself():
    found = list(moved_layers(Layout(((2, 2), (2, 2)), 8), [9, 5]))
    assert [layout.sizes for layout in found] == [((1, 3), (2, 2)), ((2, 2), (1, 3))]
    # The second chunk of zero_bubble_v runs back: stage 0 has its last position.
    found = list(moved_layers(Layout(((2, 2), (2, 2)), 8, True), [9, 5]))
    assert [layout.sizes for layout in found] == [((1, 3), (2, 2)), ((2, 2), (3, 1))]


@pytest.mark.parametrize(
    ("pipeline", "num_layers"),
    [
        (Pipeline(3, offset=[1, 0, 0]), 7),
        (Pipeline(2, num_chunks=2), 8),
        (Pipeline(2, num_chunks=2, scheduler="zero_bubble_v"), 8),
    ],
)
def test_the_offset_of_what_was_moved_gives_it_again(pipeline, num_layers):
    stages = [[9, 1], [1, 9]] if pipeline.num_stages == 2 else [[9, 1, 1], [1, 1, 9]]
    for layout in (one for busy in stages for one in moved_layers(pipeline.layout(num_layers), busy)):
        moved = Pipeline(pipeline.num_stages, pipeline.num_chunks, pipeline.offset_of(layout), pipeline.scheduler)
        assert moved.layout(num_layers) == layout


def test_the_parts_of_a_bubble_are_the_whole():
    model = small_model(num_layers=4, num_stages=2, num_micro_batches=4)
    plain = model.simulate(Policy(True)).timeline
    bubble = split_bubble(plain, model.layout)
    busy_ns = busy_of(plain)
    total = bubble.ideal + bubble.imbalance + bubble.recompute + bubble.copies
    assert total == pytest.approx(2 * plain.step_time_ns / sum(busy_ns) - 1)
    assert (bubble.ideal, bubble.recompute, bubble.copies) == (1 / 4, 0, 0)
    assert bubble.imbalance > 0  # loss and embedding


def test_recompute_has_a_part_of_the_bubble():
    model = small_model(num_layers=4, num_stages=2, num_micro_batches=4)
    again = Policy(True, select_recompute=(OpRecompute(r"mlp\.relu", ALL_LAYERS),))
    plain, timeline = (model.simulate(policy).timeline for policy in (Policy(True), again))
    bubble = split_bubble(timeline, model.layout)
    work_ns = sum(busy_of(plain))
    assert bubble.recompute == pytest.approx((sum(busy_of(timeline)) - work_ns) / work_ns * 5 / 4)
    assert bubble.imbalance == pytest.approx(split_bubble(plain, model.layout).imbalance, abs=0.05)
