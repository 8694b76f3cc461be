"""Rule `run-refused`: every condition of its table, with the place of the mistake, and the same put right."""

import pytest

from tests.rules.refusal_cases import Case, assert_refused, read_cases, refusals

CASES = read_cases("runs")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_condition_is_an_error_at_its_place(case: Case) -> None:
    assert_refused(case)


def test_every_condition_has_a_case() -> None:
    assert {case.name for case in CASES} == set(refusals("runs"))
