import pytest

from tests.builders import check, found


@pytest.mark.parametrize("value", ["0", "-1", "True", "1.0", "'10'", "ten", "null", "[10]", "99999999999"])
def test_anything_but_a_positive_integer_is_refused(value):
    text = f"""
        swap_config:
          swap: True
          layer_swap:
            - {{backward_prefetch: {value}, layers: [0]}}
    """
    assert found(text) == [(4, 27, "bad-prefetch")]


@pytest.mark.parametrize("value", ["0", "True", "2.5"])
def test_default_prefetch_is_checked_alike(value):
    assert found(f"swap_config: {{swap: True, default_prefetch: {value}}}") == [(1, 45, "bad-prefetch")]


@pytest.mark.parametrize(("value", "fix"), [("'10'", 10), ("10.0", 10), ("True", 1), ("-3", 1)])
def test_the_fix_is_the_number_that_was_meant(value, fix):
    problem = check(f"swap_config: {{swap: True, default_prefetch: {value}}}").problems[0]
    assert problem.fix == f"default_prefetch: {fix}"


def test_one_is_the_least():
    assert found("swap_config: {swap: True, default_prefetch: 1}") == []


def test_a_float_without_a_dot_is_a_string_in_yaml():
    text = "{swap_config: {swap: True, default_prefetch: 1e2}}"
    assert [problem.fix for problem in check(text).problems] == ["default_prefetch: 100"]
