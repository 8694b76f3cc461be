"""Export of a dry run as profiler folders, one per rank: memory and the order of operators."""

import json
import sys
from pathlib import Path

import numpy as np

from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.features.dryrun.stage_runs import DryRunReport
from mindswap.report.insight import (
    HARDWARE,
    HARDWARE_NAME,
    START_US,
    Files,
    Piece,
    memory_files,
    trace_names,
    write_folders,
)


def write_dry_run(report: DryRunReport, folder: Path) -> None:
    """Write a folder per rank. For extrapolated models, it contains the longest run only.

    Raises:
        DataError: a file cannot be written.
    """
    ranks = ((stage.run.rank, dry_run_files(stage.run, report.title)) for stage in report.stages)
    what = (
        "dry run without a card: sizes and order of operators, no times; 1 us is a tick of MindSpore's memory tracker"
    )
    write_folders(folder, ranks, report.title, what)


def dry_run_files(run: DryRun, title: str) -> Files:
    """Return the files of a rank: memory, and a trace in which each operator takes one tick."""
    ticks = sorted(run.operators)
    last = max([*ticks, *(tick for tick, _ in run.curve)], default=0) + 1
    nodes = np.array(ticks or [0])

    def node(tick: int) -> int:
        return max(int(np.searchsorted(nodes, tick, side="right")) - 1, 0)

    pieces = [
        Piece(
            name=block.name, size_bytes=block.size_bytes, start_us=START_US + block.start,
            end_us=None if block.end == sys.maxsize else START_US + block.end,
            first_node=node(block.start), last_node=node(min(block.end, last)), stream=block.stream,
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
