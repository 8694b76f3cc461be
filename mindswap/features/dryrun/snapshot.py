"""Export of a dry run as a memory snapshot of PyTorch, for pytorch.org/memory_viz and MindStudio Insight."""

import pickle
import sys
from pathlib import Path
from typing import Any

from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.features.dryrun.stage_runs import DryRunReport
from mindswap.files import write_new
from mindswap.simulator.profile.overlap import union

_BASE_ADDRESS = 2**40  # address of the first block


def write_snapshot(report: DryRunReport, path: Path) -> None:
    """Write a snapshot with one device per rank. For extrapolated models, it contains the longest run only.

    Raises:
        DataError: the file cannot be written.
    """
    write_new(path, pickle.dumps(snapshot([stage.run for stage in report.stages]), protocol=4), overwrite=True)


def snapshot(runs: list[DryRun]) -> dict[str, Any]:
    """Return allocations and frees in the format of `torch.cuda.memory._snapshot()`, one device per run.

    Times are ticks. MindSpore's tables have no addresses, so each block gets the first free range that is large enough
    (first fit) in one segment: sizes and order are measured, addresses and fragmentation are not.
    """
    devices = [_events(run) for run in runs]
    return {
        "segments": [_segment(device, run) for device, run in enumerate(runs)],
        "device_traces": devices,
        "allocator_settings": {},
    }


def _allocation_changes(run: DryRun) -> list[tuple[int, bool, int]]:
    """Return (tick, is allocation, block index), sorted; at one tick, frees come before allocations."""
    used = [(i, block) for i, block in enumerate(run.blocks) if block.start < block.end and block.size_bytes]
    frees = [(block.end, False, i) for i, block in used if block.end != sys.maxsize]
    return sorted([*frees, *((block.start, True, i) for i, block in used)])


def _addresses(run: DryRun) -> tuple[dict[int, int], int]:
    """Return the address of each block by index, and the end address of the segment."""
    holes: list[tuple[int, int]] = []  # begin and end of free ranges, ascending
    addresses: dict[int, int] = {}
    end = _BASE_ADDRESS
    for _, is_allocation, i in _allocation_changes(run):
        size = run.blocks[i].size_bytes
        if not is_allocation:
            holes = union([*holes, (addresses[i], addresses[i] + size)])
            continue
        fitting = next((k for k, (first, last) in enumerate(holes) if last - first >= size), None)
        if fitting is None:
            addresses[i], end = end, end + size
        else:
            first, last = holes[fitting]
            addresses[i] = first
            holes[fitting : fitting + 1] = [(first + size, last)] if last - first > size else []
    return addresses, end


def _frames(run: DryRun, position: int) -> list[dict[str, Any]]:
    block = run.blocks[position]
    return [{"name": block.name, "filename": run.part(block).title, "line": max(block.start, 0)}]


def _events(run: DryRun) -> list[dict[str, Any]]:
    addresses, _ = _addresses(run)
    events = []
    for tick, is_allocation, i in _allocation_changes(run):
        block = run.blocks[i]
        common = {"addr": addresses[i], "size": block.size_bytes, "stream": block.stream, "time_us": tick}
        actions = ("alloc",) if is_allocation else ("free_requested", "free_completed")
        events += [{"action": action, **common, "frames": _frames(run, i)} for action in actions]
    return events


def _segment(device: int, run: DryRun) -> dict[str, Any]:
    """Return the segment with the blocks that are never freed, and the free ranges between them."""
    addresses, end = _addresses(run)
    permanent = sorted((address, i) for i, address in addresses.items() if run.blocks[i].end == sys.maxsize)
    blocks: list[dict[str, Any]] = []
    at = _BASE_ADDRESS
    for address, i in [*permanent, (end, None)]:
        if address > at:
            blocks.append(_block(at, address - at, "inactive", []))
        if i is not None:
            at = address + run.blocks[i].size_bytes
            blocks.append(_block(address, run.blocks[i].size_bytes, "active_allocated", _frames(run, i)))
    held = sum(run.blocks[i].size_bytes for _, i in permanent)
    sizes = {
        "total_size": end - _BASE_ADDRESS,
        **dict.fromkeys(("allocated_size", "active_size", "requested_size"), held),
    }
    place = {"device": device, "address": _BASE_ADDRESS, "stream": 0, "segment_type": "large", "is_expandable": False}
    return {**place, **sizes, "frames": [], "blocks": blocks}


def _block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}
