"""Sentences on the pages for users are short: tools/sentences.py counts them."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load_tool():
    spec = importlib.util.spec_from_file_location("sentences", ROOT / "tools" / "sentences.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()
LONG = "one " * 36 + "end."


@pytest.mark.parametrize("page", TOOL.PAGES)
def test_sentences_of_a_page_are_short(page):
    lengths = TOOL.read_sentences((ROOT / page).read_text("utf-8"))
    assert len(lengths.prose) >= 3
    assert lengths.too_long() == []
    assert lengths.average() < TOOL.MAX_AVERAGE


def test_sentences_of_paragraphs_lists_and_cells_are_counted():
    text = f"# Title here, not counted\n\nOne two three. Four five\nsix seven?\n\n- a b c\n- {LONG}\n\n| x | {LONG} |\n"
    lengths = TOOL.read_sentences(text)
    assert lengths.prose == ["One two three.", "Four five six seven?", "a b c", LONG]
    assert lengths.longest() == 37 and lengths.too_long() == [LONG, LONG]
    assert lengths.average() == (3 + 4 + 3 + 37) / 4


def test_code_comments_and_generated_tables_are_left_out():
    text = f"```text\n{LONG}\n```\n<!-- {LONG} -->\n<!-- models -->\n{LONG}\n<!-- end of models -->\nA `{LONG}` b.\n"
    assert TOOL.read_sentences(text).prose == ["A CODE b."]


def test_an_abbreviation_ends_no_sentence():
    assert TOOL.read_sentences("Some names, e.g. One and two.\n").prose == ["Some names, e.g One and two."]
