import pytest

from tests.builders import check, found, trees


def op_swap(name):
    return f"swap_config: {{swap: True, op_swap: [{{op_name: '{name}', backward_prefetch: 2, layers: [0]}}]}}"


@pytest.mark.parametrize("name", ["*", r"*\.flash_attention", "[", "(", "a(?i", r"attention\.(", "a{2}{3}", "x" * 1001])
@pytest.mark.parametrize("model", [None, trees()])
def test_what_the_compiler_refuses(name, model):
    assert found(op_swap(name), model) == [(1, 47, "bad-regex")]


@pytest.mark.parametrize("model", [None, trees()])
def test_a_pattern_that_does_not_come_to_an_end(model):
    assert found(op_swap("(?R)"), model) == [(1, 47, "bad-regex")]


def test_recompute_patterns_are_checked_alike():
    text = "{swap_config: {swap: True}, recompute_config: {select_recompute: {'(': [0]}, select_comm_recompute: ['[']}}"
    assert found(text) == [(1, 67, "bad-regex"), (1, 102, "bad-regex")]


@pytest.mark.parametrize("name", [".*", r"att.*\.w[qo]", r"feed_forward\.w1\.activation\.(silu|gelu)"])
def test_regular_expressions_pass(name):
    assert found(op_swap(name)) == []


def test_a_name_as_pages_of_mindformers_print_it():
    r"""In quotes YAML keeps both backslashes of 'feed_forward\\.mul'; split at `\.` its first part ends in one."""
    text = r"{swap_config: {swap: True, op_swap: [{op_name: 'feed_forward\\.mul', backward_prefetch: 1, layers: [0]}]}}"
    problem = next(problem for problem in check(text).problems if problem.rule == "bad-regex")
    assert problem.fix == r"'feed_forward\.mul'" and "keeps both backslashes" in problem.message
