"""Numbers that decide how much is built, and how many problems of one line are told."""

from mindswap.config import builder
from mindswap.config.findings import MAX_PER_LINE, count_equal
from mindswap.config.limits import MODEL_LIMITS
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level, Location, Problem
from mindswap.config.render import document_from_data
from mindswap.rules.checker import check_pynative
from tests.cpu_time import cpu_ratio


def test_the_model_of_a_file_of_2x_has_the_same_limits():
    document = document_from_data({"model": dict.fromkeys(MODEL_LIMITS, 10**12), "swap": {"enable": False}}, "x")
    found = [p for p in check_pynative(document).problems if p.rule == "pynative-too-large"]
    assert len(found) == len(MODEL_LIMITS)


def test_a_file_has_so_many_values_and_no_more(monkeypatch):
    """The mapping, a key, the list and three numbers are six; a key and null are two more."""
    monkeypatch.setattr(builder, "MAX_VALUES", 8)
    assert parse_document("a: [1, 2, 3]\nb:", "x").problems == ()
    (problem,) = parse_document("a: [1, 2, 3]\nb: 1\nc: 1", "x").problems
    assert (problem.rule, problem.location.line, problem.allowed) == ("yaml-size", 3, "at most 8")


def problem(line, rule="a-rule", message="wrong", level=Level.ERROR):
    return Problem(Location("x.yaml", line, 1), rule, level, message)


def test_of_one_rule_and_line_some_are_told_and_the_others_counted():
    given = [problem(1, message=str(number)) for number in range(MAX_PER_LINE + 3)]
    messages = [p.message for p in count_equal([*given, problem(1, "other"), problem(2)])]
    last = f"{MAX_PER_LINE - 1} (3 more in this line)"
    assert messages == [*map(str, range(MAX_PER_LINE - 1)), "wrong", "wrong", last]


def test_as_many_as_are_told_are_not_counted():
    given = [problem(1, message=str(number)) for number in range(MAX_PER_LINE)]
    assert list(count_equal(given)) == given


def test_problems_without_a_line_are_all_told():
    given = [problem(0, message=str(number)) for number in range(MAX_PER_LINE * 2)]
    assert list(count_equal(given)) == given


def test_many_wide_characters_cost_as_much_as_their_values():
    few, many = ("".join(f"x{i}: {'a' * 600}，\n" for i in range(number)) for number in (400, 4000))
    ratio = cpu_ratio(lambda: parse_document(many, "x.yaml"), lambda: parse_document(few, "x.yaml"))
    assert ratio < 30  # of a square: 100
