"""Results of a dry run: blocks of the memory pool, operators in the order of execution, peaks.

`memory_block.csv` has each block with the ticks between which it was taken and given back, `task.csv` the operator of
each tick, `execute_order.csv` every kernel in order of launch with its stream (memory_tracker of MS_ALLOC_CONF).
"""

import csv
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from mindswap.errors import LaunchError
from mindswap.files import csv_field_limit
from mindswap.runtime.logs.read import read_worker_log

# In the folder of a rank.
LOG, TRACKER = "log", "tracker"
# Types of `memory_block.csv`; blocks without a type are the pool's own.
WEIGHT, CONSTANT = "Weight", "ConstantValue"
_STATES = ("adam_m.", "adam_v.", "moment1.", "moment2.", "exp_avg", "max_exp_avg")
LAYER = re.compile(r"/(?:layers-\w+|\w*[lL]ayers-CellList)/(\d+)-\w+/(.*)")
_OPERATOR = re.compile(r"-op\d+(?:_\d+)?$")
CATEGORIES = (
    "weights", "optimizer states", "gathered weights", "gradients", "saved activations", "copies back", "constants",
    "other",
)  # fmt: skip


@dataclass(frozen=True)
class PoolBlock:
    """A block of device memory."""

    start: int  # tick at which it was taken
    end: int  # tick at which it was given back; sys.maxsize for one that stays
    size_bytes: int
    kind: str  # Weight, Kernel, ConstantValue, Workspace, ...
    name: str  # operator or parameter, with its cells
    stream: int
    last_use: int  # tick of the last operator that reads it; -1 for none
    uses: tuple[int, ...] = ()  # ticks of all that read it

    @property
    def operator(self) -> str:
        """`MatMul` of `Default/.../MatMul-op3`; a parameter's whole name."""
        return _OPERATOR.sub("", self.name.rpartition("/")[2])

    @property
    def is_backward(self) -> bool:
        """Made by an operator of the gradient."""
        return self.name.startswith("Gradients/")

    @property
    def cell(self) -> tuple[int, str] | None:
        """Layer and cells below it, `(3, "attention-LLamaAttention/wq-Linear")`; None outside the layers."""
        match = LAYER.search(self.name)
        return (int(match[1]), match[2].rpartition("/")[0]) if match else None


@dataclass(frozen=True)
class Kernel:
    """An operator in the order of launch."""

    name: str
    stream: int
    is_offload: bool = False  # MoveTo to host memory
    is_prefetch: bool = False  # MoveTo to the device


@dataclass(frozen=True, eq=False)
class DryRun:
    """One rank of a training on MindSpore's Ascend backend, without a card. Sizes in bytes; no times, no values.

    Attributes:
        rank: whose memory it is.
        used_peak_bytes: highest use of the pool without fragments, as MindSpore prints it (whole MiB).
        actual_peak_bytes: with fragments.
        blocks: every block of the pool, of all steps.
        operators: tick -> operator.
        kernels: operators of a step in order of launch.
        set_lines: the `Set ...` lines of its log.
        wall_s: how long the dry run took.
        is_inlined: the backend put conditionals into the graph around them, as it does by default.
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

    # derived: live bytes after each change, by tick; when most is live; ticks of operators of the gradient, rising;
    # operators that read what an AllGather of forward made
    curve: tuple[tuple[int, int], ...] = field(init=False)
    peak_tick: int = field(init=False)
    _backward_ticks: tuple[int, ...] = field(init=False)
    _gathered_weight_readers: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        changes: Counter[int] = Counter()
        for block in self.blocks:
            changes[block.start] += block.size_bytes
            changes[block.end] -= block.size_bytes
        ticks = sorted(tick for tick in changes if tick < sys.maxsize)
        curve = tuple(zip(ticks, accumulate(changes[tick] for tick in ticks), strict=True))
        object.__setattr__(self, "curve", curve)
        object.__setattr__(self, "peak_tick", max(curve, key=lambda point: point[1], default=(0, 0))[0])
        backward = sorted(tick for tick, name in self.operators.items() if name.startswith("Gradients/"))
        object.__setattr__(self, "_backward_ticks", tuple(backward))
        gathered = (block for block in self.blocks if "AllGather" in block.operator and not block.is_backward)
        readers = frozenset(self.operators.get(tick, "") for block in gathered for tick in block.uses)
        object.__setattr__(self, "_gathered_weight_readers", readers)

    def live_blocks(self, tick: int | None = None) -> list[PoolBlock]:
        """Blocks that are live at a tick, at the peak by default, largest first."""
        at = self.peak_tick if tick is None else tick
        return sorted((b for b in self.blocks if b.start <= at < b.end), key=lambda block: -block.size_bytes)

    def category_bytes(self, tick: int | None = None) -> dict[str, int]:
        """Live bytes by what they are for (`CATEGORIES`), at the peak by default."""
        sums = dict.fromkeys(CATEGORIES, 0)
        for block in self.live_blocks(tick):
            sums[self.category(block)] += block.size_bytes
        return sums

    def category(self, block: PoolBlock) -> str:
        """Purpose of a block: one of `CATEGORIES`."""
        if block.kind == WEIGHT:
            return "optimizer states" if block.name.startswith(_STATES) else "weights"
        if block.kind == CONSTANT:
            return "constants"
        is_cast_of_gathered = block.operator == "Cast" and block.name in self._gathered_weight_readers
        if not block.is_backward and ("AllGather" in block.operator or is_cast_of_gathered):
            return "gathered weights"
        if block.operator.startswith("MoveTo"):
            return "copies back"
        if self._is_gradient(block):
            return "gradients"
        # Kept for backward: operators of the gradient ran between the one that made it and its last reader.
        behind = bisect_right(self._backward_ticks, block.start)
        if not block.is_backward and behind < bisect_right(self._backward_ticks, block.last_use):
            return "saved activations"
        return "other"

    def _is_gradient(self, block: PoolBlock) -> bool:
        """Of a weight: handed to other ranks, or the cast before it, which the optimizer waits for."""
        reader = self.operators.get(block.last_use, "")
        behind = _OPERATOR.sub("", reader.rpartition("/")[2])
        hands_on = ("AllReduce", "ReduceScatter", "MirrorOperator")
        return any(word in block.operator or word in behind or word in reader for word in hands_on) or (
            block.operator.startswith("Cast") and bisect_right(self._backward_ticks, block.start) > 0
        )

    @property
    def prefetched_bytes(self) -> int:
        """Bytes that come back from the host in all steps that were run."""
        return sum(block.size_bytes for block in self.blocks if block.operator == "MoveTo")

    @property
    def offload_kernels(self) -> list[Kernel]:
        """Copies to the host of one step, in order."""
        return [kernel for kernel in self.kernels if kernel.is_offload]

    @property
    def prefetch_kernels(self) -> list[Kernel]:
        """Copies to the device of one step, in order."""
        return [kernel for kernel in self.kernels if kernel.is_prefetch]


def read_rank(folder: Path, rank: int, wall_s: float, is_inlined: bool = True) -> DryRun:
    """Results of a rank that ended well: its log, the tables of the tracker, the order of execution in its folder.

    Raises:
        LaunchError: it left no figures of memory.
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
    )


def _find(folder: Path, name: str) -> Path:
    found = sorted(folder.rglob(name))
    if not found:
        raise LaunchError(f"the dry run wrote no {name} below {folder}")
    return found[0]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    # Some fields hold stacks of calls.
    with csv_field_limit(1 << 27), path.open(encoding="utf-8", errors="replace", newline="") as file:
        yield from csv.DictReader(file)


def _name(row: dict[str, str]) -> str:
    """With its cells: `task_name` is `17_Default/...`, and cut in neither table."""
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
        yield Kernel(name, int(row["stream_id"] or 0), is_out, is_copy and not is_out)
