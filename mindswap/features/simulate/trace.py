"""Write a simulated step as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

Format: JSON object form of the Trace Event Format: slices `X`, flows `s` and `f`, counters `C`, names `M`;
times are microseconds. A stage is a process, a stream is a thread.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindswap.files import write_new
from mindswap.report.insight import trace_names
from mindswap.report.timeline_bars import AFTER, BAR_STYLES, MEMORY_STYLES, Lane, name_bars
from mindswap.simulator.report_data import SimulationReport, StageReport

THREADS_PER_STAGE = 10  # thread numbers are unique in a trace


def write_trace(report: SimulationReport, path: Path) -> None:
    """Write the trace, compressed if the path ends with `.gz`, which Perfetto supports, too.

    Raises:
        DataError: if the file cannot be written.
    """
    facts = {
        "simulated": True,
        "title": report.title,
        "device": report.device_title,
        "figures": {figure.name: figure.value for figure in report.figures},
        "step_time_ns": report.step_time_ns,
    }
    events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace_events(report))
    text = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n{events}\n]}}\n'
    write_new(path, gzip.compress(text.encode()) if path.suffix == ".gz" else text, overwrite=True)


def trace_events(report: SimulationReport) -> Iterator[dict[str, Any]]:
    """Yield the events of all stages: names, then per stage slices by stream and start, flows, and memory."""
    yield from _names(report)
    for stage in report.stages:
        yield from _slices(report, stage.stage)
        yield from _flows(report, stage.stage)
        yield from _counters(stage)


def _process(stage: int) -> int:
    return stage + 1  # 0 is the idle process in Perfetto


def _thread(stage: int, lane: int) -> int:
    return _process(stage) * THREADS_PER_STAGE + lane


def _names(report: SimulationReport) -> list[dict[str, Any]]:
    stages = [stage.stage for stage in report.stages]
    lanes = [(int(lane), lane.title) for lane in Lane]
    lanes += [(AFTER, "after the last operator")] if report.terms else []
    threads = [(_process(stage), _thread(stage, lane), title) for stage in stages for lane, title in lanes]
    return trace_names({_process(stage): f"stage {stage}, simulated: {report.title}" for stage in stages}, threads)


def _slices(report: SimulationReport, stage: int) -> Iterator[dict[str, Any]]:
    for bar in name_bars(report, stage):
        title = BAR_STYLES[bar.kind].title
        arguments = {"layer": bar.layer} if bar.layer >= 0 else {}
        arguments |= {"micro_batch": bar.micro_batch} if bar.micro_batch >= 0 else {}
        arguments |= {"bytes": bar.size_bytes} if bar.size_bytes else {}
        yield {
            "ph": "X",
            "name": bar.name,
            "cat": "term" if bar.lane == AFTER else f"stall,{title}" if bar.kind.is_wait else title,
            "pid": _process(stage),
            "tid": _thread(stage, bar.lane),
            "ts": bar.start_ns / 1000,
            "dur": bar.duration_ns / 1000,
            "args": arguments,
        }


def _flows(report: SimulationReport, stage: int) -> Iterator[dict[str, Any]]:
    """Yield the events of an arrow from each offload to the prefetch of the same tensor."""
    timeline = report.timeline
    takes_time = (timeline.out_end_ns > timeline.out_start_ns) & (timeline.in_end_ns > timeline.in_start_ns)
    for copy in np.flatnonzero((timeline.program.copies_stage == stage) & takes_time).tolist():
        flow = {"name": "swap", "cat": "swap", "id": copy + 1, "pid": _process(stage)}
        start_us, end_us = int(timeline.out_start_ns[copy]) / 1000, int(timeline.in_start_ns[copy]) / 1000
        yield {"ph": "s", **flow, "tid": _thread(stage, Lane.COPY_OUT), "ts": start_us}
        yield {"ph": "f", "bp": "e", **flow, "tid": _thread(stage, Lane.COPY_IN), "ts": end_us}


def _counters(stage: StageReport) -> Iterator[dict[str, Any]]:
    """Yield counters of device memory: by kind, static, and total."""
    memory = stage.memory
    kinds = {kind: style.title for kind, style in MEMORY_STYLES.items() if memory.by_kind_bytes[kind].any()}
    columns = memory.by_kind_bytes[list(kinds)].T.tolist()
    process = _process(stage.stage)
    for time_ns, sizes in zip(memory.time_ns.tolist(), columns, strict=True):
        sizes_by_kind = {"static": stage.static_bytes, **dict(zip(kinds.values(), sizes, strict=True))}
        event = {"ph": "C", "pid": process, "tid": 0, "ts": time_ns / 1000}
        yield {**event, "name": "memory by kind (bytes)", "args": sizes_by_kind}
        yield {**event, "name": "memory (bytes)", "args": {"all": sum(sizes_by_kind.values())}}
