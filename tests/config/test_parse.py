import random
import time

import pytest
import yaml

from mindswap.config import parse
from mindswap.config.nodes import expanded_size, show, to_data
from mindswap.config.parse import parse_document, parse_file
from tests.strength import examples


@pytest.fixture(params=["C loader", "Python loader"], autouse=True)
def loader(request, monkeypatch):
    """Every test runs with both of PyYAML's parsers: the size of a file decides, and the machine has one or both."""
    if request.param == "Python loader":
        monkeypatch.setattr(parse, "LOADER", yaml.SafeLoader)
    else:
        monkeypatch.setattr(parse, "MAX_CHARS_OF_SLOW_LOADER", 0)


def problems(content):
    return [(p.location.line, p.location.column, p.rule) for p in parse_document(content, "x.yaml").problems]


def test_every_key_and_value_has_its_place():
    document = parse_document("a:\n  b: [1, {c: x}]\n", "x.yaml")
    assert str(document.root.entry("a").location) == "x.yaml:1:1"
    items = document.get("a", "b")
    assert str(items.location) == "x.yaml:2:6"
    assert [str(item.location) for item in items.items] == ["x.yaml:2:7", "x.yaml:2:10"]
    assert str(items.items[1].entry("c").location) == "x.yaml:2:11"
    assert str(items.items[1].get("c").location) == "x.yaml:2:14"


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "1.5",
        "1.e-5",
        "'1'",
        "true",
        "off",
        "null",
        "~",
        "0x1F",
        "1_000",
        "0o7",
        "010",
        "1:30",
        ".inf",
        "2024-01-31",
        "0-3",
    ],
)
def test_scalars_are_what_pyyaml_makes_of_them(text):
    assert parse_document(f"a: {text}", "x").get("a").value == yaml.safe_load(f"a: {text}")["a"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", [(1, 1, "yaml-syntax")]),
        (b"# nothing\n", [(1, 1, "yaml-syntax")]),
        (b"null", [(1, 1, "yaml-syntax")]),
        (b"- a\n- b\n", [(1, 1, "yaml-syntax")]),
        (b"just text", [(1, 1, "yaml-syntax")]),
        (b"a: 1\n\tb: 2\n", [(2, 1, "yaml-syntax")]),
        (b"a: [1, 2\nb: 3\n", [(1, 4, "yaml-syntax")]),
        (b"a: 1\n---\nb: 2\n", [(2, 1, "yaml-syntax")]),
        (b"a: \xff\xfe", [(1, 4, "yaml-encoding")]),
        ("ä: 1\nb: ü".encode("latin-1"), [(1, 1, "yaml-encoding")]),
        ("a: 1".encode("utf-16"), [(1, 1, "yaml-encoding")]),
        (b"a: 1\nb: \x00", [(2, 4, "yaml-syntax")]),
        (b"a: 1\nb: \x1b[31m", [(2, 4, "yaml-syntax")]),
        (bytes(range(256)), [(2, 118, "yaml-encoding")]),
        (b"a: *b", [(1, 4, "yaml-alias")]),
        (b"a: &a [*a]", [(1, 8, "yaml-alias")]),
        (b"a: &a {b: {c: *a}}", [(1, 15, "yaml-alias")]),
        (b"&a {b: *a}", [(1, 8, "yaml-alias")]),
        (b"[a, b]: 1\nc: 2", [(1, 1, "yaml-key")]),
        (b"{{a: 1}: 2, c: 3}", [(1, 2, "yaml-key")]),
        (b"a: !!python/object:os.system x", [(1, 4, "yaml-tag")]),
        (b"a: !!python/object/apply:os.system [ls]", [(1, 4, "yaml-tag")]),
        (b"a: !mine {b: 1}", [(1, 4, "yaml-tag")]),
        (b"a: !!int x", [(1, 4, "yaml-value")]),
        (b"a: !!float x", [(1, 4, "yaml-value")]),
        (b"a: !!bool x", [(1, 4, "yaml-value")]),
        ("a: !!binary ä".encode(), [(1, 4, "yaml-value")]),
        (b"a: !!timestamp x", [(1, 4, "yaml-value")]),
        (b"a: 2024-99-99", [(1, 4, "yaml-value")]),
        (b"a: =", [(1, 4, "yaml-tag")]),
        (b"a: " + b"1" * 5000, [(1, 4, "yaml-value")]),
        (b"a: 0x" + b"f" * 5000, [(1, 4, "yaml-value")]),
        (b"? 0x" + b"f" * 5000 + b"\n: 1", [(1, 3, "yaml-value")]),
        (b"a: {<<: 3}", [(1, 9, "yaml-merge")]),
        (b"a: {<<: [3]}", [(1, 9, "yaml-merge")]),
        (b"a: " + b"[" * 900, [(1, 67, "yaml-depth")]),
        (b"{a: " * 100_000, [(1, 257, "yaml-depth")]),
        (b"- " * 50_000, [(1, 129, "yaml-depth")]),
    ],
)
def test_what_is_wrong_becomes_a_problem_with_its_place(content, expected):
    assert problems(content) == expected


@pytest.mark.parametrize(
    ("content", "message", "fix"),
    [
        ("a:\n  b: true\n   c: 3\n", "wrong indentation: 3 spaces", "indent the line by 2 spaces"),
        ("a:\n    b: true\n  c: 3\n", "wrong indentation: 2 spaces", "indent the line by 4 spaces"),
        ("a: 1\n b: 2\n", "wrong indentation: 1 space,", "indent the line by 0 spaces"),
        ("a:\n  - b: 1\n   c: 2\n", "wrong indentation: 3 spaces", "indent the line by 4 spaces"),
        (
            'a:\n  - op_name: "attention\\.x"\n',
            "in double quotes '\\' begins an escape",
            r"single quotes: 'attention\.x'",
        ),
        ("a: b: c\n", "a second ': ' in one line", "put the value in quotes, or begin a new line"),
        ("a: [1, 2\nb: 3\n", "the list in brackets that begins here is not", "add ']' at its end; line 2 does not fit"),
        ("a: {b: 1\nc: 2\n", "the mapping in brackets that begins here", "add '}' at its end; line 2 does not fit"),
        ('a: "x\nb: 2\n', "the quoted text that begins here is not closed in its line", '"x"'),
        (
            "a:\n  b: 1\n  word\nc: 2\n",
            "line 3 is not 'key: value'",
            "write 'key: value', or put the text after its key",
        ),
        (
            "a:\n  swap True\n  op_swap:\n    - b: 1\n",
            "line 2 is not 'key: value'",
            "write 'key: value', or put the text after its key",
        ),
        ("a: *w1\n", "the alias *w1 has no anchor", "put &w1 before a value above, or, for a text: '*w1'"),
        ("a: @x\n", "", "put the value in quotes, if it is a text"),
    ],
)
def test_a_mistake_in_the_text_says_what_to_do(content, message, fix):
    (problem,) = parse_document(content, "x.yaml").problems
    assert problem.message.startswith(message) and problem.fix == fix


def test_key_paths_stay_short():
    nested = "{" + "k" * 1000 + ": "
    document = parse_document(nested * 10 + "{a: 1, a: 2}" + "}" * 10, "x")
    assert len(document.duplicates[0].path) < 10 * 61 + 3


def test_a_byte_order_mark_is_skipped():
    document = parse_document(b"\xef\xbb\xbfa: 1", "x")
    assert document.get("a").value == 1 and document.problems == ()


def test_columns_count_characters():
    assert parse_document("ü: ü\n", "x").root.entries[0].value.location.column == 4


def test_duplicates_keep_both_places_and_the_last_value():
    document = parse_document("a: {b: 1, b: 2}\n1: x\n1: y\n", "x.yaml")
    assert [(d.path, d.location.column, d.first.column) for d in document.duplicates] == [("a.b", 11, 5), ("1", 1, 1)]
    assert document.get("a", "b").value == 2


def test_aliases_share_a_node():
    document = parse_document("a: &x {b: [1]}\nc: *x\n", "x")
    assert document.get("c") is document.get("a")


def test_merge_keys_follow_pyyaml():
    text = """
a: &a {x: 1, y: 1}
b: &b {y: 2, z: 2}
c: {<<: [*a, *b], x: 3}
d: {<<: *a, q: 4}
e: &e {<<: *b}
f: {<<: *e, z: 5}
"""
    assert to_data(parse_document(text, "x").root) == yaml.safe_load(text)


def test_a_merged_value_keeps_its_place():
    assert parse_document("a: &a {x: 1}\nb: {<<: *a}\n", "x").get("b", "x").location.line == 1


def test_an_alias_bomb_is_never_written_out():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    document = parse_document("\n".join(lines), "x")
    assert document.problems == ()
    assert expanded_size(document.root) > 10**29
    assert show(document.get("a29")).startswith("[[[")
    assert len(show(document.get("a29"))) <= 60
    to_data(document.root)


def test_a_merge_bomb_is_stopped():
    keys = "\n".join(f"  k{i}: 0" for i in range(1000))
    text = f"a: &a\n{keys}\n" + "\n".join(f"b{i}: {{<<: *a}}" for i in range(1000))
    assert [rule for *_, rule in problems(text)] == ["yaml-merge"]


def test_megabytes_are_read(tmp_path, loader):
    num_lines = examples(2000, 10_000)
    if parse.LOADER is yaml.SafeLoader:
        pytest.skip("the Python parser needs a minute")
    path = tmp_path / "big.yaml"
    path.write_text("a:\n" + "- " + "x" * 1000 + "\n" + ("- " + "y" * 1000 + "\n") * num_lines)
    start = time.monotonic()
    assert len(parse_file(str(path)).get("a").items) == num_lines + 1
    assert time.monotonic() - start < 10


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(parse, "MAX_FILE_BYTES", 10)
    path = tmp_path / "big.yaml"
    path.write_text("a: 0123456789")
    assert [p.rule for p in parse_file(str(path)).problems] == ["yaml-file"]


@pytest.mark.parametrize("name", [".", "no/such/file.yaml", "with\0null.yaml", "x" * 5000])
def test_what_is_no_file(tmp_path, name):
    document = parse_file(str(tmp_path / name) if name != "." else str(tmp_path))
    assert document.root is None
    assert [p.rule for p in document.problems] == ["yaml-file"]


def test_a_file_without_permission(monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    problem = parse_file("secret.yaml").problems[0]
    assert (problem.rule, problem.message) == ("yaml-file", "the file cannot be read: Permission denied")


# What PyYAML's safe_load, and so MindFormers, refuses. Recorded with mindformers 1.9.0 (MindFormerConfig._file2dict).


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !!map x", (1, 4, "yaml-value")),
        ("a: !!seq {}", (1, 4, "yaml-value")),
        ("!!seq a: 1", (1, 1, "yaml-value")),
        ("a: !!omap [1]", (1, 12, "yaml-value")),
        ("a: !!pairs {}", (1, 4, "yaml-value")),
        ("a: <<", (1, 4, "yaml-value")),
        ("a: [<<]", (1, 5, "yaml-value")),
        ("a: &x 1\nb: &x 2", (2, 4, "yaml-value")),
        ("a: 1\n2: b", (2, 1, "yaml-key")),
        ("a: 1\nnull: b", (2, 1, "yaml-key")),
        ("2024-01-01: 1\n2024-01-01 10:00:00: b", (1, 1, "yaml-key")),
    ],
)
def test_what_mindformers_cannot_load_is_an_error(text, expected):
    with pytest.raises((yaml.YAMLError, TypeError, AttributeError)):
        sorted(yaml.safe_load(text).items())
    assert problems(text) == [expected]


@pytest.mark.parametrize("text", ["a: 1\t", "a:\t1", "a: [1,\t2]", "a: \tb"])
def test_tabs_are_judged_as_by_pyyaml(text):
    """libyaml takes some of the tabs that MindFormers' loader refuses; small files are read with the latter."""
    try:
        yaml.safe_load(text)
    except yaml.YAMLError:
        document = parse_document(text, "x")
        if parse.loader_for(text) is yaml.SafeLoader:
            assert document.problems[0].message == "tab used for indentation"
    else:
        assert parse_document(text, "x").problems == ()


def test_mindformers_takes_ten_mappings_in_each_other():
    """`a: {a: ...}`: the top level is the first; what is in a list does not count (check_yaml_depth_before_loading)."""
    assert problems("{a: " * 10 + "1" + "}" * 10) == []
    assert problems("{a: " * 11 + "1" + "}" * 11) == [(1, 41, "yaml-depth")]
    assert problems("{a: [" * 11 + "1" + "]}" * 11) == []
    assert problems("x: &x {a: {a: {a: {a: {a: 1}}}}}\ny: {a: {a: {a: {a: {a: *x}}}}}") == [(1, 23, "yaml-depth")]


def test_an_equals_sign_is_a_key_as_in_pyyaml():
    assert to_data(parse_document("=: 1", "x").root) == yaml.safe_load("=: 1") == {"=": 1}
    assert problems("a: =") == [(1, 4, "yaml-tag")]


FRAGMENTS = (
    *("a: ", "b: ", "- ", "? ", ": ", "{", "}", "[", "]", ", ", "&x ", "*x", "!!int ", "!!str ", "!!map ", "!!seq "),
    *("!!omap ", "!!binary ", "!!null ", "!!float ", "!x ", "! ", "'q'", '"d"', "|\n", "> \n", "\n", "\n  ", "\n    "),
    *("\t", " # c", "<<: ", "<<", "=", "---", "...", "1", "0o7", "1e3", "1:30", ".inf", "off", "~", "2024-99-99", "\r"),
    *("\x85", "\x07", "\u00e9", "x", "y: z", "k", "key: {a: 1}\n", "l: [1, 2]\n", "+", "_", "0x_", "@", "\r\n"),
)


def test_generated_files_are_loaded_as_mindformers_loads_them():
    """About one text in five can be loaded; what is accepted has the same data, the rest is refused."""
    rng = random.Random(16)
    num_accepted = 0
    num_texts = examples(1000, 4000)
    for _ in range(num_texts):
        text = "a: " + "".join(rng.choices(FRAGMENTS, k=rng.randint(1, 8)))
        try:
            data = dict(sorted(yaml.safe_load(text).items()))
        except Exception as error:  # noqa: BLE001 whatever stops MindFormers
            data = error
        document = parse_document(text, "x")
        if document.problems:
            continue
        if parse.loader_for(text) is not yaml.SafeLoader and not isinstance(data, dict):
            continue  # libyaml's grammar is a bit wider
        assert isinstance(data, dict), text
        num_accepted += 1
        if parse.loader_for(text) is yaml.SafeLoader:
            assert repr(dict(sorted(to_data(document.root).items()))) == repr(data), text
    assert num_accepted > num_texts / 10


def test_a_wide_character_is_placed_on_its_line_of_a_value():
    text = "a: &x 'b\n  c\n   d，e'\nf: ['：']\n"
    places = [(wide.location.line, wide.location.column) for wide in parse_document(text, "x.yaml").wide]
    assert places == [(3, 5), (4, 6)]
