"""Pipeline stages of MindFormers 2.x, made of one recorded step that is each stage in turn."""

from dataclasses import replace

import numpy as np
import pytest

from mindswap.config.parse import parse_document
from mindswap.config.step_settings import read_step_settings
from mindswap.planner.evaluate import evaluate
from mindswap.planner.problem import Allow, PlanProblem
from mindswap.planner.staged_plan import _plan_stages, join_policies, plan_staged
from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.pynative.passes_in_flight import count_in_flight
from mindswap.pynative.trace import dump_trace, load_trace
from mindswap.simulator.cost.device_costs import find_costs
from mindswap.simulator.memory import profile_memory
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import OpKind
from mindswap.simulator.staged_step import StagedStepModel
from mindswap.simulator.summary import measure_layers, measure_stages
from mindswap.simulator.traced_step import TracedStepModel
from mindswap.steps.recorded import capture_of
from tests.simulator.test_traced_step import KEEP, recorded

FULL = Policy(is_swap_enabled=True, layer_recompute=Layers(range(4)))


def stage(first, in_flight=(), num_micro_batches=1, is_own_engine=False, num_stages=1, model=TracedStepModel):
    step = replace(recorded(), layer_indices=tuple(range(first, first + 4)))
    source = parse_document(step.config, "step.json")
    settings = replace(read_step_settings(source), num_micro_batches=num_micro_batches)
    settings = replace(settings, pipeline=replace(settings.pipeline, num_stages=num_stages))
    costs = find_costs([source], "atlas_800t_a2", {})
    return model(step, capture_of(step), costs, settings, (), is_own_engine, in_flight)


@pytest.mark.parametrize(
    ("stage", "num_stages", "num_micro_batches", "is_1f1b", "expected"),
    [
        (0, 4, 8, True, (3, 3)),
        (2, 4, 8, True, (1, 1)),
        (3, 4, 8, True, (0, 0)),
        (0, 4, 4, True, (3, 2)),  # the last of them is in flight without gradients of an earlier one only
        (0, 4, 1, True, (0, 0)),
        (3, 4, 8, False, (7, 6)),
    ],
)
def test_passes_in_flight_of_a_stage(stage, num_stages, num_micro_batches, is_1f1b, expected):
    assert count_in_flight(stage, num_stages, num_micro_batches, is_1f1b) == expected


@pytest.mark.parametrize("policy", [KEEP, FULL], ids=["kept", "recomputed"])
def test_each_pass_in_flight_holds_what_a_pass_holds_between_forward_and_backward(policy):
    """Memory at the end of forward less that of the begin: of one pass, computed from the timeline without others."""
    alone = stage(0)
    timeline = alone.simulate(policy).timeline
    profile = profile_memory(timeline, 0)
    ops = timeline.program.ops
    forward_end_ns = int(timeline.op_end_ns[ops.kind == 0].max())
    held_bytes = int(profile.by_kind_bytes.sum(0)[np.searchsorted(profile.time_ns, forward_end_ns, "right") - 1])
    base = alone.simulate(policy).peak_bytes
    for count in (1, 3):
        more = stage(0, (count, count)).simulate(policy).peak_bytes - base
        # Memory that is there before forward, such as that of the batch, is not held by others.
        assert more == pytest.approx(count * held_bytes, rel=0.02)


def test_what_mindswaps_own_swap_moves_of_other_passes_is_on_the_host():
    swap = Policy(is_swap_enabled=True, layer_swap=(LayerSwap(Layers(range(4)), 1),))
    alone, staged = stage(0, is_own_engine=True).simulate(swap), stage(0, (2, 2), is_own_engine=True).simulate(swap)
    kept = [stage(0, counts).simulate(KEEP).peak_bytes for counts in ((), (2, 2))]
    moved_bytes = int(alone.timeline.program.copies.size_bytes.sum())
    expected_bytes = kept[1] - kept[0] - 2 * moved_bytes
    assert staged.peak_bytes - alone.peak_bytes == pytest.approx(expected_bytes, rel=0.02)
    assert staged.static[0].host_bytes == 2 * moved_bytes and alone.static[0].host_bytes == 0


def test_stages_are_those_models_side_by_side():
    policy = Policy(is_swap_enabled=True, layer_recompute=Layers((1, 6)), layer_swap=(LayerSwap(Layers((4, 5)), 1),))
    stages = stage(0, (1, 1), 8), stage(4, (0, 0), 8)
    both = StagedStepModel(stages)
    joined, alone = both.simulate(policy), [each.simulate(policy) for each in stages]
    assert joined.peaks_bytes == tuple(each.peak_bytes for each in alone)
    assert joined.timeline.step_time_ns == max(each.timeline.step_time_ns for each in alone)
    assert len(joined.timeline.program.copies) == len(alone[1].timeline.program.copies) > 0
    for number, each in enumerate(alone):
        report = measure_stages(joined.timeline, joined.static)[number]
        assert report.parts == measure_stages(each.timeline, each.static)[0].parts
    rows = {row.layer: row for row in measure_layers(joined.timeline)}
    assert {layer for layer, row in rows.items() if row.recompute_ns} == {1, 6}
    assert {layer for layer, row in rows.items() if row.swapped_bytes} == {4, 5}
    assert sum(joined.static[0].parts.values()) and MemoryPart.WEIGHTS in joined.static[0].parts


RECOMPUTED_CELL = "self_attention.core_attention"  # its last operators save nothing


def test_cells_of_a_stage_run_again_to_their_end_if_another_stage_swaps():
    """Training installs the hooks of mindswap's own executor in all stages of a file that swaps."""
    recompute = (OpRecompute(RECOMPUTED_CELL, Layers(range(4, 8))),)
    alone = Policy(is_swap_enabled=True, select_recompute=recompute)
    swapped = replace(alone, op_swap=(OpSwap("input_layernorm", Layers(range(4)), 1),))

    def recomputed(policy, is_own_engine):
        """Return how many tasks of the second stage, which swaps nothing, run again."""
        joined = StagedStepModel([stage(0, (1, 1), 8, is_own_engine, 2), stage(4, (0, 0), 8, is_own_engine, 2)])
        ops = joined.simulate(policy).timeline.program.ops
        return int(((ops.kind == OpKind.RECOMPUTE) & (ops.layer >= 4)).sum())

    stopped = recomputed(alone, True)
    assert recomputed(swapped, True) > stopped > 0
    assert recomputed(alone, False) == recomputed(swapped, False) == stopped


class ListingModel(TracedStepModel):
    """Model that lists the tasks of each policy that was simulated."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.tasks = {}  # a copy of the model has the same dict

    def schedule(self, policy):
        schedule = super().schedule(policy)
        self.tasks[policy] = schedule.tasks
        return schedule


def test_a_stage_is_planned_as_it_runs_if_another_stage_swaps():
    """The first one swaps, the second one recomputes: it was planned with the tasks that the joined policy has."""
    stages = [stage(4 * number, (1 - number,) * 2, 8, True, 2, ListingModel) for number in range(2)]
    model = StagedStepModel(stages)
    kept_bytes = model.simulate(KEEP).peaks_bytes
    budget_bytes = [kept_bytes[0] - (2 << 20), kept_bytes[1] - (8 << 20)]
    problem = PlanProblem(model, budget_bytes[0], 1 << 40, 8, Allow(swap=True, recompute=True))
    plan, of_stages = _plan_stages(problem, stages, lambda: None, [1 << 40] * 2, [0, budget_bytes[0] - budget_bytes[1]])
    first, second = (each.policy for each in of_stages)
    assert first.op_swap and not (second.op_swap or second.layer_swap)
    assert RECOMPUTED_CELL in [entry.pattern for entry in second.select_recompute]
    assert [each.tasks[alone.policy] for each, alone in zip(stages, of_stages, strict=True)] == [
        each.schedule(plan.policy).tasks for each in stages
    ]


def test_time_of_a_pipeline():
    """S stages of one duration each need S - 1 passes to fill and drain, and one for each micro-batch."""
    stages = [stage(4 * number, (), 8) for number in range(3)]
    alone = stages[0].simulate(KEEP)
    pass_ns = stages[0].pass_ns(alone.timeline)
    joined = StagedStepModel(stages).simulate(KEEP)
    tracked = stages[0].index.num_micro_batches
    assert joined.step_time_ns == alone.timeline.step_time_ns + (8 - tracked + 2) * pass_ns


def test_operations_and_communicators_of_stages():
    """Two stages as large as one rank have twice its operations; which buffers HyperParallel has is not known."""
    alone = stage(0)
    joined = StagedStepModel([stage(0, num_stages=2), stage(4, num_stages=2)])
    assert joined.model_flops() == 2 * alone.model_flops() > 0
    assert joined.settings.communicators and joined.outside_bytes == 0


def test_host_memory_of_a_plan_is_that_of_all_stages():
    """The first stage swaps and the second one does not; both fit into a node with what the first one needs."""
    stages = stage(0, (1, 1), 8, True, 2), stage(4, (0, 0), 8, True, 2)
    model = StagedStepModel(stages)
    kept_bytes = model.simulate(KEEP).peak_bytes

    def plan(host_bytes):
        problem = PlanProblem(model, kept_bytes - (40 << 20), host_bytes, 8, Allow(swap=True, recompute=False))
        return plan_staged(problem, stages)

    free = plan(1 << 40)
    assert free.fits and free.policy.layer_swap + free.policy.op_swap
    used = evaluate(PlanProblem(model, kept_bytes, 1 << 40, 8), free.policy).host_bytes
    assert free.host_bytes == used > 0
    enough = plan(used)
    assert enough.fits and enough.host_bytes <= used
    assert not plan(used // 8).fits


def test_layers_that_are_not_those_of_one_model_are_refused():
    with pytest.raises(ValueError, match="the stages have the layers"):
        StagedStepModel([stage(0), stage(2)])


def test_the_layers_of_a_stage_are_in_its_trace():
    step = replace(recorded(), layer_indices=(4, 5, 6, 7))
    assert load_trace(dump_trace(step), "x").layer_indices == (4, 5, 6, 7)
    assert load_trace(dump_trace(recorded()), "x").layer_indices == ()
    damaged = dump_trace(replace(recorded(), layer_indices=(1, 2)))
    with pytest.raises(Exception, match="layer_indices has 2 of 4 layers"):
        load_trace(damaged, "x")


def test_policies_of_stages_are_one_policy():
    """Layers with equal distance and cells with equal paths are one entry; of a cell the largest distance counts."""
    first = Policy(
        is_swap_enabled=True,
        layer_swap=(LayerSwap(Layers((0,)), 1),),
        op_swap=(OpSwap("mlp", Layers((1,)), 2),),
        layer_recompute=Layers((2,)),
    )
    second = Policy(
        is_swap_enabled=True,
        layer_swap=(LayerSwap(Layers((4,)), 1), LayerSwap(Layers((5,)), 3)),
        op_swap=(OpSwap("mlp", Layers((6,)), 1),),
        select_recompute=(OpRecompute("mlp", Layers((7,))),),
    )
    joined = join_policies([first, second])
    assert [(entry.layers.indices, entry.prefetch) for entry in joined.layer_swap] == [((0, 4), 1), ((5,), 3)]
    assert joined.op_swap == (OpSwap("mlp", Layers((1, 6)), 2),)
    assert joined.layer_recompute == Layers((2,)) and joined.select_recompute == (OpRecompute("mlp", Layers((7,))),)
