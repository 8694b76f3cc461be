import pytest

from mindswap.config.problem import Level
from tests.builders import check, found


def test_unknown_keys_are_found_at_every_level():
    text = """
        swap_config:
          swap: True
          default_prefech: 10
          layer_swap:
            - {backward_prefetch: 20, layers: [0], layer: 3}
        recompute_config:
          recompute: False
          select_recomput: True
    """
    assert found(text) == [(3, 3, "unknown-key"), (5, 44, "unknown-key"), (8, 3, "unknown-key")]


def test_the_closest_key_is_the_fix():
    assert check("swap_config: {swap: True, default_prefech: 10}").problems[0].fix == "write 'default_prefetch'"
    assert check("swap_config: {swap: True, something_else: 10}").problems[0].fix == "delete it"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("swap_cfg: {swap: True}", "error"),
        ("recompute_confg: {recompute: True}", "error"),
        ("recompute_confg: {select_recompute: ['a']}", "error"),
        ("swap_cfg: {swap: False, default_prefetch: 3}", "warning"),
        ("recompute_confg: {recompute: False}", "warning"),
        ("swap_cfg: ", "warning"),
    ],
)
def test_a_misspelt_section_is_an_error_if_it_asks_for_something(text, level):
    """MindFormers trains without it, and says nothing."""
    result = check(text)
    assert [(p.rule, p.level.value) for p in result.problems] == [("unknown-key", level)]


def test_other_top_level_keys_are_no_concern():
    assert found("{swap_config: {swap: True}, context: {mode: 0}, my_swap: 3}") == []


def test_with_swap_off_nothing_is_an_error():
    assert found("{swap_config: {swap: False, junk: 1}}") == [(1, 29, "swap-off")]


def test_sections_in_the_wrong_place_are_warnings():
    text = """
        model:
          swap_config: {swap: True}
        swap: {swap: True}
    """
    problems = check(text).problems
    assert [(p.location.line, p.rule, p.level, p.fix) for p in problems] == [
        (2, "unknown-key", Level.WARNING, "move 'swap_config' to the top level"),
        (3, "unknown-key", Level.WARNING, "write 'swap_config:'"),
    ]


def test_unknown_keys_are_said_while_swap_is_not_set():
    problems = check("{swap_config: {enable: True, layers: [1, 2]}}").problems
    assert [(p.rule, p.level) for p in problems if p.rule == "unknown-key"] == [("unknown-key", Level.WARNING)] * 2


def test_a_key_like_one_that_is_missing_is_one_problem():
    text = "{swap_config: {swap: True, layer_swap: [{prefetch: 20, layers: [0]}]}}"
    (problem,) = check(text).problems
    assert problem.message == "swap_config.layer_swap[0].prefetch: no such key; 'backward_prefetch' is missing"
    assert problem.fix == "rename it: backward_prefetch: 20"


def test_the_optimizer_has_a_key_of_that_name():
    """As in configs/deepseek3/pretrain_deepseek3_671b.yaml of MindFormers."""
    assert found("{optimizer: {type: AdamW, swap: False}}") == []
    assert found("{memory: {swap: True, layer_swap: null}}") == [(1, 2, "unknown-key")]
