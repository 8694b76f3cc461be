from mindswap.config.parse import parse_document


def spans(text):
    """Key -> the characters of its value."""
    document = parse_document(text, "x")
    assert not document.problems
    return {key.text: text[value.start : value.end] for key, value in document.span.entries}


def test_values_from_their_first_to_their_last_character():
    text = "a: 1  # one\nb: [2, {c: 3}]\nd:\n  - 'e'\n  # below\nf: &x !!str 5\n"
    assert spans(text) == {"a": "1", "b": "[2, {c: 3}]", "d": "- 'e'", "f": "&x !!str 5"}


def test_a_text_block_ends_before_the_blank_lines_below():
    assert spans("a: |\n  one\n\n\nb: 1\n") == {"a": "|\n  one", "b": "1"}


def test_an_alias_has_its_own_place_and_knows_what_it_stands_for():
    text = "a: &x [1]\nb: *x\n"
    root = parse_document(text, "x").span
    (_, first), (_, second) = root.entries
    assert (text[second.start : second.end], second.alias_of) == ("*x", first)
    assert second not in list(first.walk()) and second in list(root.walk())


def test_a_key_that_stands_twice_has_two_places():
    """The nodes keep the last one only; an editor must see both."""
    document = parse_document("a: 1\na: 2\n", "x")
    assert [value.text for _, value in document.span.entries] == ["1", "2"]
