"""Overlap of copies between device and host with compute and communication."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.errors import CostError
from mindswap.simulator.profile.tables import to_ns
from mindswap.simulator.profile.trace import COPY_NAME, DIRECTION_KEYS, DIRECTIONS, LINK_TASK, SIZE_KEYS

# (start, end) in ns.
Interval = tuple[int, int]


@dataclass(frozen=True)
class Overlap:
    """Copies of a profile: each ns is overlapped by compute, overlapped by communication only, or exposed."""

    num_copies: int  # copies between device and host
    size_bytes: int | None  # of all copies; None where the profile has no sizes
    copy_ns: int  # sum of their durations
    hidden_ns: int  # part of `copy_ns` that compute overlaps
    communication_ns: int  # part of `copy_ns` that only communication overlaps
    compute_ns: int  # busy time of compute

    @property
    def exposed_ns(self) -> int:
        """Copy time during which the device was otherwise idle, in ns."""
        return self.copy_ns - self.hidden_ns - self.communication_ns

    @property
    def hidden_permille(self) -> int | None:
        """Fraction of the copy time that compute overlaps, in thousandths; None without copies."""
        return self.hidden_ns * 1000 // self.copy_ns if self.copy_ns else None


def measure_overlap(
    copies: Sequence[Interval],
    compute: Iterable[Interval],
    communication: Iterable[Interval],
    size_bytes: int | None = None,
) -> Overlap:
    """Measure the overlap of copies with compute and communication.

    Args:
        copies: (start, end) of each copy in ns; simultaneous copies count separately.
        compute: intervals of kernels, which may overlap each other.
        communication: intervals of collectives, which may overlap each other.
        size_bytes: size of all copies; None if unknown.
    """
    computing = union(compute)
    busy = union([*computing, *communication])
    hidden = sum(_shared(copy, computing) for copy in copies)
    not_alone = sum(_shared(copy, busy) for copy in copies)
    return Overlap(
        num_copies=len(copies),
        size_bytes=size_bytes,
        copy_ns=sum(end - start for start, end in copies),
        hidden_ns=hidden,
        communication_ns=not_alone - hidden,
        compute_ns=sum(end - start for start, end in computing),
    )


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as disjoint intervals in ascending order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _shared(copy: Interval, intervals: Sequence[Interval]) -> int:
    """Return the time that a copy shares with disjoint intervals."""
    return sum(max(0, min(copy[1], end) - max(copy[0], start)) for start, end in intervals)


# `trace_view.json` of the profiler -> when the device computed, communicated and copied.
#
# Lanes and keys as CANN's msprof writes them: the process `Ascend Hardware` has one lane per stream, with copies named
# `MEMCPY_ASYNC`; `Overlap Analysis` has the lanes `Computing` and `Communication`. Level2 says in which direction a
# copy goes and how large it is, Level1 only that the PCIe engine made it (`Task Type: PCIE_DMA_SQE`). Seen in
# trace_view.json of Level0, 1 and 2 in test/data/pytorch/text of the public repository xiaobingling93-pixel/Ascend-
# msinsight; MindSpore takes the same events over from msprof (class MsprofTimelineCreator of mindspore 2.9.0).

HARDWARE, ANALYSIS = "Ascend Hardware", "Overlap Analysis"
COMPUTING, COMMUNICATION = "Computing", "Communication"


def trace_overlap(events: Iterable[Any]) -> Overlap | None:
    """Measure the overlap in the Chrome trace of one rank; None if no device computed, as in a trace of a CPU.

    Entries that are no events or have no times are ignored.
    """
    rows = [event for event in events if isinstance(event, Mapping)]
    process = {
        str(row.get("pid")): _args(row).get("name")
        for row in rows
        if row.get("ph") == "M" and row.get("name") == "process_name"
    }
    lanes: dict[str, list[Interval]] = {COMPUTING: [], COMMUNICATION: [], COPY_NAME: []}
    sizes: list[int | None] = []
    for row in rows:
        process_name, name = process.get(str(row.get("pid"))), str(row.get("name"))
        if row.get("ph") != "X" or (interval := _interval(row)) is None:
            continue
        if process_name == ANALYSIS and name in (COMPUTING, COMMUNICATION):
            lanes[name].append(interval)
        elif process_name == HARDWARE and name == COPY_NAME and _is_host_copy(_args(row)):
            lanes[COPY_NAME].append(interval)
            sizes.append(_size(_args(row)))
    total = None if None in sizes or not sizes else sum(size or 0 for size in sizes)
    if not lanes[COMPUTING]:
        return None
    return measure_overlap(lanes[COPY_NAME], lanes[COMPUTING], lanes[COMMUNICATION], total)


def _args(row: Mapping[str, Any]) -> Mapping[str, Any]:
    match = row.get("args")
    return match if isinstance(match, Mapping) else {}


def _interval(row: Mapping[str, Any]) -> Interval | None:
    try:
        start, duration = (to_ns("", str(row[key])) for key in ("ts", "dur"))
    except (KeyError, CostError):
        return None
    return start, start + duration


def _is_host_copy(args: Mapping[str, Any]) -> bool:
    direction = next((str(args[key]).lower() for key in DIRECTION_KEYS if key in args), None)
    return args.get("Task Type") == LINK_TASK if direction is None else direction in DIRECTIONS


def _size(args: Mapping[str, Any]) -> int | None:
    return next((int(args[key]) for key in SIZE_KEYS if str(args.get(key, "")).isdecimal()), None)
