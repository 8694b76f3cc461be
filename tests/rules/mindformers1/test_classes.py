"""Rule `class-removed`: every condition of its table, with the place of the mistake, and the same put right."""

import pytest

from mindswap.rules.mindformers1 import classes
from tests.builders import found
from tests.rules.refusal_cases import Case, assert_refused, read_cases, refusals

CASES = read_cases("classes")
REMOVED = {
    "optimizer": classes.OPTIMIZERS,
    "trainer": classes.TRAINERS,
    "models": classes.NETWORKS,
    "config": classes.CONFIGS,
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_condition_is_an_error_at_its_place(case: Case) -> None:
    assert_refused(case)


def test_every_condition_has_a_case() -> None:
    assert {case.name for case in CASES} == set(refusals("classes"))


def test_a_class_of_the_user_is_none_of_these() -> None:
    text = "optimizer: {type: FusedAdamWeightDecay, auto_register: mine.FusedAdamWeightDecay}\n"
    assert not [problem for problem in found(text) if problem[2] == "class-removed"]


@pytest.mark.mindspore
@pytest.mark.parametrize("kind", REMOVED)
def test_the_registry_has_none_of_the_names(kind: str) -> None:
    import mindformers  # noqa: F401
    from mindformers.tools.register import MindFormerRegister

    assert not set(REMOVED[kind]) & set(MindFormerRegister.registry[kind])
