"""A step in the forms that other tools open: folders of a profiler, one for each rank, and a snapshot of memory.

MindStudio Insight imports the folders, and msprof-analyze reads them.

The files and their columns are those of MindSpore's profiler (`ascend_ms`). A simulated step has all of them
(`simulation/insight.py`). A dry run has no times, but memory and the order of operators: there a microsecond stands for
a tick of MindSpore's memory tracker.
"""

import csv
import io
import json
import pickle
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from mindswap.files import package_data, require_folder, write_new
from mindswap.training.measure.overlap import union
from mindswap.training.measure.pool import DryRun
from mindswap.training.measure.stages import DryRunReport

START_US = 1_000_000  # of the step; readers take 0 for "no time"
HARDWARE = 1  # process of the trace
HARDWARE_NAME = "Ascend Hardware"
_MIB, _KIB = 2**20, 2**10
Files = dict[str, str]  # name -> text


@dataclass(frozen=True)
class Piece:
    """Memory of one tensor, in microseconds and in the order of operators; without an end it stays."""

    name: str
    size_bytes: int
    start_us: float
    end_us: float | None
    first_node: int
    last_node: int
    stream: int = 0


def write_folders(folder: Path, ranks: Iterable[tuple[int, Files]], title: str, what: str) -> None:
    """Write `rank_N_ascend_ms` for each rank into a folder, which is made if it is missing.

    Args:
        folder: where.
        ranks: number and files of each.
        title: of the configuration.
        what: says that nothing here was measured.

    Raises:
        DataError: it cannot be written.
    """
    require_folder(folder)
    for rank, files in ranks:
        top = folder / f"rank_{rank}_ascend_ms"
        about = {"rank_id": rank, "made_by": "mindswap", "what": what, "title": title}
        write_new(top / f"profiler_info_{rank}.json", json.dumps(about, indent=1) + "\n", overwrite=True)
        for name, text in files.items():
            write_new(top / "ASCEND_PROFILER_OUTPUT" / name, text, overwrite=True)


def write_dry_run(report: DryRunReport, folder: Path) -> None:
    """The ranks of a dry run; of a long model, its longest run.

    Raises:
        DataError: it cannot be written.
    """
    ranks = ((stage.run.rank, dry_run_files(stage.run, report.title)) for stage in report.stages)
    what = (
        "dry run without a card: sizes and order of operators, no times; 1 us is a tick of MindSpore's memory tracker"
    )
    write_folders(folder, ranks, report.title, what)


def dry_run_files(run: DryRun, title: str) -> Files:
    """Facts of a dry run: memory, and the order of operators as a trace in which each takes one tick."""
    ticks = sorted(run.operators)
    last = max([*ticks, *(tick for tick, _ in run.curve)], default=0) + 1
    nodes = np.array(ticks or [0])

    def node(tick: int) -> int:
        return max(int(np.searchsorted(nodes, tick, side="right")) - 1, 0)

    pieces = [
        Piece(
            block.name, block.size_bytes, START_US + block.start,
            None if block.end == sys.maxsize else START_US + block.end,
            node(block.start), node(min(block.end, last)), block.stream,
        )
        for block in sorted(run.blocks, key=lambda block: (block.start, block.end))
    ]  # fmt: skip
    events = [
        {"ph": "X", "name": name, "pid": HARDWARE, "tid": 0, "ts": START_US + tick, "dur": 1,
         "args": {"Task Type": "order only, no time", "Stream Id": 0, "Task Id": position}}
        for position, (tick, name) in enumerate(sorted(run.operators.items()))
    ]  # fmt: skip
    names = trace_names({HARDWARE: HARDWARE_NAME}, [(HARDWARE, 0, "Stream 0: order of operators, no times")])
    return {
        "trace_view.json": json.dumps([*names, *events]),
        **memory_files(pieces, run.rank, title, START_US + last),
    }


def trace_names(processes: Mapping[int, str], threads: Iterable[tuple[int, int, str]]) -> list[dict[str, Any]]:
    """Events that name processes, and threads by process and number, in this order."""
    rows = [("process", process, 0, name, process) for process, name in processes.items()]
    rows += [("thread", process, thread, name, thread) for process, thread, name in threads]
    return [
        {"ph": "M", "name": f"{what}_{key}", "pid": process, "tid": thread, "args": {argument: value}}
        for what, process, thread, name, order in rows
        for key, argument, value in (("name", "name", name), ("sort_index", "sort_index", order))
    ]


def memory_files(pieces: Sequence[Piece], rank: int, title: str, end_us: float) -> Files:
    """`memory_record.csv`, `operator_memory.csv` and `static_op_mem.csv`."""
    changes: Counter[float] = Counter()
    for piece in pieces:
        changes[piece.start_us] += piece.size_bytes
        changes[end_us if piece.end_us is None else piece.end_us] -= 0 if piece.end_us is None else piece.size_bytes
    times = sorted(changes)
    live = dict(zip(times, accumulate(changes[time] for time in times), strict=True))
    device = f"NPU:{rank}"
    record = [["MindSpore", f"{time:.3f}", *[live[time] / _MIB] * 3, 0, device] for time in times]
    operators = []
    for piece in pieces:
        at = [live[piece.start_us] / _MIB] * 3
        if piece.end_us is None:
            end, took, then = "", "", [""] * 3
        else:
            end, took = f"{piece.end_us:.3f}", f"{piece.end_us - piece.start_us:.3f}"
            then = [live[piece.end_us] / _MIB] * 3  # type: ignore[list-item]
        row = [piece.name, piece.size_bytes / _KIB, f"{piece.start_us:.3f}", end, end, took, took]
        operators.append([*row, *at, *then, piece.stream, device])
    nodes = [
        [rank, piece.name, title, 0, piece.first_node, piece.last_node, piece.size_bytes / _KIB] for piece in pieces
    ]
    return csv_files({"memory_record.csv": record, "operator_memory.csv": operators, "static_op_mem.csv": nodes})


def csv_files(tables: Mapping[str, Iterable[Sequence[Any]]]) -> Files:
    """Rows as tables, by the names of their files, which have their columns in `data/report/insight.json`."""
    columns = package_data("report/insight.json")
    files = {}
    for name, rows in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns[name], *rows])
        files[name] = text.getvalue()
    return files


# The memory of a dry run as a snapshot of torch, which pytorch.org/memory_viz and MindStudio Insight open.


_FIRST = 2**40  # address of the first block


def write_snapshot(report: DryRunReport, path: Path) -> None:
    """One device for each rank of the report; of a long model, the longest run.

    Raises:
        DataError: it cannot be written.
    """
    write_new(path, pickle.dumps(snapshot([stage.run for stage in report.stages]), protocol=4), overwrite=True)


def snapshot(runs: list[DryRun]) -> dict[str, Any]:
    """Allocations and frees by tick, in the form of `torch.cuda.memory._snapshot()`; a device is a run.

    MindSpore's tables have no addresses, so blocks are put into the first hole that is large enough: sizes and order
    are of the dry run, addresses and fragments are not. All is in one segment.
    """
    devices = [_events(run) for run in runs]
    return {
        "segments": [_segment(device, run) for device, run in enumerate(runs)],
        "device_traces": devices,
        "allocator_settings": {},
    }


def _changes(run: DryRun) -> list[tuple[int, bool, int]]:
    """Tick, whether a block is taken then, and which; what is given back makes room for what is taken."""
    real = [(i, block) for i, block in enumerate(run.blocks) if block.start < block.end and block.size_bytes]
    given = [(block.end, False, i) for i, block in real if block.end != sys.maxsize]
    return sorted([*given, *((block.start, True, i) for i, block in real)])


def _addresses(run: DryRun) -> tuple[dict[int, int], int]:
    """Address of each block, and the end of them all."""
    holes: list[tuple[int, int]] = []  # begin and end, rising
    found: dict[int, int] = {}
    end = _FIRST
    for _, is_taken, i in _changes(run):
        size = run.blocks[i].size_bytes
        if not is_taken:
            holes = union([*holes, (found[i], found[i] + size)])
            continue
        fitting = next((k for k, (first, last) in enumerate(holes) if last - first >= size), None)
        if fitting is None:
            found[i], end = end, end + size
        else:
            first, last = holes[fitting]
            found[i] = first
            holes[fitting : fitting + 1] = [(first + size, last)] if last - first > size else []
    return found, end


def _frames(run: DryRun, position: int) -> list[dict[str, Any]]:
    block = run.blocks[position]
    return [{"name": block.name, "filename": run.part(block), "line": max(block.start, 0)}]


def _events(run: DryRun) -> list[dict[str, Any]]:
    addresses, _ = _addresses(run)
    events = []
    for tick, is_taken, i in _changes(run):
        block = run.blocks[i]
        about = {"addr": addresses[i], "size": block.size_bytes, "stream": block.stream, "time_us": tick}
        for action in ("alloc",) if is_taken else ("free_requested", "free_completed"):
            events.append({"action": action, **about, "frames": _frames(run, i)})
    return events


def _segment(device: int, run: DryRun) -> dict[str, Any]:
    """Blocks at the end, and the holes between."""
    addresses, end = _addresses(run)
    stays = sorted((address, i) for i, address in addresses.items() if run.blocks[i].end == sys.maxsize)
    blocks: list[dict[str, Any]] = []
    at = _FIRST
    for address, i in [*stays, (end, None)]:
        if address > at:
            blocks.append(_block(at, address - at, "inactive", []))
        if i is not None:
            at = address + run.blocks[i].size_bytes
            blocks.append(_block(address, run.blocks[i].size_bytes, "active_allocated", _frames(run, i)))
    held = sum(run.blocks[i].size_bytes for _, i in stays)
    sizes = {"total_size": end - _FIRST, **dict.fromkeys(("allocated_size", "active_size", "requested_size"), held)}
    place = {"device": device, "address": _FIRST, "stream": 0, "segment_type": "large", "is_expandable": False}
    return {**place, **sizes, "frames": [], "blocks": blocks}


def _block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}
