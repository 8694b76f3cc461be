"""Layers handed from stage to stage, and the bubble of a pipeline in parts."""

import pytest

from mindswap.config.pipeline_layout import Layout, Pipeline
from mindswap.planner.balance import _stage_times, balance_stages, busy_of, moved_layers, split_bubble
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from mindswap.simulator.engine import run_program
from mindswap.simulator.schedules import order_passes
from mindswap.simulator.schedules.rounds import PassWork, Shape
from tests.planner.models import small_model
from tests.simulator.builders import program_of


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


def test_work_that_waits_for_communication_counts_with_it():
    # Stage 1: 10 ns, 20 ns for a collective, 5 ns, 4 ns again, 6 ns backward; stage 0 works 7 ns.
    timeline = run_program(program_of("F7", "F10 C20@1 F5@2 R4 B6"))
    assert _stage_times(timeline) == [(7, 0, 0), (41, 4, 0)]


def test_recompute_has_a_part_of_the_bubble():
    model = small_model(num_layers=4, num_stages=2, num_micro_batches=4)
    again = Policy(True, select_recompute=(OpRecompute(r"mlp\.relu", ALL_LAYERS),))
    plain, timeline = (model.simulate(policy).timeline for policy in (Policy(True), again))
    bubble = split_bubble(timeline, model.layout)
    work_ns = sum(busy_of(plain))
    assert bubble.recompute == pytest.approx((sum(busy_of(timeline)) - work_ns) / work_ns * 5 / 4)
    assert bubble.imbalance == pytest.approx(split_bubble(plain, model.layout).imbalance, abs=0.05)


class PublishedCosts:
    """The costs of a test of pipeline_balance, with its answer (mindspore-ai/toolkits, tests/st/test_pipeline_balance:
    test.json, test_sapp_solver.py): 96 layers on 16 stages, 16 micro-batches, in 53000 MB.
    """

    STAGES = MICRO_BATCHES = 16
    LAYER, HEAD, TAIL = 180, 30, 90  # forward; backward takes twice as long, what runs again as long as forward
    OFFSET = (-1, 0, -1, -1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0)
    AGAIN = (3, 3, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
    STEP = 111510

    def work(self, sizes, again):
        """Of a micro-batch: forward of each stage, and its backward with what runs again."""
        forward = [number * self.LAYER for number in sizes]
        forward[0] += self.HEAD
        forward[-1] += self.TAIL
        return forward, [2 * one + number * self.LAYER for one, number in zip(forward, again, strict=True)]

    def least_again(self, sizes):
        """As few layers run again as fit: a layer takes 1583 MB, keeps 826 of a micro-batch, or 32 if it runs again."""
        found = []
        for stage, number in enumerate(sizes):
            own = 1583 * number + 11000 * (stage == 0) + 2473 * (stage == self.STAGES - 1)
            kept = [826 * number - 794 * again for again in range(number + 1)]
            found.append(next(n for n, each in enumerate(kept) if own + (self.STAGES - stage) * each <= 53000))
        return found

    def step(self, sizes, again):
        """Each pass begins when its stage is free and its input is there."""
        work, shape = self.work(sizes, again), Shape(self.STAGES, num_micro_batches=self.MICRO_BATCHES)
        orders = [list(order_passes("1f1b", stage, shape)) for stage in range(self.STAGES)]
        ends, free = {}, [0] * self.STAGES
        while any(orders):
            for stage, order in enumerate(orders):
                while order:
                    is_back = order[0].work is PassWork.BACKWARD
                    before = (is_back, order[0].micro_batch, stage + (1 if is_back else -1))
                    before = (False, order[0].micro_batch, stage) if before[2] == self.STAGES else before
                    if before[2] >= 0 and before not in ends:
                        break
                    free[stage] = max(free[stage], ends.get(before, 0)) + work[is_back][stage]
                    ends[is_back, order.pop(0).micro_batch, stage] = free[stage]
        return max(free)


def test_on_the_costs_of_pipeline_balance_its_answer_is_not_faster():
    costs = PublishedCosts()
    theirs = [6 + extra for extra in costs.OFFSET]
    assert costs.step(theirs, costs.AGAIN) == costs.STEP
    assert all(least <= again for least, again in zip(costs.least_again(theirs), costs.AGAIN, strict=True))

    def evaluation(layout):
        sizes = layout.sizes[0]
        return layout, costs.step(sizes, costs.least_again(sizes))

    def busy(one):
        sizes = one[0].sizes[0]
        return [sum(parts) for parts in zip(*costs.work(sizes, costs.least_again(sizes)), strict=True)]

    def faster(best, layouts):
        return next((one for one in map(evaluation, layouts) if one[1] < best[1]), None)

    ours = balance_stages(evaluation(Pipeline(16).layout(96)), lambda one: one[0], busy, faster)
    assert ours[1] == 108270 < costs.STEP


def test_no_layout_is_looked_at_twice():
    """Of two stages with 2 and 4 layers the second hands over one, and the first would hand it back."""
    looked: list[tuple[int, ...]] = []

    def faster(best, layouts):
        looked.extend(layout.sizes[0] for layout in layouts)
        return next((layout for layout in layouts if layout.sizes[0] == (3, 3)), None)

    def busy(layout):
        return (5, 9) if layout.sizes[0] == (2, 4) else (9, 5)

    best = balance_stages(Layout(((2, 4),), 6), lambda layout: layout, busy, faster)
    assert best.sizes[0] == (3, 3) and looked == [(3, 3)]
