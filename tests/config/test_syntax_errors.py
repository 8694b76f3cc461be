"""Mistakes of typing in a configuration: the problem stands where the mistake is, and says what was meant."""

import pytest

from mindswap.config.characters import ASCII_OF
from mindswap.config.parse import parse_document
from tests.builders import check

TEXT = """\
trainer:
  type: Trainer
output_dir: './output'
swap_config:
  swap: True
  layer_swap:
    - {backward_prefetch: 20, layers: [0, 1]}
  op_swap:
    - op_name: 'attention\\.wq'
      backward_prefetch: 10
      layers: ['0-1', 2]
    - {op_name: "feed_forward", backward_prefetch: 10, layers: [0]}
run_mode: 'train'
load_checkpoint: ''
"""
PLACES = [(number, column) for number, line in enumerate(TEXT.splitlines(), 1) for column in range(1, len(line) + 1)]


def at(place):
    return TEXT.splitlines()[place[0] - 1][place[1] - 1]


def changed(place, character):
    lines = TEXT.splitlines()
    number, column = place
    line = lines[number - 1]
    lines[number - 1] = line[: column - 1] + character + line[column:]
    return "\n".join(lines) + "\n"


OPENING, CLOSING = [], []  # places of quotes
for _number, _line in enumerate(TEXT.splitlines(), 1):
    _quotes = [column for column, character in enumerate(_line, 1) if character in "'\""]
    OPENING += [(_number, column) for column in _quotes[::2]]
    CLOSING += [(_number, column) for column in _quotes[1::2]]


@pytest.mark.parametrize("place", CLOSING)
def test_a_quote_that_is_not_closed_is_found_where_it_begins(place):
    (problem,) = parse_document(changed(place, ""), "x.yaml").problems
    begin = max(opening for opening in OPENING if opening < place)
    assert (problem.location.line, problem.location.column) == begin
    assert problem.message == "the quoted text that begins here is not closed in its line"
    assert problem.fix == TEXT.splitlines()[begin[0] - 1][begin[1] - 1 : place[1]]


def test_a_text_of_several_lines_is_no_mistake():
    """The mistake is in line 4."""
    text = "a: 'one\n  two, three\n  four'\nb: [1, 2\nc: 3\n"
    (problem,) = parse_document(text, "x.yaml").problems
    assert problem.location.line == 4 and "list in brackets" in problem.message


FULL_WIDTH = {ascii: wide for wide, ascii in ASCII_OF.items() if ascii and 0xFF00 < ord(wide) < 0xFFEF}
FULL_WIDTH |= {" ": "\u00a0"}
STRUCTURE = [
    place
    for place in PLACES
    if at(place) in "{}[],:'\"- " and place[0] > 3  # in swap_config, and of the last two lines
]


@pytest.mark.parametrize("place", STRUCTURE)
def test_a_full_width_character_is_named_with_its_place(place):
    """Any one character of punctuation."""
    text = changed(place, FULL_WIDTH[at(place)])
    problems = check(text, None).problems
    named = [problem for problem in problems if "YAML reads the character" in problem.message]
    assert (named[0].location.line, named[0].location.column) == place
    assert f"U+{ord(FULL_WIDTH[at(place)]):04X}" in named[0].message
