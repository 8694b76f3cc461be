"""Computed memory of a rank with FSDP and expert parallelism; expected values are worked out by hand."""

from dataclasses import replace

import pytest

from mindswap.config.parse import parse_document
from mindswap.errors import LaunchError
from mindswap.features.dryrun.sharded_rank import (
    ShardedRank,
    Shards,
    compute_rank,
    highest_rank,
    rank_to_json,
    read_shards,
)
from mindswap.features.dryrun.trainer import extrapolate
from mindswap.features.dryrun.trainer_report import TrainerDryRun, format_trainer_dry_run, trainer_dry_run_to_json
from tests.features.dryrun.test_trainer_report import MIB, STEP

# 100 weights, of which 60 are of experts; 200 states, of which 120; 50 gradients, of which 30.
MIXED = replace(
    STEP,
    expert_bytes=180 * MIB,
    expert_weight_bytes=60 * MIB,
    unit_bytes=((0, 10 * MIB), (20 * MIB, 5 * MIB), (40 * MIB, 5 * MIB), (0, 20 * MIB)),
)


def document(parallelism):
    return parse_document(f"training: {{}}\nparallelism: {{{parallelism}}}\n", "x.yaml")


@pytest.mark.parametrize(
    ("parallelism", "cards", "shards"),
    [
        ("data_parallel_shard: -1", None, None),
        ("data_parallel_shard: -1", 1, None),
        ("data_parallel_shard: 1", 8, None),
        ("", 8, Shards(8, 8, 8, 1, True)),
        ("data_parallel_shard: 2", 8, Shards(8, 2, 2, 1, True)),
        ("expert_parallel: 4", 8, Shards(8, 8, 8, 4, True)),
        ("data_parallel_shard: 2, context_parallel: 2, tensor_parallel: 2, expert_parallel: 8", 16,
         Shards(16, 4, 8, 8, True)),
        ("dense_fsdp_shard_size: 2, expert_parallel: 4", 8, Shards(8, 2, 8, 4, True)),
        ("pipeline_parallel: 2", 8, Shards(8, 4, 4, 1, False)),
        ("pipeline_parallel: 2, reshard_after_forward_policy: always", 8, Shards(8, 4, 4, 1, True)),
        ("reshard_after_forward_policy: never", 8, Shards(8, 8, 8, 1, False)),
        ("data_parallel_shard: 8", 4, Shards(4, 4, 4, 1, True)),
        ("data_parallel_shard: 3", 8, Shards(8, 4, 4, 1, True)),
        ("data_parallel_shard: 3, tensor_parallel: 2, expert_parallel: 8", 16, Shards(16, 4, 8, 8, True)),
        ("dense_fsdp_shard_size: null", 8, Shards(8, 8, 8, 1, True)),
        ("dense_fsdp_shard_size: 4, data_parallel_shard: 2, context_parallel: 2", 8, Shards(8, 4, 4, 1, True)),
        ("dense_fsdp_shard_size: 3, expert_parallel: 2", 1, None),
    ],
)  # fmt: skip
def test_ranks_that_share_weights(parallelism, cards, shards):
    assert read_shards(document(parallelism), cards) == shards


@pytest.mark.parametrize(
    ("parallelism", "cards", "ranks"),
    [
        ("expert_parallel: 16", 8, 8),
        ("data_parallel_shard: 3", 7, 3),
        ("data_parallel_shard: 3, expert_parallel: 8", 8, 4),
    ],
)
def test_sizes_that_do_not_fit_the_cards(parallelism, cards, ranks):
    message = (
        rf"x\.yaml:2:\d+: parallelism: with {cards} cards FSDP has {ranks} of {cards} data .*\n.*allowed: .*\n.*fix: "
    )
    with pytest.raises(LaunchError, match=message):
        read_shards(document(parallelism), cards)


@pytest.mark.parametrize("size", ["0", "-1", "3", "8", "2.0", "true", "[2]"])
def test_dense_fsdp_shard_sizes_that_mindformers_rejects(size):
    message = (
        r"x\.yaml:2:\d+: parallelism\.dense_fsdp_shard_size: .* the 4 ranks of FSDP.*\n.*allowed: 1, 2, 4\n.*fix: "
    )
    with pytest.raises(LaunchError, match=message):
        read_shards(document(f"dense_fsdp_shard_size: {size}, data_parallel_shard: 4"), 8)


def test_a_rank_without_experts():
    """A fourth of 100, 200 and 50 MiB. Of the units 10, 25, 45 and 20 MiB the second and the third are gathered.

    One micro-batch ran, so its gradients are counted as they are: 900 - 225 + 70. The optimizer: 800 - 225 - 37.5.
    """
    rank = compute_rank(MIXED, Shards(4, 4, 4, 1, True), 1)
    assert (rank.weight_bytes, rank.state_bytes, rank.gradient_bytes) == (25 * MIB, 50 * MIB, 50 * MIB // 4)
    assert rank.gathered_bytes == 70 * MIB and rank.max_peak_bytes == 745 * MIB


def test_with_gradients_of_an_earlier_micro_batch():
    """37.5 MiB less; those of the largest two units, 70 MiB of weights, are added: half a byte for each byte."""
    rank = compute_rank(MIXED, Shards(4, 4, 4, 1, True), 2)
    assert rank.max_peak_bytes == 900 * MIB - 225 * MIB - 75 * MIB // 2 + 70 * MIB + 70 * MIB // 2


def test_gradients_are_reduced_while_the_next_layer_runs_backward():
    """In the third part those of the first one, 16 MiB, are reduced, in the fourth 40: three fourths of them are gone.

    What remains of 860, 870, 900 and 890 MiB is 860, 870, 888 and 860: 12 MiB less than without.
    """
    profile = ((860 * MIB, 0), (870 * MIB, 16 * MIB), (900 * MIB, 40 * MIB), (890 * MIB, 50 * MIB))
    rank = compute_rank(replace(MIXED, backward_profile=profile), Shards(4, 4, 4, 1, True), 1)
    assert rank.max_peak_bytes == 745 * MIB - 12 * MIB


def test_weights_of_layers_that_did_not_run_stay_gathered_too():
    """Depths 2 and 4 of 32 layers of 40 MiB: 10 before them, 20 after them."""

    def units(num_layers):
        return ((0, 10 * MIB), *[(0, 40 * MIB)] * num_layers, (0, 20 * MIB))

    low, high = replace(MIXED, num_layers=2, unit_bytes=units(2)), replace(MIXED, unit_bytes=units(4))
    step = extrapolate(low, high, 32)
    assert step.unit_bytes == units(32)
    assert compute_rank(step, Shards(4, 4, 4, 1, False), 1).gathered_bytes == 1310 * MIB
    assert compute_rank(step, Shards(4, 4, 4, 1, True), 1).gathered_bytes == 80 * MIB


def test_layers_that_did_not_run_are_as_large_as_the_largest_added_one_and_those_of_mtp_stay_last():
    """The first layer is dense; the largest experts are in the third one, the largest others in the fourth."""
    units = ((0, 9), (0, 50), (5, 1), (7, 1), (6, 2), (80, 80), (0, 3))
    low = replace(MIXED, num_layers=2)
    step = extrapolate(low, replace(MIXED, unit_bytes=units), 6)
    assert step.unit_bytes == (*units[:5], (7, 2), (7, 2), *units[5:])
    assert extrapolate(low, replace(MIXED, unit_bytes=()), 6).unit_bytes == ()


def test_expert_parallelism():
    """Experts over 4 ranks, of which all 4 are of expert parallelism: nothing of them is gathered, others over 2."""
    rank = compute_rank(MIXED, Shards(4, 2, 4, 4, True), 1)
    assert rank.weight_bytes == (60 // 4 + 40 // 2) * MIB and rank.state_bytes == (120 // 4 + 80 // 2) * MIB
    assert rank.gradient_bytes == (30 * MIB) // 4 + 10 * MIB
    assert rank.gathered_bytes == 25 * MIB  # the third unit and the last one: 5 + 20
    gathered = compute_rank(MIXED, Shards(8, 4, 8, 4, True), 1).gathered_bytes
    assert gathered == (5 + 40 // 4) * MIB + 20 * MIB  # of the experts a rank gathers its own fourth


def test_weights_that_stay_gathered():
    rank = compute_rank(MIXED, Shards(4, 4, 4, 1, False), 1)
    assert rank.gathered_bytes == 100 * MIB


def test_the_pipeline_stage_that_needs_most():
    other = replace(MIXED, phase_peaks={**MIXED.phase_peaks, "backward": 950 * MIB})
    shards = Shards(4, 4, 4, 1, True)
    assert highest_rank([MIXED, other], shards, 1) == compute_rank(other, shards, 1)


def test_the_report_marks_it_as_computed():
    rank = compute_rank(MIXED, Shards(4, 4, 4, 1, True), 1)
    assert isinstance(rank, ShardedRank)
    report = TrainerDryRun("small", 4, MIXED, (4,), False, 1000 * MIB, 0, (), (), rank)
    text = format_trainer_dry_run(report)
    assert "small, computed, not run: a rank of 4 cards with FSDP over 4 has\n" in text
    assert (
        "25 MiB of weights, 50 MiB of float32 weights and states, 12 MiB of gradients, 70 MiB of all-gathered" in text
    )
    assert "needs at most 745.0 MiB: fits in" in text
    data = trainer_dry_run_to_json(report)["computed_rank"]
    assert data == rank_to_json(rank) and data["is_computed"] and data["shards"]["dense"] == 4
    small = format_trainer_dry_run(replace(report, budget_bytes=700 * MIB))
    assert "needs at most 745.0 MiB: it may not fit in 700.0 MiB" in small
    assert "computed_rank" not in trainer_dry_run_to_json(replace(report, rank=None))
