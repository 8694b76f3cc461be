from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, Layers
from mindswap.policy.wording import closest_names, format_indices, format_layers, format_names, name_indices


def test_closest_names():
    assert closest_names("mull", ["add", "wall", "mul"], 2) == ["mul", "wall"]
    assert closest_names("MUL", ["add", "Mul"]) == ["Mul"]
    assert closest_names("x", []) == []


def test_names_that_are_not_alike_enough_are_left_out():
    # 2 times the letters that match, by the letters of both: 6/7, and 4/8.
    assert closest_names("mull", ["mul", "wall"], 2, min_similarity=0.5) == ["mul", "wall"]
    assert closest_names("mull", ["mul", "wall"], 2, min_similarity=0.51) == ["mul"]
    assert closest_names("x", ["mul"], min_similarity=0.1) == []


def test_of_long_names_the_beginning_counts():
    assert closest_names("a" * 200, ["b", "a" * 300]) == ["a" * 300]


def test_layers_in_words():
    assert format_indices([3, 0, 1, 1, 7]) == "0-1, 3, 7"
    assert (name_indices("worker", [3]), name_indices("worker", [4, 1, 2])) == ("worker 3", "workers 1-2, 4")
    assert format_layers(ALL_LAYERS) == "every layer"
    assert format_layers(Layers((2,))) == "layer 2"
    assert format_layers(Layers((0, 1, 2))) == "layers 0-2"
    assert format_layers(NO_LAYERS) == "layers (none)"
    assert format_names("abcde") == "a, b, c and 2 more"
    assert format_names("ab") == "a, b"
