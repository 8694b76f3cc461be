from dataclasses import replace

import pytest
from other_systems import STRATEGIES
from other_systems.hyper_offload import DistanceOptions, hyper_offload
from other_systems.knapsack import fill_knapsack, knapsack
from other_systems.layer_profile import LayerSetting, list_settings, lossless_modules
from other_systems.longest_gap import longest_gap
from other_systems.saved import SavedTensor, Turn, find_turns, saved_tensors, swap_policy

from mindswap.config.render import document_from_data
from mindswap.policy.model import NO_LAYERS, Layers, OpSwap, Policy
from mindswap.rules.checker import check_shape
from mindswap.simulator.cost.hardware import Link
from tests.adapters.graphs import ROOT
from tests.planner.loading import capture_apart
from tests.planner.models import MB, small_model
from tests.simulator.cost.builders import GENERIC

# Hyper offload.


MIB = 2**20

# Operators between last use in forward and first in backward, layer 0: exp 2 -> 33, relu 4 -> 32, tanh 5 -> 31;
# layer 1: exp 6 -> 29, and less for all others.
GAPS = {"exp": 31, "relu": 28, "tanh": 26, "exp of layer 1": 23}


def swapped(options: DistanceOptions, **kwargs) -> tuple[OpSwap, ...]:
    return hyper_offload(options, small_model(**kwargs), budget_bytes=0).op_swap


def test_the_defaults_are_those_of_mindspore():
    options = DistanceOptions()
    assert (options.select_distance, options.select_num, options.prefetch_distance) == (100, 100, 50)


def test_tensors_unused_for_longer_than_the_distance():
    assert swapped(DistanceOptions(select_distance=GAPS["tanh"] - 1)) == (
        OpSwap(r"attn\.exp", Layers((0,)), 50),
        OpSwap(r"mlp\.relu", Layers((0,)), 50),
        OpSwap(r"mlp\.tanh", Layers((0,)), 50),
    )
    assert swapped(DistanceOptions(select_distance=GAPS["exp"])) == ()


def test_no_more_than_the_number_in_execution_order():
    options = DistanceOptions(select_distance=GAPS["exp of layer 1"] - 1, select_num=2)
    assert swapped(options) == (OpSwap(r"attn\.exp", Layers((0,)), 50), OpSwap(r"mlp\.relu", Layers((0,)), 50))


def test_each_stage_selects_for_itself():
    # Stage 0 runs forward of the second micro-batch before backward of the first, stage 1 does not.
    # exp of layer 0: forward 1 + 1, backward 25 + 2, see test_saved; exp of layer 2: 1 + 1 and 15 + 2.
    entries = swapped(DistanceOptions(select_distance=14), num_stages=2, num_micro_batches=3)
    layers = {entry.pattern: entry.layers.indices for entry in entries}
    assert layers[r"attn\.exp"] == (0, 1, 2)


@pytest.mark.parametrize(
    ("size_bytes", "distance"),
    [
        (1, 1),
        (8 * 10**6, 1),  # 20 GB/s x 400 us, the slower of the two directions
        (8 * 10**6 + 1, 2),
        (86 * MIB, 12),  # 90.2 MB / 8 MB
    ],
)
def test_adaptive_distance_is_the_slower_copy_in_kernels(size_bytes, distance):
    assert DistanceOptions(is_adaptive=True).distance(size_bytes) == distance


# Longest gap.


# Kept by all layers 12 MB; at the peak, the first operator of backward, also its input and its output.
PEAK_BYTES = 14 * MB


def test_nothing_leaves_where_the_budget_is_enough():
    model = small_model()
    assert model.simulate(longest_gap(1, model, PEAK_BYTES)).peak_bytes == PEAK_BYTES
    assert longest_gap(1, model, PEAK_BYTES).op_swap == ()


def test_longest_gaps_first_until_the_budget_is_met():
    # 4 MB too much; the gaps are 31, 28 and 26 operators in layer 0, and 23 for exp of layer 1.
    model = small_model()
    policy = longest_gap(1, model, PEAK_BYTES - 4 * MB)
    assert policy.op_swap == (
        OpSwap(r"attn\.exp", Layers((0, 1)), 1),
        OpSwap(r"mlp\.relu", Layers((0,)), 1),
        OpSwap(r"mlp\.tanh", Layers((0,)), 1),
    )
    assert model.simulate(policy).peak_bytes == PEAK_BYTES - 4 * MB


def test_the_distance_is_that_of_every_copy():
    entries = longest_gap(10, small_model(), PEAK_BYTES - 1).op_swap
    assert entries == (OpSwap(r"attn\.exp", Layers((0,)), 10),)


def test_a_budget_out_of_reach_takes_all_that_helps():
    model = small_model()
    patterns = {entry.pattern for entry in longest_gap(1, model, 0).op_swap}
    assert patterns == {r"attn\.exp", r"mlp\.relu", r"mlp\.tanh"}


# Saved.


def test_tensors_of_a_layer_with_their_uses():
    # Forward exp mul relu tanh; backward dtanh drelu dmul dexp. tanh is read by the next layer's exp as well.
    assert saved_tensors(small_model(), 1) == (
        SavedTensor(1, ("attn.exp",), MB, producer_op_index=0, last_forward=1, first_backward=2, saved_in=("attn",)),
        SavedTensor(1, ("mlp.relu",), MB, producer_op_index=2, last_forward=3, first_backward=1, saved_in=("mlp",)),
        SavedTensor(1, ("mlp.tanh",), MB, producer_op_index=3, last_forward=4, first_backward=0, saved_in=("mlp",)),
    )


def test_what_another_stage_reads_is_no_use_here():
    # Layer 1 is the last one of stage 0: its output is sent, and read again by its own backward only.
    output = saved_tensors(small_model(num_stages=2, num_micro_batches=2), 1)[-1]
    assert output == SavedTensor(
        1, ("mlp.tanh",), MB, producer_op_index=3, last_forward=3, first_backward=0, saved_in=("mlp",)
    )


def test_turns_of_one_stage():
    # 1 operator before the layers, 4 layers of 4; 1 behind them in forward, 1 in backward; back through the layers.
    model = small_model()
    turns = find_turns(model, model.program(Policy()), 0)
    assert turns == {0: [Turn(1, 31)], 1: [Turn(5, 27)], 2: [Turn(9, 23)], 3: [Turn(13, 19)]}


def test_turns_of_the_last_stage_of_a_pipeline():
    # A micro-batch is: receive, 8 forward, loss, its gradient, 8 backward, send: 20 operators.
    model = small_model(num_stages=2, num_micro_batches=2)
    turns = find_turns(model, model.program(Policy()), 1)
    assert turns == {2: [Turn(1, 15), Turn(21, 35)], 3: [Turn(5, 11), Turn(25, 31)]}


def test_a_policy_names_equal_layers_together():
    first, second = saved_tensors(small_model(), 0)[0], saved_tensors(small_model(), 2)[0]
    output = saved_tensors(small_model(), 2)[2]
    assert swap_policy([(second, 5), (first, 5), (output, 1)]) == Policy(
        True, op_swap=(OpSwap(r"attn\.exp", Layers((0, 2)), 5), OpSwap(r"mlp\.tanh", Layers((2,)), 1))
    )


def test_an_operator_has_one_distance():
    tensor = saved_tensors(small_model(), 0)[0]
    assert swap_policy([(tensor, 3), (tensor, 7)]).op_swap == (OpSwap(r"attn\.exp", Layers((0,)), 7),)


# Knapsack.


WHOLE = LayerSetting(1, 8, is_whole=True)
NOTHING = LayerSetting(3)


def linked(bytes_per_s: int):
    """The small model, where a copy of 1 MB takes 1e15 / bytes_per_s ns."""
    link = Link(bytes_per_s, 0)
    return small_model(device=replace(GENERIC, offload=link, prefetch=link))


@pytest.mark.parametrize(
    ("in_flight", "free", "chosen"),
    [
        ((1, 1, 1), 9, (NOTHING, NOTHING, NOTHING)),
        ((1, 1, 1), 8, (WHOLE, NOTHING, NOTHING)),  # 1 + 3 + 3
        ((1, 1, 1), 3, (WHOLE, WHOLE, WHOLE)),
        ((2, 1, 1), 7, (WHOLE, WHOLE, NOTHING)),  # 2 + 1 + 3; with one layer it would be 2 + 3 + 3
        ((1, 1, 1), 2, (WHOLE, WHOLE, WHOLE)),  # nothing fits
    ],
)
def test_knapsack_of_one_stage(in_flight, free, chosen):
    assert fill_knapsack((WHOLE, NOTHING), in_flight, free) == chosen


def test_of_equally_quick_settings_the_later_one():
    swap = LayerSetting(2, 0, swapped=("attn",))
    assert fill_knapsack((WHOLE, NOTHING, swap), (1, 1), 6) == (swap, swap)


def test_a_module_whose_copies_end_too_late_is_not_swapped():
    # Forward takes 9 us; exp is made after 2, relu after 7 us, and a tanh, that of the layer before, is there from
    # the begin. With 2.5 us a copy relu would be copied 0.5 us after the end, 5.6 %; with 2.4 us 0.4 us, 4.4 %.
    # attn alone moves only exp, in time as long as a copy takes no more than 7.45 us.
    assert lossless_modules(linked(4 * 10**11)) == ("attn",)
    assert lossless_modules(linked(MB * 10**9 // 2400)) == ("attn", "mlp")
    assert lossless_modules(linked(MB * 10**9 // 7400)) == ("attn",)
    assert lossless_modules(linked(MB * 10**9 // 7500)) == ()


def test_settings_of_a_layer():
    # Whole: exp, mul and relu run again (2 + 3 + 2 us), tanh only makes the output... and is read again by its own
    # gradient, so the layer keeps it. Recompute of a module alone frees nothing: what it reads is kept instead.
    whole, nothing, swap = list_settings(linked(4 * 10**11))
    assert nothing == LayerSetting(3 * MB)
    assert swap == LayerSetting(2 * MB, swapped=("attn",))
    assert whole.is_whole
    assert whole.kept_bytes == MB


def test_swap_where_it_is_enough():
    # Copied out until the layer ends: 4 operators. Memory goes three times as many behind, that is three layers
    # later: of the exp of four layers one is away at the peak, 14 - 1 MB.
    model = linked(4 * 10**11)
    policy = knapsack(model, 13 * MB)
    assert policy.op_swap == (OpSwap(r"attn\.exp", Layers((0, 1, 2, 3)), 4),)
    assert policy.layer_recompute == NO_LAYERS
    assert model.simulate(policy).peak_bytes == 13 * MB


def test_everything_recomputed_where_nothing_fits():
    assert knapsack(linked(10**12), 1).layer_recompute == Layers((0, 1, 2, 3))


# All strategies on one model: what they give can be simulated, written, and read again.


# Near the end of forward their copies back are launched, and take memory, before that of the copy out is given back.
FETCHED_EARLY = ("swap everything", "longest gap, prefetch 10")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_gives_the_same_policy_again_and_no_more_memory(name):
    model = small_model()
    policy = STRATEGIES[name](model, 10 * MB)
    assert STRATEGIES[name](small_model(), 10 * MB) == policy
    if name not in FETCHED_EARLY:
        assert model.simulate(policy).peak_bytes <= model.simulate(STRATEGIES["keep all"](model, 0)).peak_bytes


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_can_be_written(name):
    policy = STRATEGIES[name](small_model(num_stages=2, num_micro_batches=3), 10 * MB)
    assert check_shape(document_from_data(policy.to_config(), "data"), 4).policy == policy


@pytest.mark.mindspore
def test_every_nameable_tensor_of_a_real_layer_leaves():
    model = capture_apart(ROOT / "tests" / "data" / "qwen3_small.yaml")
    chosen = [tensor for i in range(model.captured.num_layers) for tensor in saved_tensors(model, i)]
    copies = model.program(swap_policy((tensor, 1) for tensor in chosen)).copies
    assert sorted(copies.size_bytes) == sorted(tensor.size_bytes for tensor in chosen)
