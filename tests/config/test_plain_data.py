import pytest
import yaml

from mindswap.config import render
from mindswap.config.nodes import to_data
from mindswap.config.render import block_lines, document_from_data, inline_text, yaml_key
from tests.builders import document

BASE = document("""
    swap_config:
      swap: True
      default_prefetch: 10
      layer_swap: [{layers: [0, 1]}]
""")


def place(node):
    return str(node.location)


def test_data_without_a_file_has_no_lines():
    made = document_from_data({"a": {"b": [1]}}, "my.py")
    assert place(made.get("a", "b").items[0]) == "my.py"
    assert made.problems == ()


def test_an_equal_value_keeps_its_place():
    made = document_from_data(to_data(BASE.root), "my.py", base=BASE)
    section = made.get("swap_config")
    assert place(section) == "x.yaml:2:3"
    assert place(section.get("default_prefetch")) == "x.yaml:3:21"
    assert place(section.entry("layer_swap")) == "x.yaml:4:3"
    assert place(section.get("layer_swap").items[0].get("layers")) == "x.yaml:4:25"


def test_a_changed_value_comes_from_the_command_line():
    data = {"swap_config": {"swap": True, "default_prefetch": 20, "layer_swap": [{"layers": [0, 2]}]}, "new": 1}
    section = document_from_data(data, "my.py", base=BASE).get("swap_config")
    assert place(section.get("swap")) == "x.yaml:2:9"
    assert place(section.get("default_prefetch")) == "command line"
    layers = section.get("layer_swap").items[0].get("layers")
    assert [place(layers), *map(place, layers.items)] == ["command line", "x.yaml:4:26", "command line"]
    assert place(section.entry("default_prefetch")) == "x.yaml:3:3"


def test_one_and_true_are_different_values():
    made = document_from_data({"swap_config": {"swap": 1}}, "my.py", base=BASE)
    assert place(made.get("swap_config", "swap")) == "command line"


@pytest.mark.parametrize("data", [{"swap_config": None}, {"swap_config": {"layer_swap": None}}])
def test_nothing_in_the_place_of_a_mapping_or_a_list_is_nothing(data):
    """Both have no scalar, as null has none; they are different all the same."""
    made = document_from_data(data, "my.py", base=BASE)
    node = made.get("swap_config", *data["swap_config"] or ())
    assert node.is_null and place(node) == "command line"


def test_objects_count_as_what_they_say_they_are():
    class Config:
        def to_dict(self):
            return {"layers": range(3), "pair": (1, 2)}

    class Number:
        def tolist(self):
            return 5

    made = document_from_data({"a": Config(), "n": Number()}, "my.py")
    assert to_data(made.root) == {"a": {"layers": [0, 1, 2], "pair": [1, 2]}, "n": 5}


def test_integers_that_cannot_be_printed_become_text():
    made = document_from_data({10**5000: {"a": 10**5000}}, "my.py")
    assert [type(entry.key) for entry in made.root.entries] == [str]


def test_data_that_contains_itself_is_refused():
    data: dict = {}
    data["a"] = data
    assert [p.rule for p in document_from_data(data, "my.py").problems] == ["yaml-depth"]


def test_endless_ranges_are_refused(monkeypatch):
    monkeypatch.setattr(render, "MAX_NODES", 2000)
    assert [p.rule for p in document_from_data({"a": range(10**12)}, "my.py").problems] == ["yaml-depth"]


def test_what_is_no_mapping_is_refused():
    assert [p.rule for p in document_from_data([1], "my.py").problems] == ["yaml-syntax"]


def test_problems_of_the_file_are_kept():
    base = document("a: 1\na: 2\nb: *none")
    made = document_from_data({"a": 2}, "my.py", base=base)
    assert (made.problems, made.duplicates) == (base.problems, base.duplicates)


# Render.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (None, "null"),
        ([0, 3], "[0, 3]"),
        (r"mlp\.mul", r"'mlp\.mul'"),
        ("it's", "'it''s'"),
        ("a\tb", r'"a\tb"'),
        ({"layers": [0]}, "{layers: [0]}"),
        (1.5, "1.5"),
    ],
)
def test_a_value_on_one_line(value, text):
    assert inline_text(value) == text
    assert yaml.safe_load(text) == value


def test_keys_that_yaml_takes_for_something_else_are_quoted():
    assert [yaml_key(key) for key in ("layers", "yes", "1", r"a\.b", 3)] == ["layers", "'yes'", "'1'", r"'a\.b'", "3"]


def test_lists_of_mappings_are_blocks():
    value = {"swap": True, "op_swap": [{"op_name": "mul", "layers": [0, 3]}], "empty": {}}
    lines = block_lines({"swap_config": value}, 0, 4)
    assert lines == [
        "swap_config:",
        "    swap: True",
        "    op_swap:",
        "        - op_name: 'mul'",
        "          layers: [0, 3]",
        "    empty: {}",
    ]
    assert yaml.safe_load("\n".join(lines)) == {"swap_config": value}
