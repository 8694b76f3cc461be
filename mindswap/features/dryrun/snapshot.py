"""The memory of a dry run as a snapshot of torch, which pytorch.org/memory_viz and MindStudio Insight open."""

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


def _allocation_changes(run: DryRun) -> list[tuple[int, bool, int]]:
    """Tick, whether a block is taken then, and which; what is given back makes room for what is taken."""
    real = [(i, block) for i, block in enumerate(run.blocks) if block.start < block.end and block.size_bytes]
    given = [(block.end, False, i) for i, block in real if block.end != sys.maxsize]
    return sorted([*given, *((block.start, True, i) for i, block in real)])


def _addresses(run: DryRun) -> tuple[dict[int, int], int]:
    """Address of each block, and the end of them all."""
    holes: list[tuple[int, int]] = []  # begin and end, rising
    found: dict[int, int] = {}
    end = _BASE_ADDRESS
    for _, is_taken, i in _allocation_changes(run):
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
    return [{"name": block.name, "filename": run.category(block), "line": max(block.start, 0)}]


def _events(run: DryRun) -> list[dict[str, Any]]:
    addresses, _ = _addresses(run)
    events = []
    for tick, is_taken, i in _allocation_changes(run):
        block = run.blocks[i]
        about = {"addr": addresses[i], "size": block.size_bytes, "stream": block.stream, "time_us": tick}
        actions = ("alloc",) if is_taken else ("free_requested", "free_completed")
        events += [{"action": action, **about, "frames": _frames(run, i)} for action in actions]
    return events


def _segment(device: int, run: DryRun) -> dict[str, Any]:
    """Blocks at the end, and the holes between."""
    addresses, end = _addresses(run)
    stays = sorted((address, i) for i, address in addresses.items() if run.blocks[i].end == sys.maxsize)
    blocks: list[dict[str, Any]] = []
    at = _BASE_ADDRESS
    for address, i in [*stays, (end, None)]:
        if address > at:
            blocks.append(_block(at, address - at, "inactive", []))
        if i is not None:
            at = address + run.blocks[i].size_bytes
            blocks.append(_block(address, run.blocks[i].size_bytes, "active_allocated", _frames(run, i)))
    held = sum(run.blocks[i].size_bytes for _, i in stays)
    sizes = {
        "total_size": end - _BASE_ADDRESS,
        **dict.fromkeys(("allocated_size", "active_size", "requested_size"), held),
    }
    place = {"device": device, "address": _BASE_ADDRESS, "stream": 0, "segment_type": "large", "is_expandable": False}
    return {**place, **sizes, "frames": [], "blocks": blocks}


def _block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}
