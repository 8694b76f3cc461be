import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindswap.config.edit import after_line, line_above, line_end, line_start, newline_at
from mindswap.config.section_edits import rewrite_section
from mindswap.errors import PolicyError
from tests.strength import examples

TEXT = r"""
# what this run is
model:   # keep
  num_layers: 4

swap_config:   # mine
  swap: False   # off for now
  op_swap:  # operators
    - op_name: 'attention'
      layers: [0]  # first
  default_prefetch: null
# tail
other: {b: 2}
"""


def test_unchanged_keys_stay_as_they_are_written():
    value = {"swap": True, "op_swap": [{"op_name": "attention", "layers": [0]}], "default_prefetch": 10}
    expected = TEXT.replace("swap: False ", "swap: True ").replace("null", "10")
    assert rewrite_section(TEXT, "swap_config", value) == expected


def test_nothing_to_do_changes_nothing():
    value = {"default_prefetch": None, "swap": False, "op_swap": [{"op_name": "attention", "layers": [0]}]}
    assert rewrite_section(TEXT, "swap_config", value) is TEXT


def test_a_key_is_removed_with_its_lines_and_another_comes_at_the_end():
    expected = TEXT.replace(TEXT[TEXT.index("  op_swap") : TEXT.index("  default")], "").replace(
        "null\n", "null\n  layer_swap:\n    - backward_prefetch: 2\n      layers: [0, 3]\n"
    )
    value = {"swap": False, "default_prefetch": None, "layer_swap": [{"backward_prefetch": 2, "layers": (0, 3)}]}
    assert rewrite_section(TEXT, "swap_config", value) == expected


def test_a_missing_section_comes_at_the_end_with_single_quoted_patterns():
    value = {"recompute": [0, 1], "select_recompute": {r"mlp\.mul": True}}
    lines = ["recompute_config:", "  recompute: [0, 1]", "  select_recompute:", r"    'mlp\.mul': True", ""]
    assert rewrite_section(TEXT.rstrip("\n"), "recompute_config", value) == TEXT + "\n".join(lines)


def test_the_comment_replaces_the_last_one_with_our_mark_and_no_other():
    once = rewrite_section(TEXT, "other", {"b": 2}, "first\nand more")
    assert once == TEXT.replace("other:", "# mindswap: first\n# mindswap: and more\nother:")
    assert rewrite_section(once, "other", {"b": 2}, "second") == TEXT.replace("other:", "# mindswap: second\nother:")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "s:\n  x: 1\n"),
        ("# only this", "# only this\ns:\n  x: 1\n"),
        ("s:", "s:\n  x: 1"),
        ("s:   # why\nb: 2\n", "s:   # why\n  x: 1\nb: 2\n"),
        ("s: null # why\nb: 2", "s: # why\n  x: 1\nb: 2"),
        ("s: {}\n", "s:\n  x: 1\n"),
        ("s: {y: 2}\n", "s:\n  x: 1\n"),
        ("s: {y: 2, x: 3, z: 4}\n", "s: {x: 1}\n"),
        ("s: {x: 3, y: 2, z: 4}\n", "s: {x: 1}\n"),
        ("{s: {x: 3, y: 2}, b: 4}", "{s: {x: 1}, b: 4}"),
        ("{b: 4}", "{b: 4, s: {x: 1}}"),
        ("{}", "{s: {x: 1}}"),
        ("s:\r\n    y: 2\r\n    x: 3\r\nb: 4\r\n", "s:\r\n    x: 1\r\nb: 4\r\n"),
        ("b:\r\n    y: 2\r\n", "b:\r\n    y: 2\r\ns:\r\n    x: 1\r\n"),
        ("\ufeffs:\n  x: 2\n", "\ufeffs:\n  x: 1\n"),
        ("größe: 'ü'\ns:\n  x: 'ä'\n", "größe: 'ü'\ns:\n  x: 1\n"),
        ("s:\n  x: |\n    text\n\n    more\n\nb: 2\n", "s:\n  x: 1\n\nb: 2\n"),
        ("s:\n  x:\n    - 1\n    - 2  # two\nb: 2\n", "s:\n  x: 1  # two\nb: 2\n"),
        ("a: &a {y: 2}\ns:\n  <<: *a\n  x: 1\n", "a: &a {y: 2}\ns:\n  x: 1\n"),
        ("a: &a {y: 2}\ns: *a\n", "a: &a {y: 2}\ns:\n  x: 1\n"),
        ("s: &own\n  x: *own2\nb: 2\n".replace("*own2", "&n 3"), "s: &own\n  x: 1\nb: 2\n"),
        ("---\ns:\n  x: 2\n...\n", "---\ns:\n  x: 1\n...\n"),
        ("---\nb: 2\n...\n", "---\nb: 2\ns:\n  x: 1\n...\n"),
    ],
)
def test_as_it_is_written(text, expected):
    assert rewrite_section(text, "s", {"x": 1}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "s: &s {x: 2}\nb: *s\n",
        "s:\n  x: &x [1]\nb: *x\n",
        "s:\n  x: 2\ns:\n  x: 3\n",
        "s:\n  ? x\n  : 2\n",
        "s: [",
        "- 1\n",
        "s: {x: 2}\n---\ns: {x: 3}\n",
    ],
)
def test_what_cannot_be_edited_is_said(text):
    with pytest.raises(PolicyError, match=r"x\.yaml:[0-9]+:[0-9]+: error: "):
        rewrite_section(text, "s", {"x": 1}, file="x.yaml")


def test_an_anchor_is_named_with_the_place_that_uses_it():
    with pytest.raises(
        PolicyError, match=r"x.yaml:3:4: error: 's' cannot be changed: \*own stands for it or a part of it"
    ):
        rewrite_section("s: &own\n  x: 2\nb: *own\n", "s", {"y": 1}, file="x.yaml")


# Whatever the file looks like: the section reads back as the value, and every other line is still there.

RELAXED = settings(max_examples=examples(30, 150), suppress_health_check=[HealthCheck.too_slow])
words = st.sampled_from(
    ["swap", "recompute", "op_swap", "x", r"mlp\.mul", "true", "null", "1", "a b", "#", "ü", "a: b"]
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), words, st.text(max_size=6), st.just("'")
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)
sections = st.dictionaries(words, values, max_size=4)
styles = st.sampled_from([None, True, False])


@pytest.mark.long
@RELAXED
@given(
    before=st.dictionaries(st.sampled_from(["a", "b", "s"]), st.one_of(sections, values), max_size=3),
    value=sections,
    style=styles,
    indent=st.sampled_from([2, 4]),
    newline=st.sampled_from(["\n", "\r\n"]),
    comment=st.sampled_from([None, "why", "why\nso"]),
    has_end=st.booleans(),
)
def test_any_section_reads_back(before, value, style, indent, newline, comment, has_end):
    text = yaml.safe_dump(before, default_flow_style=style, indent=indent, sort_keys=False, allow_unicode=True)
    text = text.replace("\n", newline)
    text = text if has_end else text.rstrip("\r\n")
    result = rewrite_section(text, "s", value, comment)
    assert yaml.safe_load(result) == {**yaml.safe_load(text), "s": value}
    assert rewrite_section(result, "s", value, comment) == result
    assert ("# mindswap: why" in result) == (comment is not None)


COMMENTED = """
a: 1  # one

# above
s:  # here
  x: 1  # first
  # between
  y: [1, 2]  # second

  z:  # third
    - 1
  # last
# below
b:
  x: 2
"""
KEPT = ["a: 1  # one", "# above", "s:  # here", "  # between", "  # last", "# below", "b:", "  x: 2"]


@RELAXED
@given(value=st.dictionaries(st.sampled_from("xyzvw"), st.sampled_from([1, [1], [1, 2], [{"k": 1}], "ü"])))
def test_comments_survive(value):
    if not value:
        return
    result = rewrite_section(COMMENTED, "s", value)
    assert yaml.safe_load(result) == {"a": 1, "s": value, "b": {"x": 2}}
    lines = result.splitlines()
    positions = [lines.index(line) for line in KEPT if line != "  # between" or {"x", "y", "z"} & set(value)]
    assert positions == sorted(positions)
    for key, line in (("x", "  x: 1  # first"), ("y", "  y: [1, 2]  # second")):
        assert (line in lines) == (value.get(key) == yaml.safe_load(line)[key])


# Line ends are those of the lines around, whatever they are.

LINES = ["a: 1", "s:  # here", "  x: 3", "  y:", "    - 1", "  z: |", "    text", "", "# tail", "b: {f: 1}"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("comment", [None, "two\nlines"])
@pytest.mark.parametrize("value", [{"x": 1}, {"x": 3, "y": [{"q": 1}], "n": {"m": [{"k": 1}]}}, {"new": 5}])
def test_a_file_has_one_kind_of_line_end_before_and_after(newline, comment, value):
    expected = rewrite_section("\n".join(LINES), "s", value, comment)
    assert rewrite_section(newline.join(LINES), "s", value, comment) == expected.replace("\n", newline)
    again = rewrite_section(newline.join(LINES) + newline, "new", value, comment)
    assert again == rewrite_section("\n".join(LINES) + "\n", "new", value, comment).replace("\n", newline)


def test_mixed_line_ends_stay_and_new_lines_end_like_their_neighbours():
    text = "a: 1\rs:\r\n  x: 3\n  y: 4\r\nb: 2\r"
    assert rewrite_section(text, "s", {"x": 3, "z": 5}) == "a: 1\rs:\r\n  x: 3\n  z: 5\nb: 2\r"
    assert rewrite_section(text, "s", {"x": 3, "y": 4}, "new") == text.replace("s:", "# mindswap: new\r\ns:")


def test_a_comment_of_ours_is_replaced_with_any_line_end():
    for newline in ("\n", "\r\n", "\r"):
        text = newline.join(["a: 1", "# mindswap: old", "# mindswap: older", "s: 1", ""])
        assert rewrite_section(text, "s", {}, "new") == newline.join(["a: 1", "# mindswap: new", "s: {}", ""])


# Lines.


LINES_TEXT = "a\r\nbc\rd\n\ne"  # lines begin at 0, 3, 6, 8, 9


def test_a_line_of_any_line_end():
    assert [line_start(LINES_TEXT, index) for index in (0, 1, 3, 4, 6, 9, 10)] == [0, 0, 3, 3, 6, 9, 9]
    assert [line_end(LINES_TEXT, index) for index in (0, 3, 6, 8, 9)] == [1, 5, 7, 8, 10]
    assert [after_line(LINES_TEXT, index) for index in (0, 4, 6, 8, 9)] == [3, 6, 8, 9, 10]


def test_the_line_above():
    assert [line_above(LINES_TEXT, start) for start in (3, 6, 8, 9)] == [0, 3, 6, 8]


def test_the_last_line_ends_like_the_one_above():
    assert [newline_at(LINES_TEXT, index) for index in (0, 3, 6)] == ["\r\n", "\r", "\n"]
    assert newline_at("a\r\nb", 3) == "\r\n"
    assert newline_at("a", 0) == "\n"
