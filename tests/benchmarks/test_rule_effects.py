"""Statements of rules about effect, each held against dry runs that are recorded."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from benchmarks.dryrun.rule_effects import PAGES, ROOT, Effect, declared, faults, recorded_effect, rows_of, table
from mindswap.rules.mindformers1 import find_rules

MINDSPORE = "2.9.0"  # of the recorded dry runs
# Words by which a rule states what an entry does or does not do to a step.
STATES_EFFECT = re.compile(
    r"\b(no|without|any) effect|frees? nothing|nothing is freed|(?<!-)\bwins\b|ignored|dropped|\bnever\b|does nothing"
    r"|nothing (is|would be) (swapped|recomputed|offloaded)|only logs|overrid|nothing reads|\bdoes? not compile|effect",
    re.IGNORECASE,
)
ROWS = rows_of()


def texts_of(code: CodeType) -> Iterator[str]:
    """The docstring and the messages of a function, and of those inside of it."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from texts_of(constant)


def states_effect(rule_id: str) -> bool:
    return bool(STATES_EFFECT.search("\n".join(texts_of(find_rules()[rule_id].find.__code__))))


def test_each_rule_that_states_an_effect_is_held_against_the_backend_or_has_a_reason():
    held, elsewhere = {row.rule for row in ROWS}, declared()["elsewhere"].keys()
    assert {rule for rule in find_rules() if states_effect(rule)} <= held | elsewhere
    assert held.isdisjoint(elsewhere) and held | elsewhere <= find_rules().keys()


def test_reasons_name_places_that_exist():
    for texts in declared()["elsewhere"].values():
        for text in texts.values():
            assert all((ROOT / path).exists() for path in re.findall(r"`(\w+/[\w./]+)`", text))
            assert all((ROOT / "docs" / page).exists() for page in re.findall(r"\]\((\w+\.md)", text))


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.rule} {number}" for number, row in enumerate(ROWS)])
def test_the_dry_run_confirms_what_check_states(row):
    """What is reported frees nothing; what is not reported, although it looks like that, does."""
    effect = recorded_effect(row, MINDSPORE)
    assert list(faults([(row, effect)])) == []
    if not effect.is_measured:
        pytest.skip("not dry run yet: python benchmarks/dryrun/rule_effects.py --write")


def test_effects_that_matter_are_held_with_one_micro_batch_and_several_and_in_both_families():
    for rule in ("gathered-weight", "recompute-wins", "kept-by-reshape"):
        data = [row.data_with for row in ROWS if row.rule == rule]
        turns = {config.get("runner_config", {}).get("gradient_accumulation_steps", 1) for config in data}
        turns |= {config["parallel_config"].get("micro_batch_num", 1) for config in data}
        assert 1 in turns and max(turns) > 1, rule
        assert {config.get("use_legacy", True) for config in data} == {True, False}, rule


@pytest.mark.parametrize("language", PAGES)
def test_the_pages_have_the_table(language):
    page = Path(PAGES[language][0])
    assert table([(row, recorded_effect(row, MINDSPORE)) for row in ROWS], language) in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("with_mib", "without_mib", "verdict", "change"),
    [
        ((10,), (10,), "equal", 0),
        ((8,), (10,), "less", -2),
        ((12, 10), (10, 11), "more", 2),  # the stage that changes most
        ((), (10,), "stops", None),
    ],
)
def test_the_verdict_of_a_pair_of_peaks(with_mib, without_mib, verdict, change):
    effect = Effect(with_mib, without_mib)
    assert effect.verdict == verdict
    assert change is None or effect.change_mib == change
