import pytest

from mindswap.runtime.attempt.command import find_exclusions, is_excluded, without_options
from tests.builders import document


def found(text, *options):
    return [
        (p.location.line, p.location.column, p.message.split(":")[0]) for p in find_exclusions(document(text), options)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "seed: 0",
        "swap_config: {swap: False, layer_swap: [{layers: [0], backward_prefetch: 1}]}",
        "recompute_config: {recompute: False, select_recompute: [], recompute_slice_activation: True}",
        "recompute_config: {recompute: [0, 0], select_recompute: {'a': False}}",
        "recompute_config:",
    ],
)
def test_nothing_set_by_hand(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("swap_config: {swap: True}", (1, 21, "swap_config.swap")),
        ("recompute_config: {recompute: True}", (1, 31, "recompute_config.recompute")),
        ("recompute_config: {recompute: [1, 0]}", (1, 31, "recompute_config.recompute")),
        ("recompute_config: {recompute: 2}", (1, 31, "recompute_config.recompute")),
        ("recompute_config: {select_recompute: {'a': [1]}}", (1, 38, "recompute_config.select_recompute")),
        ("recompute_config: {select_comm_recompute: ['a']}", (1, 43, "recompute_config.select_comm_recompute")),
    ],
)
def test_set_by_hand(text, place):
    assert found(text) == [place]


def test_options_would_go_before_the_plan():
    options = ["--swap_config.swap", "True", "--seed", "1", "--recompute_config.recompute=True"]
    assert [message for *_, message in found("seed: 0", *options)] == [
        "--swap_config.swap",
        "--recompute_config.recompute",
    ]
    assert without_options(options, is_excluded) == ["--seed", "1"]
