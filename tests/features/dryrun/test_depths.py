"""Depths and micro-batches that a dry run takes in place of all of them; nothing is run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.step_settings import read_step_settings
from mindswap.errors import LaunchError
from mindswap.features.dryrun import first_ranks
from mindswap.features.dryrun.depths import DryRunOptions, ShortModel, _mismatch, choose_depths, choose_micro_batches
from mindswap.policy.model import Layers, OpSwap, Policy
from mindswap.simulator.report_data import Moment


def settings(text: str):
    return read_step_settings(parse_document(text.encode(), "x.yaml"))


def depths(text: str, num_layers: int, policy: Policy | None = None, **options) -> list[tuple[int, ...]]:
    found, _, bends = choose_depths(DryRunOptions(**options), settings(text), num_layers, policy or Policy())
    assert bends == ()  # nothing is simulated
    return [depth.layer_indices for depth in found]


def test_a_short_model_is_run_whole():
    assert depths("a: 1", 4) == [(0, 1, 2, 3)]


def test_a_long_one_at_two_short_depths():
    assert depths("a: 1", 32) == [(0, 31), (0, 16, 31)]


def test_the_depths_have_as_many_layers_of_each_kind_as_the_line_takes():
    policy = Policy(op_swap=(OpSwap("attention", Layers(range(8)), 1),))
    kept = depths("a: 1", 32, policy)
    low, high = map(len, kept)
    first, second = (sum(layer < 8 for layer in each) for each in kept)
    # 8 of 32 layers are swapped, and so many layers that are must the line have at 32
    assert second + (second - first) * (32 - high) / (high - low) == pytest.approx(8, abs=2)


def test_of_unlike_layers_the_depths_are_those_whose_simulated_line_is_nearest():
    policy = Policy(op_swap=(OpSwap("attention", Layers((1, 4, 9, 20)), 1),))

    def simulated(kept):  # straight from 3 layers on, but for 5, where the peak is in backward
        count = 32 if kept is None else len(kept)
        moment = Moment(0, "backward" if count == 5 else "forward", -1, 0, "loss")
        return SimpleNamespace(stages=[SimpleNamespace(peak_bytes=1000 * max(count, 3), moment=moment)])

    options = DryRunOptions()
    found, doubt, bends = choose_depths(options, settings("a: 1"), 32, policy, simulated)
    assert [len(depth.layer_indices) for depth in found] == [3, 4]
    assert doubt == "in the simulation the line is 0.0% off the whole model, and corrected by that" and bends == (0,)
    asked, doubt, bends = choose_depths(replace(options, layers=(2, 4)), settings("a: 1"), 32, policy, simulated)
    # 3000 and 4000 on 2 and 4 layers: 4000 + 28 * 500 on 32
    assert [len(depth.layer_indices) for depth in asked] == [2, 4] and "43.8% off" in doubt and bends == (14000,)


def test_full_is_all_layers():
    assert depths("a: 1", 32, is_full=True) == [tuple(range(32))]


PIPELINE = "use_parallel: True\nparallel_config: {data_parallel: 2, pipeline_stage: 2, micro_batch_num: 4}\n"


def test_every_stage_keeps_layers_of_its_own():
    assert depths(PIPELINE, 32) == [(0, 16), (0, 15, 16, 31)]


@pytest.mark.parametrize(
    ("num_micro_batches", "peaks", "expected"),
    [
        (32, {}, None),  # not asked: there are few
        (128, {None: (5000, 4000), 4: (5000, 3996)}, 4),  # the same but for a thousandth
        (128, {None: (5000, 4000), 4: (4990, 4000), 32: (5000, 4000)}, 32),  # the pipeline is full later
        # each takes memory, such as casts of weights
        (128, {None: (5000, 4000), 4: (4970, 4000), 32: (4990, 4000)}, None),
        (128, {None: None}, None),  # nothing is simulated
    ],
)
def test_of_many_micro_batches_so_many_are_run_as_the_peak_takes(num_micro_batches, peaks, expected):
    def simulate(count):
        found = peaks[count]
        return found and SimpleNamespace(stages=[SimpleNamespace(peak_bytes=size) for size in found])

    text = PIPELINE.replace("micro_batch_num: 4", f"micro_batch_num: {num_micro_batches}")
    assert choose_micro_batches(settings(text), 32, simulate) == expected


@pytest.mark.parametrize(("num_stages", "in_stage"), [(2, 6), (4, 6), (6, 2), (8, 2)])
def test_with_few_micro_batches_more_layers_are_run(num_stages, in_stage):
    """Up to 24 of all stages: 6 in each of 4 are nearer to the line than 2; in each of 6 they would be too many."""
    layers = Layers(tuple(16 * stage + index for stage in range(num_stages) for index in (1, 4, 9)))
    policy = Policy(op_swap=(OpSwap("attention", layers, 1),))
    step = settings(PIPELINE.replace("pipeline_stage: 2", f"pipeline_stage: {num_stages}"))
    of_many, of_few = (
        choose_depths(DryRunOptions(), step, 16 * num_stages, policy, has_few_micro_batches=is_short)[0]
        for is_short in (False, True)
    )
    assert max(len(depth.layer_indices) for depth in of_many) <= 3 * num_stages
    assert max(len(depth.layer_indices) for depth in of_few) == in_stage * num_stages


@pytest.mark.parametrize(
    ("data_parallel", "num_stages", "ranks"), [(2, 2, (0, 2)), (1, 4, (0, 1, 2, 3)), (4, 1, (0,)), (1, 1, (0,))]
)
def test_by_default_one_rank_of_each_stage_is_run(data_parallel, num_stages, ranks):
    parallel = f"{{data_parallel: {data_parallel}, pipeline_stage: {num_stages}, micro_batch_num: {num_stages}}}"
    assert first_ranks(settings(f"use_parallel: True\nparallel_config: {parallel}\n")) == ranks


def test_one_stage_runs_all_its_micro_batches():
    text = "runner_config: {gradient_accumulation_steps: 128}\n"
    assert choose_micro_batches(settings(text), 32, lambda count: pytest.fail("asked")) is None


def test_layers_that_stages_cannot_share():
    with pytest.raises(LaunchError, match=r"--layers 3: every stage and chunk needs as many layers\n.*multiple of 2"):
        depths(PIPELINE, 32, layers=(3,))


@pytest.mark.parametrize(
    ("text", "num_layers", "num_kept"),
    [
        ("a: 1", 6, [6]),  # up to 6 layers are run
        ("a: 1", 7, [2, 3]),
        (PIPELINE, 6, [6]),  # up to 3 on each of the two stages
        (PIPELINE, 8, [2, 4]),
        (PIPELINE + "model: {model_config: {offset: [-1, 1]}}\n", 4, [4]),  # a stage of one layer has no second depth
        (PIPELINE + "model: {model_config: {offset: [-1, 1]}}\n", 6, [2, 4]),  # 2 and 4: depths of 1 and of 2 layers
    ],
)
def test_a_model_is_run_whole_as_long_as_it_is_short(text, num_layers, num_kept):
    assert [len(kept) for kept in depths(text, num_layers)] == num_kept


@pytest.mark.parametrize(
    ("low", "high", "share_off"),
    [
        # Layers 0 to 3 of 8 are swapped. From 2 to 4 layers, 2 on the line for each 1 more of 8.
        ((0, 7), (0, 1, 6, 7), 0),  # 1 and 2 swapped: 2 + 1 * 2 = 4 of 8
        ((0, 7), (0, 1, 2, 7), 6 / 8),  # 1 and 3: 3 + 2 * 2 = 7, and 1 of the others in place of 4
        ((0, 7), (0, 5, 6, 7), 6 / 8),  # 1 and 1: 1 + 0 = 1, and 7 of the others
        ((0, 1, 7), (0, 1, 6, 7), 4 / 8),  # from 3 to 4, and 4 more: 2 + 0 = 2, and 2 + 1 * 4 = 6 of the others
    ],
)
def test_layers_of_a_kind_that_the_line_has_too_many_or_too_few(low, high, share_off):
    policy = Policy(op_swap=(OpSwap("attention", Layers(range(4)), 1),))
    pair = [ShortModel(kept, (len(kept),)) for kept in (low, high)]
    assert _mismatch(pair, ShortModel(tuple(range(8)), (8,)), policy) == share_off
