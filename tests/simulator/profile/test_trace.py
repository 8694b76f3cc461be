"""Copies of a trace in every spelling, read piece by piece; foreign and broken traces."""

import json

import pytest

from mindswap.errors import CostError
from mindswap.simulator.profile import trace as profile_trace
from mindswap.simulator.profile.profile import ProfiledCopy
from mindswap.simulator.profile.trace import read_copies
from tests.simulator.cost.profiles import copy, new_copy, write_json, write_trace

START = 1717575960 * 10**9
KERNEL = {"name": "MatMul", "ph": "X", "ts": "1", "dur": 1, "args": {"call stack": 'a\r\nb [1, {2}] \\" é'}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace_view.json"


def test_the_spelling_of_cann_8(path):
    events = [
        new_copy(2000.5, 1202.5, 16777216, "host to device"),
        new_copy(3000, 2.26, 1168, "host to device ex"),
        new_copy(1000, 4241.26, 67108864),
        new_copy(0, 5, 64, "device to device"),
        KERNEL,
    ]
    write_trace(path, events)
    assert read_copies(path, 3) == (
        [
            ProfiledCopy(START + 2_000_500, 1_202_500, 16777216, False, 3),
            ProfiledCopy(START + 3_000_000, 2_260, 1168, False, 3),
            ProfiledCopy(START + 1_000_000, 4_241_260, 67108864, True, 3),
        ],
        0,
    )


def test_the_spelling_before(path):
    write_trace(path, [copy(2000.5, 1202.5, 16777216, "host to device"), copy(0, 1, 64), copy(9, 1, 0)])
    assert read_copies(path) == (
        [ProfiledCopy(START + 2_000_500, 1_202_500, 16777216, False), ProfiledCopy(START, 1_000, 64, True)],
        0,
    )


def test_level_1_has_no_sizes_and_copies_within_the_device_do_not_count(path):
    within = copy(5, 1, None)
    within["args"]["Task Type"] = "SDMA_SQE"
    write_trace(path, [copy(0, 100, None), copy(200, 100, None), within])
    assert read_copies(path) == ([], 2)


def test_only_what_ran_and_is_a_copy_counts(path):
    """A flow event of the copy, and a kernel that has the arguments of one."""
    write_trace(path, [new_copy(0, 1, 64) | {"ph": "s"}, new_copy(0, 1, 64) | {"name": "MatMul"}, new_copy(0, 1, 128)])
    assert [found.size_bytes for found in read_copies(path)[0]] == [128]


def test_an_object_with_the_events_in_it(path):
    write_json(path, {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [new_copy(0, 1, 64)], "x": 3})
    assert len(read_copies(path)[0]) == 1


def test_an_empty_list(path):
    path.write_text(" [ ] ")
    assert read_copies(path) == ([], 0)


@pytest.mark.parametrize("num_chars", [1, 7, 100])
def test_pieces_may_end_anywhere(path, monkeypatch, num_chars):
    monkeypatch.setattr(profile_trace, "CHUNK_CHARS", num_chars)
    path.write_text(json.dumps([KERNEL, new_copy(0, 1, 64), KERNEL, new_copy(5, 1, 128)], indent=1, ensure_ascii=False))
    told = []
    assert [found.size_bytes for found in read_copies(path, 0, told.append)[0]] == [64, 128]
    assert sum(told) == len(path.read_text())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "begins with neither"),
        ("null", "begins with neither"),
        ("{}", "has no list traceEvents"),
        ('{"traceEvents": 3}', "has no list traceEvents"),
        ("[1]", "event 0 is no object"),
        ('[{"name": "a"}, {"name": ', r"character 16"),
        ('[{"name": "a"}', "was the profiler stopped"),
        ("[nonsense]", r"Expecting value \(character 1\)"),
        ("[" * 100_000, "recursion"),
        (b"[\xff\xfe]", "invalid start byte"),
    ],
)
def test_foreign_traces(path, content, said):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CostError, match=f"trace_view.json: is no trace of the profiler.*{said}"):
        read_copies(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"dur": "long"},
        {"dur": None},
        {"ts": -5},
        {"args": {"data size(Byte)": "many", "memcpy direction": "device to host"}},
        {"args": {"data size(Byte)": 1e300, "memcpy direction": "device to host"}},
    ],
)
def test_a_broken_copy_has_its_place(path, changes):
    write_trace(path, [KERNEL, new_copy(0, 1, 64) | changes])
    with pytest.raises(CostError, match=r"trace_view.json: event 2: '.*' is no time or size"):
        read_copies(path)


def test_an_event_without_an_end_is_given_up(path, monkeypatch):
    monkeypatch.setattr(profile_trace, "MAX_EVENT_CHARS", 1000)
    monkeypatch.setattr(profile_trace, "CHUNK_CHARS", 100)
    path.write_text('[{"a": "' + "x" * 10_000)
    told = []
    with pytest.raises(CostError, match=r"\(character 1\)"):
        read_copies(path, 0, told.append)
    assert sum(told) == 1100
