from mindswap.check.check import check_pynative
from mindswap.config.problem import Level
from tests.builders import check, document, found

WARNS = "{swap_config: {swap: True, default_prefetch: 5, layer_swap: [{layers: [0], backward_prefetch: 1}]}%s}"


def test_a_warning_that_is_ignored_is_counted():
    assert found(WARNS % "") == [(1, 46, "unused-default-prefetch")]
    result = check(WARNS % ", mindswap: {ignore: [unused-default-prefetch]}")
    assert result.problems == ()
    assert [problem.rule for problem in result.ignored] == ["unused-default-prefetch"]
    assert len(check(WARNS % "", silence=["unused-default-prefetch"]).ignored) == 1


def test_an_error_stays():
    text = "{context: {mode: 1}, swap_config: {swap: True}, mindswap: {ignore: [context-mode]}}"
    assert found(text) == [(1, 18, "context-mode")]
    assert check(text).ignored == ()


def test_an_unknown_name_is_a_warning_and_no_list_an_error():
    (problem,) = check("{mindswap: {ignore: [overlapp]}}").problems
    assert (problem.rule, problem.level) == ("bad-ignore", Level.WARNING)
    assert problem.message == "mindswap.ignore: there is no rule 'overlapp'" and "overlap, " in problem.allowed
    (problem,) = check("{mindswap: {ignore: overlap}}").problems
    assert (problem.rule, problem.level, problem.fix) == ("bad-ignore", Level.ERROR, "ignore: [overlap]")


def test_files_of_2x_ignore_their_own_rules():
    text = "{swap: {enable: True, default_prefetch: 1, op_swap: [{op_name: 'mlp', layers: [0], x: 1}]}%s}"
    warned = {p.rule for p in check_pynative(document(text % ""), 4).problems if p.level is Level.WARNING}
    assert "pynative-ignored-key" in warned
    checked = check_pynative(document(text % ", mindswap: {ignore: [pynative-ignored-key]}"), 4)
    assert "pynative-ignored-key" not in {p.rule for p in checked.problems}
    assert [p.rule for p in checked.ignored] == ["pynative-ignored-key"]
