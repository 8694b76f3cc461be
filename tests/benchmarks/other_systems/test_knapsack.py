from dataclasses import replace

import pytest
from other_systems.knapsack import fill_knapsack, knapsack
from other_systems.layer_profile import LayerSetting, list_settings, lossless_modules

from mindswap.policy.model import NO_LAYERS, Layers, OpSwap
from mindswap.simulator.cost.hardware import Link
from tests.planner.models import MB, small_model
from tests.simulator.cost.builders import GENERIC

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
