"""Write a simulated step in the profiler format of MindStudio Insight and msprof-analyze."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mindswap.report.insight import (
    HARDWARE,
    HARDWARE_NAME,
    START_US,
    Files,
    Piece,
    csv_files,
    memory_files,
    trace_names,
    write_folders,
)
from mindswap.report.timeline_bars import AFTER, BarKind, Lane, NamedBar, name_bars
from mindswap.simulator.memory import interval_times
from mindswap.simulator.profile.overlap import union
from mindswap.simulator.program import OpKind
from mindswap.simulator.report_data import SimulationReport, StageReport

STEP = 1
COMMUNICATION, OVERLAP = 2, 3  # processes of the trace in addition to HARDWARE
_PROCESSES = {HARDWARE: HARDWARE_NAME, COMMUNICATION: "Communication", OVERLAP: "Overlap Analysis"}
_OVERLAPS = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
_CUBE = ("MatMul", "FlashAttention", "PromptFlash", "Conv")
_COMPUTES = (BarKind.FORWARD, BarKind.BACKWARD, BarKind.RECOMPUTE)
# As in a profile, a wait for another stage is a receive that has started.
_COMMUNICATES = (BarKind.COLLECTIVE, BarKind.BETWEEN_STAGES, BarKind.BUBBLE)
Spans = list[tuple[int, int]]  # start and end in ns, disjoint and ascending


def write_simulated(report: SimulationReport, folder: Path) -> None:
    """Write the folder of the first rank of each stage.

    Raises:
        DataError: if it cannot be written.
    """
    cards = report.num_cards // len(report.stages)
    ranks = ((stage.stage * cards, simulated_files(report, stage, stage.stage * cards)) for stage in report.stages)
    description = (
        f"simulated step on {report.device_title}; sizes of communication and waits for other ranks: not known, 0"
    )
    write_folders(folder, ranks, report.title, description)


def simulated_files(report: SimulationReport, stage: StageReport, rank: int) -> Files:
    """Return all files of a simulated stage."""
    rows = [_placed(bar) for bar in name_bars(report, stage.stage)]
    times = {name: _spans(rows, kinds) for name, kinds in (("compute", _COMPUTES), ("communication", _COMMUNICATES))}
    bubble = _spans(rows, (BarKind.BUBBLE,))
    pieces = _simulated_pieces(report, stage)
    step: Spans = [(0, report.step_time_ns)]
    exposed = _without(times["communication"], times["compute"])
    overlap = {
        "Computing": times["compute"],
        "Communication": times["communication"],
        "Communication(Not Overlapped)": exposed,
        "Free": _without(_without(step, times["compute"]), times["communication"]),
    }
    return {
        "trace_view.json": json.dumps([*_names(), *_kernel_events(rows), *_overlap_events(overlap)]),
        **csv_files(
            {
                "kernel_details.csv": _kernel_rows(rows, rank),
                "step_trace_time.csv": [_step_row(overlap, bubble, report.step_time_ns, rank)],
            }
        ),
        "communication.json": json.dumps({f"step{STEP}": _communication(rows)}),
        **memory_files(pieces, rank, report.title, _us(report.step_time_ns)),
    }


def _placed(bar: NamedBar) -> NamedBar:
    """Assign a bar to a lane: after the last operator the optimizer is compute, the rest is gradient reduction."""
    if bar.lane != AFTER:
        return bar
    if "optimizer" in bar.name:
        return replace(bar, lane=Lane.COMPUTE, kind=BarKind.BACKWARD)
    return replace(bar, lane=Lane.COMMUNICATION, kind=BarKind.COLLECTIVE)


def _type(bar: NamedBar) -> str:
    return bar.name.rpartition(" ")[2].rpartition(".")[2] or bar.name


def _hcom_name(bar: NamedBar, position: int) -> str:
    """Return the name of a communication operator as in profiles; a bubble is a waiting receive."""
    return f"hcom_{'receive' if bar.kind is BarKind.BUBBLE else _type(bar)}__{position}"


def _spans(rows: Sequence[NamedBar], kinds: Sequence[BarKind]) -> Spans:
    """Return the intervals in which any bar of these kinds runs."""
    return union((row.start_ns, row.start_ns + row.duration_ns) for row in rows if row.kind in kinds)


def _without(spans: Spans, excluded: Spans) -> Spans:
    """Return the parts of `spans` that do not overlap with `excluded`."""
    edges = [(time, step) for span in spans for time, step in zip(span, (1, -1), strict=True)]
    edges += [(time, step) for span in excluded for time, step in zip(span, (-2, 2), strict=True)]
    remaining: Spans = []
    depth = since = 0  # 1: in a span, and in none that is taken
    for time, step in sorted(edges):
        if depth == 1 and since < time:
            remaining.append((since, time))
        depth, since = depth + step, time
    return remaining


def _us(time_ns: int) -> float:
    return START_US + time_ns / 1000


def _names() -> list[dict[str, Any]]:
    threads = [(HARDWARE, int(lane), f"Stream {int(lane)}: {lane.title}") for lane in Lane]
    rows = {
        Lane.COMPUTE: "compute waits for another stage",
        Lane.COMMUNICATION: "collectives and sends",
        Lane.RECEIVING: "receives",
    }
    threads += [(COMMUNICATION, int(lane), f"Communication: {name}") for lane, name in rows.items()]
    threads += [(OVERLAP, position, name) for position, name in enumerate(_OVERLAPS)]
    return trace_names(_PROCESSES, threads)


def _slice(name: str, process: int, thread: int, start_ns: int, duration_ns: int, arguments: Any) -> dict[str, Any]:
    times = {"ts": f"{_us(start_ns):.3f}", "dur": duration_ns / 1000}
    return {"ph": "X", "name": name, "pid": process, "tid": thread, **times, "args": arguments}


def _kernel_events(rows: Sequence[NamedBar]) -> Iterable[dict[str, Any]]:
    for position, row in enumerate(rows):
        if row.kind in _COMMUNICATES:
            arguments = {"simulated": True, "operator": row.name}
            yield _slice(_hcom_name(row, position), COMMUNICATION, row.lane, row.start_ns, row.duration_ns, arguments)
            continue
        arguments = {"Model Id": 0, "Task Type": _task(row), "Stream Id": row.lane, "Task Id": position}
        if row.size_bytes:
            arguments["size(B)"] = row.size_bytes
        yield _slice(row.name, HARDWARE, row.lane, row.start_ns, row.duration_ns, arguments)


def _task(row: NamedBar) -> str:
    if row.kind.is_wait:
        return "EVENT_WAIT_SQE"
    if row.lane in (Lane.COPY_OUT, Lane.COPY_IN):
        return "PCIE_DMA_SQE"
    return "AI_CORE" if any(word in _type(row) for word in _CUBE) else "AI_VECTOR_CORE"


def _overlap_events(overlap: Mapping[str, Spans]) -> Iterable[dict[str, Any]]:
    for thread, name in enumerate(_OVERLAPS):
        for start, end in overlap[name]:
            yield _slice(name, OVERLAP, thread, start, end - start, {})


def _kernel_rows(rows: Sequence[NamedBar], rank: int) -> list[list[Any]]:
    unknown = ["N/A"] * 6
    table: list[list[Any]] = []
    end_ns: dict[int, int] = {}
    for position, row in enumerate(rows):
        if row.kind.is_wait or row.lane in (Lane.COPY_OUT, Lane.COPY_IN):
            continue
        waited = max(row.start_ns - end_ns.get(row.lane, 0), 0)
        end_ns[row.lane] = row.start_ns + row.duration_ns
        core = "HCCL" if row.kind in _COMMUNICATES else _task(row)
        times = [f"{_us(row.start_ns):.3f}", f"{row.duration_ns / 1000:.3f}", f"{waited / 1000:.3f}", 0]
        table.append([STEP, rank, 0, position, row.lane, row.name, _type(row), core, *times, *unknown])
    return table


def _step_row(overlap: Mapping[str, Spans], bubble: Spans, step_ns: int, rank: int) -> list[Any]:
    computing, communication, alone, free = (_length(overlap[name]) for name in _OVERLAPS)
    waited = _length(_without(bubble, overlap["Computing"]))
    values = (
        computing, alone, communication - alone, communication, free, step_ns - waited, waited, alone - waited, 0
    )  # fmt: skip
    return [rank, STEP, *(value / 1000 for value in values)]


def _length(spans: Spans) -> int:
    return sum(end - start for start, end in spans)


def _communication(rows: Sequence[NamedBar]) -> dict[str, Any]:
    """Return the times of each collective; waits for other ranks and sizes are not simulated, and are 0."""
    times_by_kind: dict[str, dict[str, Any]] = {"p2p": {}, "collective": {}}
    for position, row in enumerate(rows):
        if row.kind not in _COMMUNICATES:
            continue
        kind = "collective" if row.kind is BarKind.COLLECTIVE else "p2p"
        times_by_kind[kind][f"{_hcom_name(row, position)}@0"] = _communication_figures(row.duration_ns, row.start_ns)
    total = sum(row.duration_ns for row in rows if row.kind is BarKind.COLLECTIVE)
    times_by_kind["collective"]["Total Op Info"] = _communication_figures(total)  # readers want it, without any, too
    return times_by_kind


def _communication_figures(duration_ns: int, start_ns: int | None = None) -> dict[str, Any]:
    duration_ms = duration_ns / 1e6
    times = {
        "Elapse Time(ms)": duration_ms,
        "Transit Time(ms)": duration_ms,
        "Wait Time(ms)": 0,
        "Synchronization Time(ms)": 0,
        "Idle Time(ms)": 0,
        "Wait Time Ratio": 0,
        "Synchronization Time Ratio": 0,
    }
    start = {} if start_ns is None else {"Start Timestamp(us)": _us(start_ns)}
    none = {"Transit Size(MB)": 0, "Transit Time(ms)": 0, "Bandwidth(GB/s)": 0, "Large Packet Ratio": 0,
            "Size Distribution": {}}  # fmt: skip
    links = {link: none for link in ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")}
    return {"Communication Time Info": {**start, **times}, "Communication Bandwidth Info": links}


def _simulated_pieces(report: SimulationReport, stage: StageReport) -> list[Piece]:
    """Return the memory of the stage: static parts without an end, and every allocation."""
    timeline, program = report.timeline, report.timeline.program
    begin_ns, end_ns = interval_times(timeline)
    intervals = np.flatnonzero(
        (program.intervals.stage == stage.stage) & (begin_ns < end_ns) & (program.intervals.size_bytes > 0)
    )
    ops = np.arange(program.stage_starts[stage.stage], program.stage_starts[stage.stage + 1])
    starts = timeline.op_start_ns[ops[program.ops.kind[ops] < OpKind.COLLECTIVE]]

    def nodes(time_ns: np.ndarray, side: Any) -> list[int]:
        return np.maximum(np.searchsorted(starts, time_ns, side=side) - 1, 0).tolist()

    last = max(len(starts) - 1, 0)
    pieces = [Piece(part.title, size, START_US, None, 0, last) for part, size in stage.static_parts.items() if size]
    intervals = intervals[np.argsort(begin_ns[intervals], kind="stable")]
    columns = (intervals.tolist(), nodes(begin_ns[intervals], "right"), nodes(end_ns[intervals], "left"))
    for interval, first_node, last_node in zip(*columns, strict=True):
        name = str(program.labels[program.intervals.label[interval]])
        times = _us(int(begin_ns[interval])), _us(int(end_ns[interval]))
        pieces.append(Piece(name, int(program.intervals.size_bytes[interval]), *times, first_node, last_node))
    return pieces
