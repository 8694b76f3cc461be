"""A step in the forms that other tools open: folders of a profiler, one for each rank, and a snapshot of memory.

MindStudio Insight imports the folders, and msprof-analyze reads them.

The files and their columns are those of MindSpore's profiler (`ascend_ms`). A simulated step has all of them
(`simulation/insight.py`). A dry run has no times, but memory and the order of operators: there a microsecond stands for
a tick of MindSpore's memory tracker.
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
