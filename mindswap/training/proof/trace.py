"""`trace_view.json` of the profiler -> when the device computed, communicated and copied. Pure.

Lanes and keys as CANN's msprof writes them: the process `Ascend Hardware` has one lane per stream, with copies named
`MEMCPY_ASYNC`; `Overlap Analysis` has the lanes `Computing` and `Communication`. Level2 says in which direction a copy
goes and how large it is, Level1 only that the PCIe engine made it (`Task Type: PCIE_DMA_SQE`). Seen in
trace_view.json of Level0, 1 and 2 in test/data/pytorch/text of the public repository
xiaobingling93-pixel/Ascend-msinsight; MindSpore takes the same events over from msprof (class MsprofTimelineCreator
of mindspore 2.9.0).
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from mindswap.training.proof.overlap import Interval, Overlap, measure_overlap

HARDWARE, ANALYSIS = "Ascend Hardware", "Overlap Analysis"
COPY = "MEMCPY_ASYNC"
COMPUTING, COMMUNICATION = "Computing", "Communication"
HOST_DIRECTIONS = ("device to host", "host to device")
HOST_TASKS = ("PCIE_DMA_SQE",)
MAX_NS = 2**62
DIRECTION_KEYS, SIZE_KEYS = ("memcpy direction", "operation"), ("data size(Byte)", "size(B)")


def trace_overlap(events: Iterable[Any]) -> Overlap | None:
    """The overlap in the Chrome trace of one rank; None where no device computed, as in that of a CPU.

    What is no event, or has no times, is left out.
    """
    rows = [event for event in events if isinstance(event, Mapping)]
    process = {
        str(row.get("pid")): _args(row).get("name")
        for row in rows
        if row.get("ph") == "M" and row.get("name") == "process_name"
    }
    lanes: dict[str, list[Interval]] = {COMPUTING: [], COMMUNICATION: [], COPY: []}
    sizes: list[int | None] = []
    for row in rows:
        where, name = process.get(str(row.get("pid"))), str(row.get("name"))
        if row.get("ph") != "X" or (interval := _interval(row)) is None:
            continue
        if where == ANALYSIS and name in (COMPUTING, COMMUNICATION):
            lanes[name].append(interval)
        elif where == HARDWARE and name == COPY and _is_host_copy(_args(row)):
            lanes[COPY].append(interval)
            sizes.append(_size(_args(row)))
    total = None if None in sizes or not sizes else sum(size or 0 for size in sizes)
    if not lanes[COMPUTING]:
        return None
    return measure_overlap(lanes[COPY], lanes[COMPUTING], lanes[COMMUNICATION], total)


def _args(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = row.get("args")
    return found if isinstance(found, Mapping) else {}


def _interval(row: Mapping[str, Any]) -> Interval | None:
    try:
        start, duration = (Decimal(str(row[key])) * 1000 for key in ("ts", "dur"))
        is_time = 0 <= start < MAX_NS and 0 <= duration < MAX_NS
        return (int(start), int(start + duration)) if is_time else None
    except (KeyError, InvalidOperation, ValueError, OverflowError):
        return None


def _is_host_copy(args: Mapping[str, Any]) -> bool:
    direction = next((str(args[key]).lower() for key in DIRECTION_KEYS if key in args), None)
    if direction is None:
        return args.get("Task Type") in HOST_TASKS
    return direction.startswith(HOST_DIRECTIONS)  # also "host to device ex"


def _size(args: Mapping[str, Any]) -> int | None:
    return next((int(args[key]) for key in SIZE_KEYS if str(args.get(key, "")).isdecimal()), None)
