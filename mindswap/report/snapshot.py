"""The memory of a dry run as a snapshot of torch, which pytorch.org/memory_viz and MindStudio Insight open."""

import pickle
import sys
from pathlib import Path
from typing import Any

from mindswap.errors import DataError
from mindswap.files import replace_file
from mindswap.training.dryrun.read import DryRun
from mindswap.training.dryrun.stages import DryRunReport

_FIRST = 2**40  # address of the first block


def write_snapshot(report: DryRunReport, path: Path) -> None:
    """One device for each rank of the report; of a long model, the longest run.

    Raises:
        DataError: it cannot be written.
    """
    try:
        replace_file(path, pickle.dumps(snapshot([stage.run for stage in report.stages]), protocol=4))
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error


def snapshot(runs: list[DryRun]) -> dict[str, Any]:
    """Allocations and frees by tick, in the form of `torch.cuda.memory._snapshot()`; a device is a run.

    Every block has an address of its own, as MindSpore's are not in its tables: sizes and order are of the dry run,
    addresses and fragments are not. What is never given back is in the one segment at the end.
    """
    devices = [_events(run) for run in runs]
    return {
        "segments": [_segment(device, run) for device, run in enumerate(runs)],
        "device_traces": devices,
        "allocator_settings": {},
    }


def _addresses(run: DryRun) -> list[int]:
    """What stays comes first, without gaps, so that it is one segment."""
    address, found = _FIRST, {}
    for position in sorted(range(len(run.blocks)), key=lambda each: run.blocks[each].end != sys.maxsize):
        found[position] = address
        address += run.blocks[position].size_bytes
    return [found[position] for position in range(len(run.blocks))]


def _frames(run: DryRun, position: int) -> list[dict[str, Any]]:
    block = run.blocks[position]
    return [
        {"name": block.name, "filename": run.part(block), "line": max(block.start, 0)},
    ]


def _events(run: DryRun) -> list[dict[str, Any]]:
    addresses = _addresses(run)
    # what is given back at a tick makes room for what is taken at it
    changes = [(block.end, 0, i) for i, block in enumerate(run.blocks) if block.end != sys.maxsize]
    changes += [(block.start, 1, i) for i, block in enumerate(run.blocks)]
    events = []
    for tick, is_taken, i in sorted(changes):
        block = run.blocks[i]
        about = {"addr": addresses[i], "size": block.size_bytes, "stream": block.stream, "time_us": tick}
        for action in ("alloc",) if is_taken else ("free_requested", "free_completed"):
            events.append({"action": action, **about, "frames": _frames(run, i)})
    return events


def _segment(device: int, run: DryRun) -> dict[str, Any]:
    """What is there at the end."""
    addresses = _addresses(run)
    stays = sorted((i for i, block in enumerate(run.blocks) if block.end == sys.maxsize), key=addresses.__getitem__)
    total = sum(run.blocks[i].size_bytes for i in stays)
    blocks = [
        {
            "address": addresses[i],
            "size": run.blocks[i].size_bytes,
            "requested_size": run.blocks[i].size_bytes,
            "state": "active_allocated",
            "frames": _frames(run, i),
        }
        for i in stays
    ]
    sizes = dict.fromkeys(("total_size", "allocated_size", "active_size", "requested_size"), total)
    place = {"device": device, "address": _FIRST, "stream": 0, "segment_type": "large", "is_expandable": False}
    return {**place, **sizes, "frames": [], "blocks": blocks}
