"""The data of a file is what `yaml.safe_load`, and so MindFormers, makes of it."""

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mindswap.config import parse
from mindswap.config.nodes import DocumentNode, MappingEntry, to_data
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level, Location, find_errors
from mindswap.config.safe_load import find_load_problem
from tests.strength import examples

# Keys of one character are one object in Python, longer ones are not: PyYAML 6.0.4 compares them by identity.
KEYS = st.sampled_from(["x", "y", "swap", "op_swap", "default_prefetch", "7", "10", "0x0A", "=", "'x'", "on", "1e5"])
SCALARS = st.sampled_from(["1", "2", "yes", "010", "1:30", "1e5", "2024-01-31", "~", ".inf", "'1'", "0o7", "[a, b]"])
NAMES = tuple(f"m{i}" for i in range(6))


@st.composite
def mappings(draw, names, depth=1):
    """A mapping in flow style that merges any of the named ones, once or more, and repeats keys."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["scalar", "scalar", "mapping", "merge", "merge list", "merge inline"]))
        alias = st.sampled_from(names).map("*{}".format) if names else st.just("{}")
        if kind == "merge":
            parts.append(f"<<: {draw(alias)}")
        elif kind == "merge list":
            parts.append(f"<<: [{', '.join(draw(st.lists(alias, max_size=3)))}]")
        elif kind == "scalar" or depth == 0:
            parts.append(f"{draw(KEYS)}: {draw(SCALARS)}")
        else:
            key = "<<" if kind == "merge inline" else draw(KEYS)
            parts.append(f"{key}: {draw(mappings(names, depth - 1))}")
    return "{" + ", ".join(parts) + "}"


@st.composite
def files(draw):
    """Six anchored mappings, each of which may merge those above it, and an anchor that is given twice."""
    lines = [f"{name}: &{name} {draw(mappings(NAMES[:i]))}" for i, name in enumerate(NAMES)]
    return "\n".join([*lines, f"last: {draw(mappings(NAMES))}"])


@pytest.mark.parametrize("max_chars", [0, 10**6], ids=["C loader", "Python loader"])
@settings(max_examples=examples(80, 3000), deadline=None)
@given(text=files())
def test_any_merge_gives_the_data_of_safe_load(max_chars, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse, "MAX_CHARS_OF_SLOW_LOADER", max_chars)
        document = parse_document(text, "x.yaml")
    errors = find_errors(document.problems)
    assume([problem.rule for problem in errors] != ["yaml-depth"])  # merges in merges in merges
    assert errors == ()
    data = yaml.safe_load(text)
    assert repr(sorted_data(to_data(document.root))) == repr(sorted_data(data))


def sorted_data(data):
    """Mappings with their keys in one order, which differs and means nothing."""
    if isinstance(data, dict):
        return {key: sorted_data(data[key]) for key in sorted(data, key=repr)}
    return [sorted_data(value) for value in data] if isinstance(data, list) else data


OVERLAP = """
a: &a {swap: 1, mode: 3}
b: &b {swap: 2, mode: 3}
"""


@pytest.mark.parametrize(
    "text", ["c: {<<: [*a, *b]}", "c: {<<: *a, <<: *b}", "c: {<<: *b, swap: 3}\nd: &d {<<: *a}\ne: {<<: [*d, *b]}"]
)
def test_a_merge_whose_meaning_depends_on_the_version_of_pyyaml_is_a_warning(text):
    """`mode` is equal in both, and a key of the mapping itself wins in every version."""
    (problem,) = parse_document(OVERLAP + text, "x.yaml").problems
    assert (problem.level, problem.rule) == (Level.WARNING, "yaml-merge")
    assert ".swap: two merged mappings have it" in problem.message
    assert {"x.yaml:2:8", "x.yaml:3:8"} == {word.strip(",") for word in problem.message.split() if "x.yaml" in word}


@pytest.mark.parametrize(
    ("text", "place", "key"),
    [
        ("a:\n  s: !!set {x, y}", "x.yaml:2:6", "a.s:"),
        ("a: !!omap [x: 1, y: 2]", "x.yaml:1:12", "a[0]:"),
        ("a: [1, !!pairs [x: 1]]", "x.yaml:1:17", "a[1][0]:"),
    ],
)
def test_other_data_than_mindformers_loads_is_an_error_with_key_and_place(text, place, key):
    (problem,) = parse_document(text, "x.yaml").problems
    assert problem.level is Level.ERROR
    assert str(problem.location) == place
    assert problem.message.startswith(f"{key} PyYAML ")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"a": 2}, "a: PyYAML {}, and so MindFormers, reads 1, and mindswap 2"),
        ({"a": True}, "a: PyYAML {}, and so MindFormers, reads 1, and mindswap True"),
        ({}, "a: PyYAML {}, and so MindFormers, reads the key, and mindswap no such key"),
        ({"a": 1, "b": 1}, "b: PyYAML {}, and so MindFormers, reads no such key, and mindswap the key"),
    ],
)
def test_a_wrong_reading_of_ours_would_be_found(entries, message):
    place = Location("x.yaml", 1, 1)
    root = DocumentNode(
        place, entries=tuple(MappingEntry(key, place, DocumentNode(place, value)) for key, value in entries.items())
    )
    problem = find_load_problem(yaml.parse("a: 1"), root, "x.yaml")
    assert problem is not None and problem.message == message.format(yaml.__version__)


def test_shared_values_are_compared_once():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    assert parse_document("\n".join(lines), "x").problems == ()


def test_a_chain_of_merges_that_pyyaml_cannot_follow_is_a_problem():
    """It flattens level by level; a chain that begins far inside is followed by recursion."""
    chain = "\n".join(f"  - [[&m{i} {{<<: *m{i - 1}, k{i}: 1}}]]" for i in range(1, 1500))
    text = f"a:\n  - [[[[&m0 {{k0: 1}}]]]]\n{chain}\nb: {{<<: *m1499}}"
    with pytest.raises(RecursionError):
        yaml.safe_load(text)
    assert [p.rule for p in find_errors(parse_document(text, "x").problems)] == ["yaml-merge"]
