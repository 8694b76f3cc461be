"""Tasks, copies and lifetimes of a step in PyNative mode under swap and recompute.

Derived from a tracked step without both:

- a recomputed layer or cell keeps its inputs; its operators run once more before the first task of backward that reads
  what it saved. What they made in forward is freed after its last use there;
- what a swap moves (`pynative.swap_moves`) is on the device until forward of a later layer ends, and again from the
  begin of backward of that layer on;
- all other memory is as tracked.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import repeat

from mindswap.pynative.recomputed_regions import LayerActions, Region, Regions
from mindswap.pynative.step_index import BlockFacts, StepIndex, TaskSpan
from mindswap.pynative.step_memory import FORWARD
from mindswap.pynative.swap_moves import Move, OwnMoves, SwapMoves, UpstreamMoves


class Purpose(Enum):
    """Purpose of a lifetime."""

    TRACKED = auto()  # as in the tracked step
    FORWARD_ONLY = auto()  # freed in forward, as backward recomputes it
    RECOMPUTED = auto()
    OFFLOADED = auto()  # until its copy out, `MemoryLifetime.copy`
    PREFETCHED = auto()  # from its copy back, `MemoryLifetime.copy`
    SLICE = auto()  # contiguous copy of a slice that is swapped


@dataclass(frozen=True)
class MemoryLifetime:
    """A lifetime of device memory; positions are those of `Schedule.tasks`."""

    size_bytes: int
    begin: int
    end: int  # position of the last task that runs while it is live
    block: int  # index in `StepMemory.blocks`
    purpose: Purpose
    copy: int = -1  # index in `Schedule.copies`


@dataclass(frozen=True)
class Copy:
    """A storage that moves to the host and back; positions are those of `Schedule.tasks`."""

    size_bytes: int
    block: int
    layer: int
    micro_batch: int
    forward_end: int  # last task of forward of the layer
    release: int  # last task of forward of the later layer
    fetch: int  # first task of backward of the later layer
    wait: int  # task of backward that waits for the copy back


@dataclass
class Schedule:
    """A step under a policy."""

    tasks: list[tuple[int, bool]] = field(default_factory=list)  # (task of the tracked step, is recomputed)
    lifetimes: list[MemoryLifetime] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)


def schedule_step(
    index: StepIndex,
    actions: Sequence[LayerActions],
    prefetch: int,
    is_own_engine: bool = False,
    is_whole: bool = False,
) -> Schedule:
    """Build the schedule of a step.

    Args:
        index: the tracked step.
        actions: one per layer.
        prefetch: `default_prefetch`, in layers.
        is_own_engine: whether mindswap's own executor swaps, by `LayerActions.distances`; MindFormers does otherwise.
        is_whole: whether recomputed cells run to their end, see `Regions`. The actions of one pipeline stage do not
            tell: the executor runs in all of them if the policy has a swap anywhere.
    """
    regions = Regions(index, actions, is_whole=is_whole)
    moves = OwnMoves(index, actions, regions) if is_own_engine else UpstreamMoves(index, actions, regions, prefetch)
    return _Scheduler(index, regions, moves).build()


class _Scheduler:
    def __init__(self, index: StepIndex, regions: Regions, moves: SwapMoves):
        self.index, self.regions, self.moves = index, regions, moves
        self.schedule = Schedule()
        self.positions: list[int] = []  # position of each tracked task

    def build(self) -> Schedule:
        self._order_tasks()
        moved_weights = self.moves.find_weights()
        for number, facts in enumerate(self.index.blocks):
            if number in moved_weights:
                self._swap_weight(number, moved_weights[number])
            else:
                self._place(number, facts)
        return self.schedule

    def _order_tasks(self) -> None:
        waiting: dict[int, list[Region]] = defaultdict(list)
        for region in self.regions.by_name.values():
            waiting[region.begin].append(region)
        tasks, num_tasks = self.schedule.tasks, len(self.index.memory.tasks)
        begin = 0
        for number in (*sorted(waiting), num_tasks):
            self.positions += range(len(tasks), len(tasks) + number - begin)
            tasks += zip(range(begin, number), repeat(False), strict=False)
            begin = number
            for region in sorted(waiting.get(number, ()), key=lambda region: region.tasks[0]):
                for task in region.tasks:
                    region.positions[task] = len(tasks)
                    tasks.append((task, True))

    # -- blocks -----------------------------------------------------------------------------------

    def _place(self, number: int, facts: BlockFacts) -> None:
        """Add the lifetimes of a block."""
        block = facts.block
        begin, end = self._position(block.begin), self._position(block.end)
        home = self.regions.of(facts.micro_batch, facts.operator) if facts.forward_uses or facts.is_saved else None
        if not facts.is_saved:
            self._add(number, begin, end, Purpose.TRACKED)
            if home is not None and block.begin in home.positions:
                last = max((home.positions[u] for u in facts.forward_uses if u in home.positions), default=None)
                first = home.positions[block.begin]
                self._add(number, first, first if last is None else max(first, last), Purpose.RECOMPUTED)
            return
        kept_end = self._kept_end(facts, home)
        if home is not None and block.begin in home.positions:
            self._add(number, home.positions[block.begin], self._recomputed_end(facts, home), Purpose.RECOMPUTED)
        move = self.moves.find(facts, home)
        if move is not None:
            self._swap(number, facts, move, kept_end)
        elif kept_end < end:
            self._add(number, begin, kept_end, Purpose.FORWARD_ONLY)
        else:
            self._add(number, begin, end, Purpose.TRACKED)

    def _position(self, task: int) -> int:
        if task < 0:
            return 0
        return self.positions[task] if task < len(self.positions) else len(self.schedule.tasks)

    def _kept_end(self, facts: BlockFacts, home: Region | None) -> int:
        """Return the position up to which the memory of forward is needed."""
        ends = [self._position(facts.block.begin), *map(self._position, facts.forward_uses)]
        if not facts.reads and not self._is_read_by_region(facts, home):
            ends.append(self._position(facts.block.end))
        for saver, _ in facts.reads:
            region = self.regions.of(facts.micro_batch, saver)
            if region is None or region is not home:
                ends.append(self._position(facts.block.end))
        for use in facts.forward_uses:
            region = self.regions.of(facts.micro_batch, self.index.memory.tasks[use].operator)
            if region is not None and region is not home and use in region.positions:
                ends.append(region.positions[use])
        return max(ends)

    def _is_read_by_region(self, facts: BlockFacts, home: Region | None) -> bool:
        """Return whether a block whose saves are not known is read by backward of its own recomputed layer only."""
        tasks = self.index.memory.tasks
        users = [use for use in facts.block.uses if tasks[use].phase != FORWARD]
        return home is not None and bool(users) and all(self.index.layer_of(use) == home.layer for use in users)

    def _recomputed_end(self, facts: BlockFacts, home: Region) -> int:
        """Return the end of the block that a recomputed operator makes."""
        is_saved_inside = any(self.regions.of(facts.micro_batch, saver) is home for saver, _ in facts.reads)
        if is_saved_inside or (not facts.reads and self._is_read_by_region(facts, home)):
            return self._position(facts.block.end)
        uses = [home.positions[use] for use in facts.forward_uses if use in home.positions]
        return max([home.positions[facts.block.begin], *uses])

    # -- swap -------------------------------------------------------------------------------------

    def _swap(self, number: int, facts: BlockFacts, move: Move, kept_end: int) -> None:
        index = self._add_copy(number, facts.micro_batch, move, move.slice_bytes or facts.block.size_bytes)
        copy = self.schedule.copies[index]
        self._add(number, self._position(facts.block.begin), copy.release, Purpose.OFFLOADED, index)
        self._add(number, copy.fetch, max(copy.wait, kept_end), Purpose.PREFETCHED, index)
        if move.slice_bytes:
            lifetime = MemoryLifetime(move.slice_bytes, copy.forward_end, copy.wait, number, Purpose.SLICE)
            self.schedule.lifetimes.append(lifetime)

    def _add_copy(self, number: int, micro_batch: int, move: Move, size_bytes: int) -> int:
        """Add a copy, and return its index."""
        own, later = self._spans(micro_batch, move.layer), self._spans(micro_batch, move.later_layer)
        last_use = self._position(move.last_use)
        waits = [min(reader.positions.values()) for reader in move.readers]
        if move.first_read >= 0 or not waits:
            waits.append(self._position(move.first_read))
        self.schedule.copies.append(
            Copy(
                size_bytes=size_bytes,
                block=number,
                layer=move.layer,
                micro_batch=micro_batch,
                forward_end=own[0].last,
                release=max(later[0].last, last_use),
                fetch=later[1].first,
                wait=max(own[1].first, min(waits)),
            )
        )
        return len(self.schedule.copies) - 1

    def _swap_weight(self, number: int, move: Move) -> None:
        begin = 0
        for micro_batch in range(self.index.num_micro_batches):
            index = self._add_copy(number, micro_batch, move, self.index.memory.blocks[number].size_bytes)
            copy = self.schedule.copies[index]
            self._add(number, begin, copy.release, Purpose.OFFLOADED, index)
            begin = copy.fetch
        self._add(number, begin, len(self.schedule.tasks), Purpose.PREFETCHED, index)

    def _spans(self, micro_batch: int, layer: int) -> tuple[TaskSpan, TaskSpan]:
        """Return the positions of a layer in forward and in backward."""
        forward, backward = (
            spans[micro_batch, layer] for spans in (self.index.forward_spans, self.index.backward_spans)
        )
        first = self.positions[backward.first]
        begins = [
            min(region.positions.values())
            for (micro, of_layer, _), region in self.regions.by_name.items()
            if micro == micro_batch and of_layer == layer
        ]
        return (
            TaskSpan(self.positions[forward.first], self.positions[forward.last]),
            TaskSpan(min([first, *begins]), self.positions[backward.last]),
        )

    def _add(self, number: int, begin: int, end: int, purpose: Purpose, copy: int = -1) -> None:
        size_bytes = self.index.memory.blocks[number].size_bytes
        self.schedule.lifetimes.append(MemoryLifetime(size_bytes, begin, max(begin, end), number, purpose, copy))
