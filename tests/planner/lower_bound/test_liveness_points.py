"""Points of peak memory: what is present at each, and what no policy moves."""

import random
from dataclasses import replace

import numpy as np
import pytest

from mindswap.graph.analysis.saved_tensors import Names
from mindswap.graph.model import TensorType
from mindswap.planner.lower_bound import BoundInputs, collect_bound_inputs, least_budget_bytes
from mindswap.planner.lower_bound.inputs import StageLayers
from mindswap.planner.lower_bound.liveness_points import (
    NUM_SHARES,
    LivenessPoint,
    _fixed_bytes,
    _unmoved,
    alive_bytes,
    compute_liveness,
    highest_points,
)
from mindswap.planner.problem import Allow
from mindswap.policy.model import ALL_LAYERS, Policy
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.layer_block import Block, BlockTensor, Consumers
from mindswap.simulator.program import MemoryKind, OpKind
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import node
from tests.planner.lower_bound.builders import (
    FLOW,
    PLENTY,
    bound,
    bound_inputs,
)
from tests.planner.models import MB, small_model
from tests.planner.test_checked_plans import recorded_step
from tests.simulator.builders import Span, program_of
from tests.simulator.cost.builders import GENERIC


def test_what_forward_holds_in_any_case_must_fit():
    floor = replace(bound_inputs().stages[0], liveness_points=(LivenessPoint(fixed_bytes=120, waiting={}),))
    known = BoundInputs((FLOW,), (floor,), bound_inputs().transfers)
    assert least_budget_bytes(known, PLENTY, Allow()) == 120
    assert bound(known, 119) is None
    assert bound(known, 120, Allow(swap=False)) == bound(bound_inputs(), 120, Allow(swap=False))


def test_another_moment_has_less_room_for_what_is_kept():
    """120 bytes are there in any case while both layers wait, so 80 of their 300 are kept in 200 bytes.

    The first tensors run again in 20 ns, and 20 of the 100 bytes of the second ones in 20 / 50 of 20 ns. Where not all
    of the layers wait, those that do may be the ones that keep nothing.
    """
    for num_waiting, step_ns in ((1, 1028), (0, 1010)):
        moment = LivenessPoint(fixed_bytes=120, waiting={StageLayers(0): num_waiting})
        known = BoundInputs(
            (FLOW,), (replace(bound_inputs().stages[0], liveness_points=(moment,)),), bound_inputs().transfers
        )
        assert bound(known, 200, Allow(swap=False)) == step_ns


def test_what_is_swapped_late_is_away_at_another_moment():
    """In 300 bytes all fits at the fullest moment, before which no copy has time; 100 leave later, and cost nothing."""
    moment = LivenessPoint(fixed_bytes=100, waiting={StageLayers(0): 1})
    known = BoundInputs(
        (FLOW,), (replace(bound_inputs().stages[0], liveness_points=(moment,)),), bound_inputs().transfers
    )
    assert bound(known, 300, Allow(recompute=False)) == 1000
    assert bound(known, 300, Allow(swap=False)) == 1010


def test_the_highest_points_are_those_at_some_share():
    """(0, 9) at share 0; from 1/2 on (8, 5), as 9 = 4 + 5; (9, 4) ties at 1; (4, 6) is below, (10, 0) never most."""
    points = [(0, 9), (4, 6), (8, 5), (9, 4), (10, 0)]
    assert highest_points(*np.array(points).T) == [2, 0]


def test_no_point_is_higher_at_any_share_by_more_than_the_grid_of_shares():
    chance = random.Random(25)
    for _ in range(100):
        points = [(chance.randrange(12), chance.randrange(12)) for _ in range(chance.randrange(1, 7))]
        found = [points[at] for at in highest_points(*np.array(points).T)]
        for share in (number / 100 for number in range(101)):
            assert max(share * x + y for x, y in points) <= max(share * x + y for x, y in found) + 12 / (NUM_SHARES - 1)
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("position", "is_past_forward", "late"), [(2, False, 0), (6, False, 0), (6, False, 8), (9, True, 0), (14, True, 0)]
)
def test_whether_forward_of_all_layers_has_ended_at_the_fullest_moment(position, is_past_forward, late):
    """One operator makes 100 MB: in a layer what forward alone reads (`mul`), the loss, or backward.

    Operators: embedding, 4 of each layer, loss; its gradient, 4 of each layer. The last one of layer 1 is `late`.
    """
    model = small_model(2)
    step = model.captured.graph
    ops = [made for made in (*step.forward, *step.backward) if made.outputs and made.op != "Load"]
    large = ops[position].name
    outputs = tuple(replace(known, size_bytes=100 * MB) for known in ops[position].outputs)

    def changed(made):
        made = replace(made, outputs=outputs) if made.name == large else made
        return replace(made, inputs=(*made.inputs, large)) if late and made.name == ops[late].name else made

    step = replace(step, forward=tuple(map(changed, step.forward)), backward=tuple(map(changed, step.backward)))
    own = StepModel(replace(model.captured, graph=step), CostTable(GENERIC), model.settings)
    (stage,) = collect_bound_inputs(own, own.simulate(Policy())).stages
    assert stage.is_past_forward is is_past_forward


def test_the_fullest_moment_may_be_the_last_operator_of_backward():
    """The gradient of the table is 10 MB and is made of 1 MB, which is more than the 6 MB that both layers keep.

    Before it are 2 us for the embedding, 9 for each layer, 2 + 1 for the loss, 12 for each layer again.
    """
    model = small_model(2)
    graph = model.captured.graph
    gradient = node("gradient", "UnsortedSegmentSum", graph.backward[-1].name, 10 * MB, layer=None)
    backward = (*graph.backward, gradient, node("out", "MakeTuple", "gradient", 0, layer=None))
    step = replace(model.captured, graph=replace(graph, backward=backward))
    own = StepModel(step, CostTable(GENERIC), model.settings)
    (stage,) = collect_bound_inputs(own, own.simulate(Policy())).stages
    assert stage.peak_bytes - own.static[0].total_bytes == 11 * MB
    assert stage.window_ns == 1000 * (2 + 2 * 9 + 3 + 2 * 12)


@pytest.mark.parametrize("policy", [Policy(), Policy(True, layer_recompute=ALL_LAYERS)])
def test_what_the_optimizer_needs_at_the_end_of_backward_is_there_with_every_policy(policy):
    model = recorded_step("qwen3_small").model
    (stage,), (static,) = collect_bound_inputs(model, model.simulate(Policy())).stages, model.static
    point = stage.liveness_points[-1]
    assert point.fixed_bytes - static.total_bytes == model.layout.closing_bytes[0] > 0
    program = model.with_swap().program(policy)
    intervals = program.intervals
    alive = alive_bytes(intervals.begin, intervals.end, intervals.size_bytes, len(program.ops))
    assert alive[np.flatnonzero(program.ops.kind < OpKind.COLLECTIVE)[-1]] >= model.layout.closing_bytes[0]


def test_what_is_there_with_every_policy():
    """Between two operators of a layer is what nobody keeps; an operator of backward reads two tensors and makes one.

    While layer 1 runs forward the three tensors of layer 0 wait, then those of both, then those of layer 0 again.
    """
    found = compute_liveness(small_model(2), 1)
    # Operators: embedding, 4 of each layer, loss; its gradient, 4 of each layer.
    assert (found.fixed_bytes[[3, 7]] // MB).tolist() == [2, 2]  # relu reads what mul made
    assert (found.fixed_bytes[10:] // MB).tolist() == [1, 3, 3, 3, 3, 3, 3, 3, 2]  # nobody reads the last gradient
    assert (found.waiting_bytes // MB).tolist() == [0] * 5 + [3] * 4 + [6] * 2 + [3] * 4 + [0] * 4


def test_what_nobody_reads_is_there_for_a_moment():
    """8 MB that the first operator of the step makes."""
    model = small_model(2)
    step = model.captured.graph
    table, embed, *others = step.forward
    unread = replace(embed, name="unread", outputs=(TensorType((2 * MB,), "float32", 8 * MB),))
    captured = replace(model.captured, graph=replace(step, forward=(table, unread, embed, *others)))
    found = compute_liveness(StepModel(captured, CostTable(GENERIC), model.settings), 1)
    assert (found.fixed_bytes[:5] // MB).tolist() == [8, 1, 2, 1, 2]


@pytest.mark.parametrize(("layer", "counted"), [(0, 2), (-1, 2 + 1 + 16)])
def test_memory_that_no_policy_moves(layer, counted):
    """In a layer what it leaves may go, and what equal operators make together may be made one by one.

    What runs again is of one policy, and what ends before it begins is nothing.
    """
    kinds = (MemoryKind.KEPT, MemoryKind.TRANSIENT, MemoryKind.RECOMPUTED, MemoryKind.TRANSIENT, MemoryKind.TRANSIENT)
    spans = [Span(2**i, 0, 1, kind) for i, kind in enumerate(kinds)]
    program = program_of("F1 F1 B1", spans=spans)
    intervals = replace(program.intervals, layer=np.full(5, layer), label=np.array([0, 0, 0, 0, 1]))
    program = replace(program, intervals=intervals, labels=[Names(("a",)), Names(("a", "b")), Names(("c",))])
    found = _fixed_bytes(np.array([0, 0, 0, 2, 0]), np.array([1, 1, 1, 1, 1]), program)
    assert found.tolist() == [counted, counted, 0]


def test_what_nothing_names_and_no_recompute_makes_again_is_there_all_the_time():
    """Two intervals of a layer; of one the label is known not to move."""
    program = program_of("F1 F1 B1", spans=[Span(1, 0, 2, MemoryKind.KEPT), Span(2, 0, 2, MemoryKind.KEPT)])
    intervals = replace(program.intervals, layer=np.zeros(2), label=np.array([0, 1]))
    program = replace(program, intervals=intervals, labels=["weight", Names(("a",))])
    first, last = np.array([0, 0]), np.array([2, 2])
    assert _fixed_bytes(first, last, program).tolist() == [0, 0, 0]
    assert _fixed_bytes(first, last, program, {"weight"}).tolist() == [1, 1, 1]


def test_a_layer_for_multi_token_prediction_may_be_recomputed():
    """It is outside the layers of the model, and recomputed with the last of them; the head is not."""
    program = program_of("F1 F1 B1", spans=[Span(1, 0, 2, MemoryKind.KEPT), Span(2, 0, 2, MemoryKind.KEPT)])
    intervals = replace(program.intervals, layer=np.full(2, -1), label=np.array([0, 1]))
    labels = [Names(("model.mtp.layers.0.mlp.MatMul",)), Names(("model.mtp.output_layer.MatMul",))]
    program = replace(program, intervals=intervals, labels=labels)
    assert _fixed_bytes(np.array([0, 0]), np.array([2, 2]), program).tolist() == [2, 2, 2]


def test_copies_of_weights_that_micro_batches_hold_do_not_move():
    """With several micro-batches in flight each holds its copy of a weight; all else of the layer may leave it."""
    model = small_model(4, 2, 4)
    assert _unmoved(model) == frozenset()
    plain = model._layer_block
    weight = BlockTensor("copy", MB, True, False, 0, Consumers(1, 1, 1, 1, 1), None)

    def with_weight(policy: Policy, layer_index: int, is_swapping: bool) -> Block:
        block = plain(policy, layer_index, is_swapping)
        return Block(block.forward, block.backward, (*block.tensors, weight), block.reads, block.per_step_operators)

    model._layer_block = with_weight
    assert _unmoved(model) == {"copy"}
    known = compute_liveness(model, 4)
    model._layer_block = plain
    other = compute_liveness(model, 4)
    # Stage 0 has 2 layers, and up to 2 micro-batches in flight.
    assert (known.fixed_bytes - other.fixed_bytes).max() == 2 * 2 * MB
