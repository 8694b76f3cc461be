"""The trace against the rules of the Trace Event Format, and a small one against times worked out by hand."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from numbers import Real

import pytest

from mindswap.features.simulate.trace import trace_events, write_trace
from tests.report.simulated import GIB, MIB, large_program, pipeline_report, report_of, small_report
from tests.simulator.builders import program_of

KEYS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "bp", "name", "cat", "id", "pid", "tid", "ts"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
}


def check_format(events: list[dict]) -> None:
    """Everything that a viewer relies on."""
    threads, slices, flows = set(), defaultdict(list), defaultdict(dict)
    for event in events:
        assert set(event) == KEYS[event["ph"]], event
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] != "M":
            assert isinstance(event["ts"], Real) and event["ts"] >= 0
        if event["ph"] == "M" and event["name"] == "thread_name":
            threads.add((event["pid"], event["tid"]))
        elif event["ph"] == "X":
            assert event["dur"] > 0 and event["name"]
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            assert event["ph"] not in flows[event["id"]], "an id is used twice"
            flows[event["id"]][event["ph"]] = event
        elif event["ph"] == "C":
            assert event["args"] and all(isinstance(size, int) and size >= 0 for size in event["args"].values())
    assert set(slices) <= threads
    assert len({thread for _, thread in threads}) == len(threads), "Perfetto wants thread ids of their own"
    for rows in slices.values():
        assert rows == sorted(rows)
        # Ends are sums of microseconds: exact to a picosecond.
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(rows)), "slices overlap"
    for flow in flows.values():
        assert set(flow) == {"s", "f"}, "an arrow without an end"
        assert flow["s"]["ts"] <= flow["f"]["ts"]
        for event in flow.values():
            starts = [start for start, end in slices[event["pid"], event["tid"]] if start <= event["ts"] < end]
            assert starts == [event["ts"]], "an arrow that touches no slice"


def only(events: list[dict], phase: str) -> list[dict]:
    return [event for event in events if event["ph"] == phase]


@pytest.mark.parametrize("report", [small_report(), pipeline_report(), report_of(large_program(2, 3, 3, 5))])
def test_the_format(report):
    events = list(trace_events(report))
    check_format(events)
    assert len(only(events, "s")) == len(report.timeline.program.copies)


def test_a_stage_that_sends_while_it_receives():
    # Stage 0 sends 2-12, stage 1 sends 3-13; each receives from 0 to 20 at once.
    program = program_of("F2 S10@0 V20 B5@2", "F3 S10@4 V20 B5@6")
    check_format(list(trace_events(report_of(program))))


def test_slices_of_a_small_step():
    events = list(trace_events(small_report()))
    rows = [(e["tid"], e["ts"], e["dur"], e["name"]) for e in only(events, "X")]
    compute, out, back, after = 10, 13, 14, 15
    assert rows == [
        (compute, 0, 2000, "ffn Mul"),
        (compute, 2000, 3000, "waits for an offload (D2H): ffn Mul"),
        (compute, 5000, 2000, "head MatMul"),
        (compute, 7000, 4000, "head MatMulGrad"),
        (compute, 11000, 5000, "waits for a prefetch (H2D): ffn Mul"),
        (compute, 16000, 4000, "ffn MulGrad"),
        (out, 2000, 3000, "ffn Mul"),
        (back, 11000, 5000, "ffn Mul"),
        (after, 20000, 5000, "optimizer"),
    ]
    assert only(events, "X")[6]["args"] == {"layer": 0, "micro_batch": 0, "bytes": 64 * MIB}
    stalls = [e["cat"] for e in only(events, "X") if e["cat"].startswith("stall")]
    assert stalls == ["stall,waits for an offload (D2H)", "stall,waits for a prefetch (H2D)"]


def test_an_arrow_from_copy_out_to_copy_in():
    events = list(trace_events(small_report()))
    assert [(e["ph"], e["tid"], e["ts"]) for e in events if e["ph"] in "sf"] == [("s", 13, 2000), ("f", 14, 11000)]


def test_memory_over_time():
    events = only(list(trace_events(small_report())), "C")
    levels = [(e["ts"], e["args"]["all"] - 4 * GIB) for e in events if "all" in e["args"]]
    assert levels == [(0, 64 * MIB), (5000, 32 * MIB), (11000, 64 * MIB), (20000, 0)]
    assert events[0]["args"] == {
        "static": 4 * GIB, "kept for backward": 0, "being offloaded": 64 * MIB, "prefetched": 0
    }  # fmt: skip


def test_streams_and_stages_have_names():
    events = list(trace_events(pipeline_report()))
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named[1, 10] == "compute" and named[2, 21] == "communication"
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["stage 0, simulated: small.yaml", "stage 1, simulated: small.yaml"]
    assert {e["cat"] for e in only(events, "X") if e["pid"] == 2} >= {"stall,bubble", "send, receive"}


def test_the_file_is_json_that_says_simulated(tmp_path):
    path = tmp_path / "step.json"
    write_trace(small_report(title='"</hostile>\n'), path)
    data = json.loads(path.read_text())
    assert data["otherData"]["simulated"] is True
    assert data["displayTimeUnit"] == "ms"
    check_format(data["traceEvents"])


def test_a_name_that_ends_with_gz_is_compressed(tmp_path):
    write_trace(small_report(), tmp_path / "step.json.gz")
    with gzip.open(tmp_path / "step.json.gz", "rt") as file:
        assert json.load(file)["traceEvents"]
