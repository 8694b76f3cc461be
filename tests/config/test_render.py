import pytest
import yaml

from mindswap.config.render import block_lines, inline_text, yaml_key


@pytest.mark.parametrize(
    "value,text",
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
