"""Against what mindformers 2.1.0 itself answered; `cases.py` says how that was recorded."""

import json
from pathlib import Path

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.problem import Level
from mindswap.policy.formats.mindformers2.effect import log_lines
from mindswap.rules.checker import check_pynative
from tests.policy.formats.mindformers2.builders import MODEL
from tests.policy.formats.mindformers2.cases import CASES, text_of

EXPECTED = json.loads((Path(__file__).parent / "expected.json").read_text("utf-8"))
REFUSED = [name for name in CASES if "error" in EXPECTED["cases"][name]]
ACCEPTED = [name for name in CASES if name not in REFUSED]


def check(name):
    return check_pynative(parse_document(text_of(name).encode(), "x.yaml"), model=MODEL)


def test_every_case_was_recorded():
    assert list(EXPECTED["cases"]) == list(CASES) and len(ACCEPTED) >= 40 and len(REFUSED) >= 40


def test_the_paths_of_a_layer_are_those_upstream_lists():
    assert list(MODEL.layers[0].order) == EXPECTED["paths"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_upstream_refuses_is_an_error(name):
    assert check(name).errors


@pytest.mark.parametrize("name", ACCEPTED)
def test_log_lines_and_pairs_are_those_of_upstream(name):
    effect = check(name).effect
    assert list(log_lines(effect)) == EXPECTED["cases"][name]["log"]
    pairs = [[i, layer.fetch_layer] for i, layer in enumerate(effect.layers) if layer.fetch_layer is not None]
    assert pairs == EXPECTED["cases"][name]["pairs"]


def test_what_upstream_takes_and_does_is_no_error():
    """An error in an accepted case is a setting without any effect: each of them by hand."""
    without_effect = {
        "no layers",
        "two layer entries",
        "no match",
        "same name twice",
        "mode None",
        "select unchecked",
        "select no match",
        "exclude no match",
        "comm top cell",
        "comm cell",
        "enabled with nothing",
        "old sections",
    }
    found = {name for name in ACCEPTED if any(p.level is Level.ERROR for p in check(name).problems)}
    assert found == without_effect - {"mode None"}
