"""Reader of the files that a dry run writes: blocks of the memory pool, executed operators and peaks.

MindSpore's memory tracker (memory_tracker of MS_ALLOC_CONF) counts ticks. `memory_block.csv` has the ticks at which
each block was allocated and freed, `task.csv` the operator of each tick, and `execute_order.csv` every kernel in order
of launch with its stream.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from mindswap.errors import LaunchError
from mindswap.features.dryrun.block_roles import LAYER, OPTIMIZER, WEIGHT, find_parts, operator_type
from mindswap.files import csv_field_limit
from mindswap.pynative.step_memory import TrackedBlock
from mindswap.runtime.logs.read import read_worker_log
from mindswap.simulator.memory_parts import MemoryPart

# Names in the folder of a rank.
LOG, TRACKER = "log", "tracker"
STATES = (MemoryPart.OPTIMIZER_STATES, MemoryPart.MASTER_WEIGHTS)


@dataclass(frozen=True)
class PoolBlock:
    """A block of device memory."""

    start: int  # tick of the allocation
    end: int  # tick of the free; sys.maxsize if it is never freed
    size_bytes: int
    kind: str  # Weight, Kernel, ConstantValue, Workspace, ...
    name: str  # operator or parameter, with the names of its cells
    stream: int
    last_use: int  # tick of the last operator that reads it; -1 for none
    uses: tuple[int, ...] = ()  # ticks of all operators that read it

    @property
    def operator(self) -> str:
        """Name of the operator type: `MatMul` of `Default/.../MatMul-op3`; the full name of a parameter."""
        return operator_type(self.name)

    @property
    def cell(self) -> tuple[int, str] | None:
        """Layer index and cells below it, `(3, "attention-LLamaAttention/wq-Linear")`; None outside the layers."""
        match = LAYER.search(self.name)
        return (int(match[1]), match[2].rpartition("/")[0]) if match else None


@dataclass(frozen=True)
class Kernel:
    """A kernel launch of a step."""

    name: str
    stream: int
    is_offload: bool = False  # MoveTo to host memory
    is_prefetch: bool = False  # MoveTo to the device
    is_write_back: bool = False  # MoveAssign: copies a parameter that is in host memory back to it


@dataclass(frozen=True, eq=False)
class DryRun:
    """Dry run of one rank: a training step on MindSpore's Ascend backend without a card. Sizes in bytes.

    Attributes:
        rank: the rank that ran.
        used_peak_bytes: peak use of the pool without fragmentation, as MindSpore prints it (rounded to MiB).
        actual_peak_bytes: peak with fragmentation.
        blocks: all blocks of the pool, of all steps.
        operators: tick -> name of the operator.
        kernels: kernels of a step in order of launch.
        set_lines: the `Set ...` lines of its log.
        wall_s: duration of the dry run in seconds.
        is_inlined: whether the backend inlined conditionals into the graph around them, which is its default.
        cpu_s: CPU time of the dry run in seconds.
        curve: derived: (tick, live bytes) after each change, by tick.
        peak_tick: derived: tick of the highest live bytes.
    """

    rank: int
    used_peak_bytes: int
    actual_peak_bytes: int
    blocks: tuple[PoolBlock, ...]
    operators: dict[int, str]
    kernels: tuple[Kernel, ...]
    set_lines: tuple[str, ...]
    wall_s: float
    is_inlined: bool = True
    cpu_s: float = 0.0

    curve: tuple[tuple[int, int], ...] = field(init=False)
    peak_tick: int = field(init=False)
    _parts: dict[int, MemoryPart] = field(init=False)  # part of each block, by its identity

    def __post_init__(self) -> None:
        parts = dict(zip(map(id, self.blocks), find_parts(self.blocks, self.operators), strict=True))
        object.__setattr__(self, "_parts", parts)
        changes: Counter[int] = Counter()
        for block in self.blocks:
            changes[block.start] += block.size_bytes
            changes[block.end] -= block.size_bytes
        ticks = sorted(tick for tick in changes if tick < sys.maxsize)
        curve = tuple(zip(ticks, accumulate(changes[tick] for tick in ticks), strict=True))
        object.__setattr__(self, "curve", curve)
        object.__setattr__(self, "peak_tick", max(curve, key=lambda point: point[1], default=(0, 0))[0])

    def live_blocks(self, tick: int | None = None) -> list[PoolBlock]:
        """Return the blocks that are live at a tick (default: the peak), largest first."""
        at = self.peak_tick if tick is None else tick
        return sorted((b for b in self.blocks if b.start <= at < b.end), key=lambda block: -block.size_bytes)

    def part_bytes(self, tick: int | None = None) -> dict[MemoryPart, int]:
        """Return the live bytes of all parts at a tick (default: the peak)."""
        sums = dict.fromkeys(MemoryPart, 0)
        for block in self.live_blocks(tick):
            sums[self.part(block)] += block.size_bytes
        return sums

    def part(self, block: PoolBlock) -> MemoryPart:
        """Return the part of the memory that a block of this run is."""
        return self._parts[id(block)]

    @property
    def prefetched_bytes(self) -> int:
        """Bytes that are prefetched from the host in all steps of the run."""
        return sum(block.size_bytes for block in self.blocks if block.operator == "MoveTo")

    @property
    def offload_kernels(self) -> list[Kernel]:
        """Copies to the host in one step, in order of launch."""
        return [kernel for kernel in self.kernels if kernel.is_offload]

    @property
    def prefetch_kernels(self) -> list[Kernel]:
        """Copies to the device in one step, in order of launch."""
        return [kernel for kernel in self.kernels if kernel.is_prefetch]

    @property
    def state_blocks(self) -> list[PoolBlock]:
        """Optimizer states that are in device memory during the whole step, one block each; also averaged weights."""
        return [block for block in self.blocks if block.kind == WEIGHT and self.part(block) in STATES]

    @property
    def state_prefetches(self) -> list[Kernel]:
        """Copies of optimizer states to the device in one step, in order of launch."""
        return [kernel for kernel in self.prefetch_kernels if OPTIMIZER in kernel.name]

    @property
    def prefetched_state_bytes(self) -> int | None:
        """Size of the optimizer states that are copied to the device in a step.

        None if MindSpore planned the memory of the step, which then is one block (`memory_optimize_level: O1`).
        """
        copies = (block for block in self.blocks if block.operator == "MoveTo" and OPTIMIZER in block.name)
        sizes = {block.name: block.size_bytes for block in copies}  # every step has them
        return sum(sizes.values()) if len(sizes) == len(self.state_prefetches) else None


def read_rank(folder: Path, rank: int, wall_s: float, is_inlined: bool = True, cpu_s: float = 0.0) -> DryRun:
    """Read the log and the tables of a rank that ended with exit code 0.

    Raises:
        LaunchError: a table or the peak memory is missing.
    """
    log = read_worker_log(folder / LOG, rank)
    used, actual = log.memory.used_peak_bytes, log.memory.actual_peak_bytes
    if not used or not actual:
        why = f": {log.last_error}" if log.last_error else ""
        raise LaunchError(
            f"dry run of rank {rank}: MindSpore printed no peak of memory{why}\n    log:     {folder / LOG}"
        )
    return DryRun(
        rank=rank,
        used_peak_bytes=used,
        actual_peak_bytes=actual,
        blocks=tuple(_read_blocks(_find(folder / TRACKER, "memory_block.csv"))),
        operators={int(row["time_stamp"]): _name(row) for row in _rows(_find(folder / TRACKER, "task.csv"))},
        kernels=tuple(_read_kernels(_find(folder, "execute_order.csv"))),
        set_lines=tuple(line.text for line in log.set_lines),
        wall_s=wall_s,
        is_inlined=is_inlined,
        cpu_s=cpu_s,
    )


def read_tracker(folder: Path) -> tuple[list[tuple[int, str]], list[TrackedBlock]]:
    """Return (tick, operator type) of all launches of a process in PyNative mode, and its blocks with ticks.

    Raises:
        LaunchError: a table is missing.
    """
    tasks = [(int(row["time_stamp"]), row["node_name"]) for row in _rows(_find(folder / TRACKER, "task.csv"))]
    blocks = _read_blocks(_find(folder / TRACKER, "memory_block.csv"))
    return tasks, [TrackedBlock(block.size_bytes, block.start, block.end, block.uses) for block in blocks]


def _find(folder: Path, name: str) -> Path:
    paths = sorted(folder.rglob(name))
    if not paths:
        raise LaunchError(f"the dry run wrote no {name} below {folder}")
    return paths[0]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    # Some fields are call stacks, longer than the default limit of csv.
    with csv_field_limit(1 << 27), path.open(encoding="utf-8", errors="replace", newline="") as file:
        yield from csv.DictReader(file)


def _name(row: dict[str, str]) -> str:
    """Return the operator name with its cells: `task_name` is `17_Default/...`, and truncated in neither table."""
    task, node = row["task_name"], row["node_name"]
    return re.sub(r"^\d+_", "", task) if "/" in task else node


def _read_blocks(path: Path) -> Iterator[PoolBlock]:
    for row in _rows(path):
        if not row["type"]:
            continue
        last = row["last_user_task"]
        name = row["node_name"]
        yield PoolBlock(
            start=int(row["start_time_stamp"]),
            end=min(int(row["end_time_stamp"]), sys.maxsize),
            size_bytes=int(row["size"]),
            kind=row["type"],
            name=name,
            stream=int(row["stream_id"] or 0),
            last_use=int(last) if last else -1,
            uses=tuple(map(int, re.findall(r"\d+", row["user_tasks"]))),
        )


def _read_kernels(path: Path) -> Iterator[Kernel]:
    for row in _rows(path):
        name, info = row["node_name"], row["node_info"] or ""
        is_copy = "Primitive> MoveTo" in info
        is_out = is_copy and "StringImm> CPU" in info
        yield Kernel(
            name=name,
            stream=int(row["stream_id"] or 0),
            is_offload=is_out,
            is_prefetch=is_copy and not is_out,
            is_write_back="Primitive> MoveAssign" in info,
        )
