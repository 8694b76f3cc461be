import pytest

from tests.builders import found


@pytest.mark.parametrize("value", ["'True'", "1", "null", "'False'", "[]", "maybe"])
def test_only_true_and_false_will_do(value):
    assert found(f"swap_config: {{swap: {value}}}") == [(1, 21, "swap-not-bool")]


def test_the_rest_is_checked_when_the_value_looks_like_on():
    text = "swap_config: {swap: 'True', default_prefetch: 0}"
    assert found(text) == [(1, 21, "swap-not-bool"), (1, 47, "bad-prefetch")]


def test_the_rest_is_left_alone_when_the_value_looks_like_off():
    assert found("swap_config: {swap: 'False', default_prefetch: 0}") == [(1, 21, "swap-not-bool")]


@pytest.mark.parametrize("value", ["True", "False", "on", "off"])
def test_yaml_bools_pass(value):
    assert found(f"swap_config: {{swap: {value}}}") == []
