import os
from pathlib import Path

import pytest

from mindswap.config.source import load_document
from mindswap.policy.cell_tree import PatternError
from mindswap.policy.formats.mindformers2.settings import indices_of, parse_spec
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format, is_below, match_paths
from mindswap.rules.checker import check_document, check_pynative
from tests.builders import document

# Match.


PATHS = ("mlp", "mlp.linear_fc1", "mlp.linear_fc1.matmul", "self_attention")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("mlp", ("mlp",)),  # the whole path, not its beginning
        (r"mlp\.linear_fc1", ("mlp.linear_fc1",)),
        ("mlp.linear_fc1", ("mlp.linear_fc1",)),  # `.` is any character, a dot among them
        (".*fc1.*", ("mlp.linear_fc1", "mlp.linear_fc1.matmul")),  # `.*` crosses levels
        ("fc1", ()),
    ],
)
def test_a_pattern_matches_a_whole_path(pattern, found):
    assert match_paths(pattern, PATHS) == found


def test_what_is_no_regular_expression():
    with pytest.raises(PatternError):
        match_paths("*fc1", PATHS)


def test_what_never_comes_to_an_end():
    with pytest.raises(PatternError, match="takes longer than"):
        match_paths("(?R)", PATHS)


def test_below_is_by_whole_names():
    assert is_below("mlp.linear_fc1", "mlp")
    assert not is_below("mlp2.x", "mlp") and not is_below("mlp", "mlp")


# The configurations that MindFormers ships; they are not ours to commit, so this runs where they are unpacked.


WHEEL = os.environ.get("MINDFORMERS_2X_WHEEL", "")
FILES = sorted(Path(WHEEL, "configs").rglob("*.yaml")) if WHEEL else []


@pytest.mark.skipif(not WHEEL, reason="MINDFORMERS_2X_WHEEL names no unpacked mindformers 2.1.0 wheel")
def test_no_false_alarm_in_the_files_of_the_wheel():
    documents = [load_document(path) for path in FILES]
    pynative = [document for document in documents if find_format(document) is ConfigFormat.PYNATIVE]
    assert (len(documents), len(pynative)) == (31, 5)
    assert [problem for document in pynative for problem in check_pynative(document).problems] == []
    # Nothing in the other files is taken for a section of 2.x.
    others = [document for document in documents if find_format(document) is ConfigFormat.GRAPH]
    found = [problem.rule for document in others for problem in check_document(document).problems]
    assert "section-of-2x" not in found and "form-2x" not in found


# Layers.


def spec(text):
    return parse_spec(document(f"x: {text}").get("x"), "x")


@pytest.mark.parametrize(
    ("text", "first", "last"), [("5", 5, 5), ("'5'", 5, 5), ("0-19", 0, 19), ("' 3 '", 3, 3), ("7-2", 7, 2)]
)
def test_a_layer_or_a_range(text, first, last):
    assert (spec(text).first, spec(text).last) == (first, last)


@pytest.mark.parametrize("text", ["True", "-1", "1.0", "'1 - 3'", "[1]", "null", "a", "1234567890123456"])
def test_what_upstream_refuses(text):
    assert spec(text) is None


def test_layers_of_the_model_only():
    assert indices_of([spec("2-9"), spec("0"), spec("3")], 4) == (0, 2, 3)
