"""Models and micro-batches that a dry run takes in place of all of them; nothing is run."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.config.parse import parse_document
from mindswap.config.step_settings import read_step_settings
from mindswap.errors import LaunchError
from mindswap.features.dryrun import first_ranks
from mindswap.features.dryrun.depths import (
    MAX_EXACT_LAYERS,
    ReducedModel,
    Reduction,
    choose_micro_batches,
    choose_reduction,
    find_reductions,
    full_model,
    layer_classes_of,
    requested_models,
    requested_reduction,
)
from mindswap.features.dryrun.phases import OPTIMIZER, find_simulated_phase_peaks
from mindswap.policy.model import Layers, OpSwap, Policy
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.report_data import SimulationReport
from tests.planner.models import small_model
from tests.report.simulated import report_of
from tests.strength import examples

PIPELINE = "use_parallel: True\nparallel_config: {data_parallel: 2, pipeline_stage: 2, micro_batch_num: 4}\n"
INTERLEAVED = (
    PIPELINE + "parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: '1f1b'}}\n"
    "model: {model_config: {pp_interleave_num: 2}}\n"
)


def step_settings(text: str):
    return read_step_settings(parse_document(text.encode(), "x.yaml"))


def fewest_layers(text: str, classes) -> Reduction:
    reductions = find_reductions(step_settings(text), classes)
    return min(reductions, key=lambda each: each.low.num_layers + each.high.num_layers)


def test_equal_layers_take_two_and_three_of_them():
    reduction = fewest_layers("a: 1", [0] * 32)
    assert (reduction.low.layer_indices, reduction.high.layer_indices) == ((0, 31), (0, 16, 31))
    assert reduction.num_steps == 29


def test_classes_are_counted_in_each_stage():
    """`recompute: [18, 6]`: counted over the model, half of the layers of each stage are recomputed."""
    classes = ["R"] * 18 + ["."] * 6 + ["R"] * 6 + ["."] * 18
    reductions = list(find_reductions(step_settings(PIPELINE), classes))
    assert reductions
    for reduction in reductions:
        for stage, layers in enumerate((range(24), range(24, 48))):
            recomputed, all_layers = (
                [sum(index in layers and classes[index] in name for index in model.layer_indices)
                 for model in (reduction.low, reduction.high)]
                for name in ("R", "R.")
            )  # fmt: skip
            low, high = recomputed
            assert high + (high - low) * reduction.num_steps == (18, 6)[stage]
            low, high = all_layers
            assert high + (high - low) * reduction.num_steps == 24


@settings(max_examples=examples(30, 300), deadline=None)
@given(
    text=st.sampled_from(["a: 1", PIPELINE, INTERLEAVED]),
    classes=st.lists(st.sampled_from("ABC"), min_size=3, max_size=12).map(lambda text: sorted(text) * 4),
)
def test_each_class_of_each_chunk_is_on_the_line(text, classes):
    step = step_settings(text)
    cells = list(step.pipeline.layout(len(classes)).cells())
    for reduction in find_reductions(step, classes):
        models = (reduction.low, reduction.high, full_model(step, len(classes)))
        for cell in cells:
            kept = [[index for index in model.layer_indices if index in cell.layers] for model in models]
            assert all(kept), "every chunk has layers"
            for name in "ABC":
                low, high, all_layers = (sum(classes[index] == name for index in layers) for layers in kept)
                assert high + (high - low) * reduction.num_steps == all_layers
        assert reduction.low.layer_indices == tuple(sorted(set(reduction.low.layer_indices)))
        assert 3 * (reduction.low.num_layers + reduction.high.num_layers) <= 2 * len(classes)


def test_layers_of_a_class_each_have_no_reduction():
    assert list(find_reductions(step_settings("a: 1"), range(32))) == []


def test_the_class_of_a_layer_is_its_structure_and_its_policy():
    policy = Policy(op_swap=(OpSwap("attention", Layers((1, 2)), 1),), layer_recompute=Layers((2,)))
    first, second, third, fourth = layer_classes_of(policy, (0, 1, 1, 1))
    assert len({first, second, third, fourth}) == 4 and first != fourth
    assert layer_classes_of(Policy(), (0, 1, 1, 1))[1:] == layer_classes_of(Policy(), (0, 1, 1, 1))[1:2] * 3


MODEL = small_model(3).truncated((0, *[1] * 30, 2))  # the first and the last layer are unlike the others


def simulate(layer_indices) -> SimulationReport:
    model = MODEL if layer_indices is None else MODEL.truncated(layer_indices)
    return report_of(model.program(Policy(is_swap_enabled=True)))


def test_the_error_is_that_of_the_simulated_extrapolation():
    """In each layer as much is saved, so the line is exact; with more of the first half counted it would not be."""
    classes = layer_classes_of(Policy(), MODEL.captured.sample.layer_map)
    reduction = choose_reduction(MODEL.settings, classes, simulate, MAX_EXACT_LAYERS)
    assert reduction.is_accepted and reduction.error < 1e-4
    assert {0, 31} <= set(reduction.low.layer_indices), "the layers of which there is one are in both"


def test_phases_of_a_simulated_step_have_its_peak():
    report = simulate(None)
    peaks = find_simulated_phase_peaks(report, 0)
    workspace = report.stages[0].static_parts[MemoryPart.WORKSPACE]
    assert max(peak.live_bytes for peak in peaks.values()) == report.stages[0].peak_bytes - workspace
    assert {is_backward for is_backward, _ in peaks} == {False, True} and OPTIMIZER in peaks


def test_a_reduction_whose_simulation_is_off_is_not_accepted():
    def bent(layer_indices):  # the full model has a peak that no short one tells of
        return report_of(
            small_model(64 if layer_indices is None else 2 * len(layer_indices) // 3 + 1).program(Policy())
        )

    reduction = choose_reduction(step_settings("a: 1"), [0] * 32, bent, MAX_EXACT_LAYERS)
    assert reduction.error > 0.01 and not reduction.is_accepted
    unknown = choose_reduction(step_settings("a: 1"), [0] * 32, lambda indices: None, MAX_EXACT_LAYERS)
    assert unknown.error is None and not unknown.is_accepted


def test_the_time_of_all_layers_is_on_the_line_of_the_times():
    low, high = (ReducedModel(tuple(range(count)), (count,)) for count in (2, 4))
    assert Reduction(low, high, 14).estimated_s(20, 26) == 26 + 14 * 6
    assert Reduction(low, high, 14).estimated_s(20, 19) == 19  # noise


def requested(text: str, num_layers: int, *depths: int) -> list[tuple[int, ...]]:
    return [model.layer_indices for model in requested_models(step_settings(text), num_layers, depths)]


def test_requested_layers_are_spread_evenly():
    assert requested("a: 1", 32, 4, 2) == [(0, 31), (0, 10, 21, 31)]
    assert requested(PIPELINE, 32, 4) == [(0, 15, 16, 31)]
    assert requested("a: 1", 4, 4) == [(0, 1, 2, 3)]


def test_two_requested_depths_are_extrapolated_and_their_error_is_simulated():
    step = step_settings("a: 1")
    full = full_model(step, 32)
    reduction = requested_reduction(requested_models(step, 32, (3, 5)), full, simulate)
    assert reduction.num_steps == 13.5 and reduction.error is not None
    assert requested_reduction(requested_models(step, 32, (3,)), full, simulate) is None
    assert requested_reduction(requested_models(step, 32, (3, 32)), full, simulate) is None


def test_layers_that_stages_cannot_share():
    with pytest.raises(LaunchError, match=r"--layers 3: every stage and chunk needs as many layers\n.*multiple of 2"):
        requested(PIPELINE, 32, 3)


@pytest.mark.parametrize(
    ("num_micro_batches", "peaks", "expected"),
    [
        (32, {}, None),  # not simulated: there are few
        (128, {None: (5000, 4000), 4: (5000, 3996)}, 4),  # the same but for a thousandth
        (128, {None: (5000, 4000), 4: (4990, 4000), 32: (5000, 4000)}, 32),  # the pipeline is full later
        # each takes memory, such as casts of weights
        (128, {None: (5000, 4000), 4: (4970, 4000), 32: (4990, 4000)}, None),
        (128, {None: None}, None),  # nothing is simulated
    ],
)
def test_of_many_micro_batches_so_many_are_run_as_the_peak_takes(num_micro_batches, peaks, expected):
    def simulate_peaks(count):
        found = peaks[count]
        return found and SimpleNamespace(stages=[SimpleNamespace(peak_bytes=size) for size in found])

    text = PIPELINE.replace("micro_batch_num: 4", f"micro_batch_num: {num_micro_batches}")
    assert choose_micro_batches(step_settings(text), 32, simulate_peaks) == expected


@pytest.mark.parametrize(
    ("data_parallel", "num_stages", "ranks"), [(2, 2, (0, 2)), (1, 4, (0, 1, 2, 3)), (4, 1, (0,)), (1, 1, (0,))]
)
def test_by_default_one_rank_of_each_stage_is_run(data_parallel, num_stages, ranks):
    parallel = f"{{data_parallel: {data_parallel}, pipeline_stage: {num_stages}, micro_batch_num: {num_stages}}}"
    assert first_ranks(step_settings(f"use_parallel: True\nparallel_config: {parallel}\n")) == ranks


def test_one_stage_runs_all_its_micro_batches():
    text = "runner_config: {gradient_accumulation_steps: 128}\n"
    assert choose_micro_batches(step_settings(text), 32, lambda count: pytest.fail("simulated")) is None
