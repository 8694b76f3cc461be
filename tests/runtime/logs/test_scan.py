"""The scanner: every needed line in any block size, bounded memory, damaged logs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.runtime.logs.oom import MemoryStatistics, oom_forms
from mindswap.runtime.logs.scan import MAX_SET_LINES, NEEDLES, LogScanner
from mindswap.runtime.logs.search import WINDOWS, search_compiled
from tests.runtime.logs.samples import (
    CPU_NOTE,
    END,
    EXPECTED,
    OFFLOAD_WARNING,
    SET,
    START,
    STATISTICS,
    TRAIN,
    info,
    log_text,
    scan,
)
from tests.strength import examples

LINES = [lines[0] for lines in EXPECTED]
GIB = 1 << 30


def test_each_needle_has_a_window():
    assert all(any(window in needle for window in WINDOWS) for needle in NEEDLES)


def texts(log) -> list[str]:
    return [line.text for line in log.set_lines]


@pytest.mark.parametrize("block_bytes", [1, 7, 300, 1 << 20])
def test_the_size_of_the_blocks_does_not_matter(block_bytes):
    log = scan(log_text() + STATISTICS.format(used=100, actual=200), block_bytes=block_bytes)
    assert texts(log) == LINES
    assert (log.is_lazy_inline_on, log.is_finished, log.is_cut_off, log.broken_lines) == (True, True, False, ())
    assert log.memory.used_peak_bytes == 100 << 20


def test_windows_line_ends_colours_and_holes():
    text = log_text().replace("\n", "\r\n").replace("INFO", "\x1b[32mINFO\x1b[0m")
    data = text.encode().replace(b"Set", b"\0\0Set", 1) + b"\0" * 1000 + b"\xff\xfe\n"
    assert texts(scan(data)) == LINES


def test_a_progress_bar_before_the_line():
    assert texts(scan(" 10%|#  |\r 20%|## |\r" + SET[0])) == LINES[:1]


def test_a_line_that_another_line_broke_into_is_put_together():
    whole = SET[1].rstrip("\n")
    for cut in range(whole.index(" at layer ") + len(" at layer "), len(whole)):
        log = scan(SET[0] + whole[:cut] + START[0] + whole[cut:] + "\n" + SET[2])
        assert (texts(log), log.broken_lines) == ([LINES[0], LINES[1], LINES[2]], ()), cut
    assert [line.is_repaired for line in log.set_lines] == [False, True, False]
    # The end of line only: two ends of line follow.
    log = scan(whole + SET[2] + "\n" + SET[3])
    assert (texts(log), log.broken_lines) == ([LINES[2], LINES[1], LINES[3]], ())


def test_two_lines_may_break_into_one():
    whole = SET[1].rstrip("\n")
    log = scan(whole[:-9] + START[0] + whole[-9:-4] + START[2] + whole[-4:] + "\n")
    assert texts(log) == [LINES[1]]


def test_a_line_whose_end_is_nowhere_is_broken():
    log = scan(SET[1].rstrip("\n")[:-1] + START[0] + START[1])
    assert (texts(log), log.broken_lines) == ([], (LINES[1][:-1],))


def test_a_last_line_without_end_is_broken_not_another_policy():
    log = scan("".join(SET)[:-2])  # value=1
    assert (texts(log), log.broken_lines, log.is_cut_off) == (LINES[:3], (LINES[3][:-1],), True)


def test_marks():
    assert scan(info(CPU_NOTE)).is_cpu_run
    assert scan(info("Formative layer swap: []")).has_upstream_swap
    assert not scan(info("Formative select_recompute: {}")).has_upstream_swap
    log = scan((OFFLOAD_WARNING + "\n") * 3)
    assert log.num_offload_warnings == 3


def test_memory_statistics_are_the_highest():
    log = scan(STATISTICS.format(used=40_000, actual=50_000) + START[0] + STATISTICS.format(used=30_000, actual=60_000))
    mib = 1 << 20
    assert log.memory == MemoryStatistics(
        device_bytes=62420 * mib,
        available_bytes=58196 * mib,
        used_peak_bytes=40_000 * mib,
        actual_peak_bytes=60_000 * mib,
    )


def test_memory_statistics_of_other_versions():
    assert scan("Device HBM memory size: 32768M\n").memory.device_bytes == 32 * GIB
    assert scan("Actual peak memory usage: 1024M\n").memory.actual_peak_bytes == GIB
    assert scan("Used peak memory usage (without fragments): " + "9" * 5000 + "M\n").memory.used_peak_bytes is None


def test_equal_failures_once():
    line = "RuntimeError: Memory isn't enough and alloc failed, kernel name: x, alloc size: 64B.\n"
    assert len(scan(line * 50).oom_events) == 1


def test_every_form_of_oom_holds_a_needle():
    """Else the scanner would never look at its line."""
    for _, pattern in oom_forms():
        literal = pattern.pattern.replace("\\", "")
        assert any(needle.decode() in literal for needle in NEEDLES) or "EL0004" in literal, pattern


def test_memory_stays_bounded():
    scanner = LogScanner()
    for number in range(MAX_SET_LINES + 10):
        scanner.feed(info(f"Set layer swap at layer {number} and value is: 1").encode())
    for _ in range(100):
        scanner.feed(b"x" * 100_000)  # a line without end
    assert len(scanner._carry) < 2 << 20
    log = scanner.finish(0)
    assert (len(log.set_lines), log.num_lines_left_out) == (MAX_SET_LINES, 10)


def test_a_set_line_after_a_line_without_end():
    assert texts(scan(b"x" * (3 << 20) + b"\n" + SET[0].encode())) == LINES[:1]


def test_nothing_in_nothing():
    log = scan(b"")
    assert (log.set_lines, log.is_cut_off, log.is_finished) == ((), False, False)


def test_train_lines_hold_no_needle():
    """Most lines of a long run are these: they must cost one search each, no more."""
    assert not any(needle in line.encode() for line in TRAIN for needle in NEEDLES)
    assert any(needle in END[0].encode() for needle in NEEDLES)


# Needles and other words of logs, whole and in pieces, ends of lines, bytes that are no text.
PIECES = [
    *NEEDLES, *(needle[part:] for needle in NEEDLES for part in (1, 3)), *(needle[:-2] for needle in NEEDLES),
    *(line.encode() for line in SET[:2]), b"RuntimeError: Out of memory!!! Request memory size:1048576.\n",
    b"mindswap: peak memory 5 bytes used, 6 bytes reserved\n", b"\n", b"\r", b"[INFO] ", b"\xff\0", b"layer", b"x" * 70,
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60), st.sampled_from([7, 64, 1 << 16]))
@settings(max_examples=examples(150, 3000))
def test_the_compiled_search_finds_the_same(pieces, block_bytes):
    data = b"".join(pieces)
    assert scan(data, block_bytes=block_bytes, find=search_compiled) == scan(data, block_bytes=block_bytes)
