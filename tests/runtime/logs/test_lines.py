"""Lines of logs: what is a message, what a Set line says."""

import pytest

from mindswap.runtime.logs.oom import clean_line, parse_set_line, split_messages, without_header
from tests.runtime.logs.samples import EXPECTED, info


@pytest.mark.parametrize("lines", EXPECTED)
def test_a_line_of_mindswap_reads_back_as_written(lines):
    line = parse_set_line(info(lines[0]))
    assert (line.text, line.is_upstream) == (lines[0], False)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        # transformer/utils.py:339, :318 and :346 of mindformers 1.9.0, with the spaces of their source lines.
        (
            "Set op_swap at layer 0:  attention.flash_attention, value=10",
            "Set op_swap at layer 0: attention.flash_attention, value=10",
        ),
        (f"Set layer swap at layer 3 {' ' * 28}and value is: 20", "Set layer swap at layer 3 and value is: 20"),
        (f"Set layer swap at layer 3 {' ' * 32}and value is: 20", "Set layer swap at layer 3 and value is: 20"),
    ],
)
def test_double_spaces_are_those_of_mindformers(message, text):
    line = parse_set_line(info(message))
    assert (line.text, line.is_upstream) == (text, True)


def test_where_the_texts_are_equal_the_source_file_tells():
    file = "mindformers/parallel_core/training_graph/transformer/utils.py:339"
    assert parse_set_line(info(EXPECTED[0][0], file)).is_upstream
    # The plugin installed below a folder with that name.
    assert not parse_set_line(
        info(EXPECTED[0][0], "mindformers/venv/lib/mindswap/adapters/graph/apply.py:47")
    ).is_upstream


@pytest.mark.parametrize(
    "message",
    [
        "Set op_swap at layer 0: .attention, value=",
        "Set op_swap at layer 0: .attention, value=20, .feed",
        "Set op_swap at layer 0:",
        "Set op_swap at layer",
        "Set layer swap at layer 0 and value",
        "Set select recompute at layer 0: ",
        "Set op_swap at layer 0: .attSet op_swap at layer 1: .attention, value=20",
        "Set Dynamic Shape Attr to Node",
        "",
    ],
)
def test_a_part_of_a_line_is_no_line(message):
    assert parse_set_line(info(message)) is None


def test_titles_of_recompute():
    titles = [
        parse_set_line(text).title
        for text in (
            "Set full recompute at layer 1",
            "Set select recompute at layer 1: feed_forward",
            "Set select comm recompute at layer 1: a.norm, b.norm",
            "Set select recompute exclude at layer 1: mul",
            "Set select comm recompute exclude at layer 11: mul",
        )
    ]
    assert titles == [
        "full recompute",
        "select recompute",
        "select comm recompute",
        "select recompute exclude",
        "select comm recompute exclude",
    ]


def test_colours_and_bytes_that_are_no_text():
    assert clean_line(b"\x1b[1;32mSet\x1b[0m \xff\x1b[K.") == "Set \ufffd."


def test_a_header_in_the_middle_begins_a_message():
    first, second = info("one")[:-1], info("two")[:-1]
    assert split_messages(first + second) == [first, second]
    assert split_messages("no header") == ["no header"]


def test_without_time_process_and_place():
    glog = "[ERROR] DEVICE(170414,fffe397fa1e0,python):2021-09-13-15:29:07.465.388 [mindspore/a.cc:62] Malloc] Failed"
    assert without_header(glog) == "Failed"
    assert without_header(info("Failed", level="ERROR")) == "Failed\n"
    assert without_header("ValueError: [x] - no") == "ValueError: [x] - no"
