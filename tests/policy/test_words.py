import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, Layers
from mindswap.policy.words import (
    closest_names,
    edit_distance,
    format_indices,
    format_layers,
    format_names,
    name_indices,
)


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [("", "", 0), ("abc", "", 3), ("mull", "mul", 1), ("kitten", "sitting", 3), ("a" * 200, "a" * 300, 0)],
)
def test_edit_distance(left, right, distance):
    assert edit_distance(left, right) == edit_distance(right, left) == distance


def test_closest_names():
    assert closest_names("mull", ["mul", "wall", "add"], 2) == ["mul", "wall"]
    assert closest_names("MUL", ["add", "mul"]) == ["mul"]
    assert closest_names("x", ["mul"], max_distance=1) == []
    assert closest_names("x", []) == []


names = st.text("abcd", max_size=6)


@given(names, st.lists(names, max_size=8), st.integers(1, 3))
def test_the_closest_are_those_that_comparing_all_would_give(name, candidates, limit):
    ranked = sorted(candidates, key=lambda candidate: edit_distance(name, candidate))
    distances = [edit_distance(name, candidate) for candidate in closest_names(name, candidates, limit)]
    assert distances == [edit_distance(name, candidate) for candidate in ranked[:limit]]


def test_layers_in_words():
    assert format_indices([3, 0, 1, 1, 7]) == "0-1, 3, 7"
    assert (name_indices("worker", [3]), name_indices("worker", [4, 1, 2])) == ("worker 3", "workers 1-2, 4")
    assert format_layers(ALL_LAYERS) == "every layer"
    assert format_layers(Layers((2,))) == "layer 2"
    assert format_layers(Layers((0, 1, 2))) == "layers 0-2"
    assert format_layers(NO_LAYERS) == "layers (none)"
    assert format_names("abcde") == "a, b, c and 2 more"
    assert format_names("ab") == "a, b"
