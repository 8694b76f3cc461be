"""Write a step in formats of other tools: profiler folders, one per rank, and memory snapshots.

The folders are for MindStudio Insight and msprof-analyze. Files and columns are those of MindSpore's profiler
(`ascend_ms`). A simulated step has all of them (`features/simulate/insight.py`). A dry run has no times, but memory and
the order of operators: there a microsecond represents one tick of MindSpore's memory tracker.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from mindswap.files import package_data, require_folder, write_new

START_US = 1_000_000  # start of the step; readers interpret 0 as no time
HARDWARE = 1  # process of the trace
HARDWARE_NAME = "Ascend Hardware"
_MIB, _KIB = 2**20, 2**10
Files = dict[str, str]  # name -> text


@dataclass(frozen=True)
class Piece:
    """Lifetime of one tensor, in microseconds and in positions of operators; `end_us` None: never freed."""

    name: str
    size_bytes: int
    start_us: float
    end_us: float | None
    first_node: int
    last_node: int
    stream: int = 0


def write_folders(folder: Path, ranks: Iterable[tuple[int, Files]], title: str, origin: str) -> None:
    """Write `rank_N_ascend_ms` for each rank.

    Args:
        folder: output folder, created if it is missing.
        ranks: number and files of each rank.
        title: name of the configuration.
        origin: origin of the figures, a remark that nothing was measured.

    Raises:
        DataError: if it cannot be written.
    """
    require_folder(folder)
    for rank, files in ranks:
        top = folder / f"rank_{rank}_ascend_ms"
        about = {"rank_id": rank, "made_by": "mindswap", "what": origin, "title": title}
        write_new(top / f"profiler_info_{rank}.json", json.dumps(about, indent=1) + "\n", overwrite=True)
        for name, text in files.items():
            write_new(top / "ASCEND_PROFILER_OUTPUT" / name, text, overwrite=True)


def trace_names(processes: Mapping[int, str], threads: Iterable[tuple[int, int, str]]) -> list[dict[str, Any]]:
    """Return the events that name processes and threads; a thread is (process, number, name)."""
    rows = [("process", process, 0, name, process) for process, name in processes.items()]
    rows += [("thread", process, thread, name, thread) for process, thread, name in threads]
    return [
        {"ph": "M", "name": f"{owner}_{key}", "pid": process, "tid": thread, "args": {argument: value}}
        for owner, process, thread, name, order in rows
        for key, argument, value in (("name", "name", name), ("sort_index", "sort_index", order))
    ]


def memory_files(pieces: Sequence[Piece], rank: int, title: str, end_us: float) -> Files:
    """Return `memory_record.csv`, `operator_memory.csv` and `static_op_mem.csv`."""
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
    """Format tables as CSV, by file name; `data/report/insight.json` has the columns of each file."""
    columns = package_data("report/insight.json")
    files = {}
    for name, rows in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns[name], *rows])
        files[name] = text.getvalue()
    return files


# Memory of a dry run as a PyTorch snapshot, for pytorch.org/memory_viz and MindStudio Insight.
