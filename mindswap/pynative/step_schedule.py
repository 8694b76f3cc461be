"""Tasks, copies and lifetimes of a step in PyNative mode under the swap and recompute of MindFormers 2.x.

Derived from a tracked step without both:

- a recomputed layer or cell keeps its inputs; its operators run once more before the first task of backward that reads
  what it saved. What they made in forward is freed after its last use there;
- a swapped layer i with distance p: what its swapped cells save is copied out when forward of i ends, freed when
  forward of i + p ends, and allocated again before backward of i + p begins. Outputs of the layer, and what several
  layers read, stay. A tensor that is a part of its storage is copied as a contiguous tensor, which stays until backward
  of i. A weight that is saved as a view, as a transposed one is, is not known as a weight, and moves as well;
- all other memory is as tracked.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from mindswap.pynative.step_index import BlockFacts, StepIndex, TaskSpan, is_in
from mindswap.pynative.step_memory import FORWARD


@dataclass(frozen=True)
class LayerActions:
    """What happens to a layer; paths are dotted, below the layer."""

    is_recomputed: bool = False
    is_swapped: bool = False
    recomputed: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()


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
    backward_begin: int  # first task of backward of the layer


@dataclass
class Schedule:
    """A step under a policy."""

    tasks: list[tuple[int, bool]] = field(default_factory=list)  # (task of the tracked step, is recomputed)
    lifetimes: list[MemoryLifetime] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)


@dataclass(eq=False)
class _Region:
    """A layer or cell that is recomputed, in one micro-batch."""

    layer: int
    tasks: list[int]  # of forward, ascending
    begin: int  # task of backward before which it runs again
    positions: dict[int, int] = field(default_factory=dict)  # task of forward -> position when it runs again


def schedule_step(index: StepIndex, actions: Sequence[LayerActions], prefetch: int) -> Schedule:
    """Build the schedule of a step.

    Args:
        index: the tracked step.
        actions: one per layer.
        prefetch: `default_prefetch`, in layers.
    """
    return _Scheduler(index, actions, prefetch).build()


class _Scheduler:
    def __init__(self, index: StepIndex, actions: Sequence[LayerActions], prefetch: int):
        self.index, self.actions, self.prefetch = index, actions, prefetch
        self.region_names = dict(self._region_names())
        self.swapped_operators = frozenset(self._swapped_operators())
        self.regions = self._regions()
        self.schedule = Schedule()
        self.positions: list[int] = []  # position of each tracked task

    def build(self) -> Schedule:
        self._order_tasks()
        moved_weights = self._moved_weights()
        for number, facts in enumerate(self.index.blocks):
            if number in moved_weights:
                self._swap_weight(number, moved_weights[number])
            else:
                self._place(number, facts)
        return self.schedule

    # -- recompute --------------------------------------------------------------------------------

    def _region_names(self) -> Iterator[tuple[int, tuple[int, str]]]:
        """Yield the operators of forward that run again, with the layer and the path of the recomputed cell."""
        for number, operator in enumerate(self.index.trace.operators):
            if operator.layer_index is None or not operator.is_forward:
                continue
            actions = self.actions[operator.layer_index]
            if actions.is_recomputed:
                yield number, (operator.layer_index, "")
                continue
            path = next((path for path in actions.recomputed if is_in(operator, [path])), None)
            if path is not None:
                yield number, (operator.layer_index, path)

    def _regions(self) -> dict[tuple[int, int, str], _Region]:
        """Return the recomputed cells by micro-batch, layer and path; those that save nothing do not run again."""
        savers: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)  # (saver, task of its read)
        for facts in self.index.blocks:
            for saver, task in facts.reads:
                name = self.region_names.get(saver)
                if name is not None:
                    savers[(facts.micro_batch, *name)].append((saver, task))
        regions = {}
        for key, reads in savers.items():
            micro_batch, layer, path = key
            last = max(max(self.index.forward_tasks[micro_batch, saver], default=-1) for saver, _ in reads)
            tasks = sorted(
                task
                for operator, name in self.region_names.items()
                if name == (layer, path)
                for task in self.index.forward_tasks[micro_batch, operator]
                if not path or task <= last  # a cell stops after the last tensor that it saves
            )
            if tasks:  # the alignment may lack some; then the cell stays as tracked
                regions[key] = _Region(layer, tasks, min(task for _, task in reads))
        return regions

    def _order_tasks(self) -> None:
        waiting: dict[int, list[_Region]] = defaultdict(list)
        for region in self.regions.values():
            waiting[region.begin].append(region)
        tasks = self.schedule.tasks
        for number in range(len(self.index.memory.tasks)):
            for region in sorted(waiting.get(number, ()), key=lambda region: region.tasks[0]):
                for task in region.tasks:
                    region.positions[task] = len(tasks)
                    tasks.append((task, True))
            self.positions.append(len(tasks))
            tasks.append((number, False))

    def _region_of(self, micro_batch: int, operator: int) -> _Region | None:
        name = self.region_names.get(operator)
        return None if name is None else self.regions.get((micro_batch, *name))

    # -- blocks -----------------------------------------------------------------------------------

    def _place(self, number: int, facts: BlockFacts) -> None:
        """Add the lifetimes of a block."""
        block = facts.block
        begin, end = self._position(block.begin), self._position(block.end)
        home = self._region_of(facts.micro_batch, facts.operator) if facts.forward_uses or facts.is_saved else None
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
        swap_layer = self._swap_layer(facts, home)
        if swap_layer is not None:
            self._swap(number, facts, swap_layer, kept_end)
        elif kept_end < end:
            self._add(number, begin, kept_end, Purpose.FORWARD_ONLY)
        else:
            self._add(number, begin, end, Purpose.TRACKED)

    def _position(self, task: int) -> int:
        if task < 0:
            return 0
        return self.positions[task] if task < len(self.positions) else len(self.schedule.tasks)

    def _kept_end(self, facts: BlockFacts, home: _Region | None) -> int:
        """Return the position up to which the memory of forward is needed."""
        ends = [self._position(facts.block.begin), *map(self._position, facts.forward_uses)]
        if not facts.reads and not self._is_read_by_region(facts, home):
            ends.append(self._position(facts.block.end))
        for saver, _ in facts.reads:
            region = self._region_of(facts.micro_batch, saver)
            if region is None or region is not home:
                ends.append(self._position(facts.block.end))
        for use in facts.forward_uses:
            region = self._region_of(facts.micro_batch, self.index.memory.tasks[use].operator)
            if region is not None and region is not home and use in region.positions:
                ends.append(region.positions[use])
        return max(ends)

    def _is_read_by_region(self, facts: BlockFacts, home: _Region | None) -> bool:
        """Return whether a block whose saves are not known is read by backward of its own recomputed layer only."""
        tasks = self.index.memory.tasks
        users = [use for use in facts.block.uses if tasks[use].phase != FORWARD]
        return home is not None and bool(users) and all(self.index.layer_of(use) == home.layer for use in users)

    def _recomputed_end(self, facts: BlockFacts, home: _Region) -> int:
        """Return the end of the block that a recomputed operator makes."""
        is_saved_inside = any(self._region_of(facts.micro_batch, saver) is home for saver, _ in facts.reads)
        if is_saved_inside or (not facts.reads and self._is_read_by_region(facts, home)):
            return self._position(facts.block.end)
        uses = [home.positions[use] for use in facts.forward_uses if use in home.positions]
        return max([home.positions[facts.block.begin], *uses])

    # -- swap -------------------------------------------------------------------------------------

    def _swapped_operators(self) -> Iterator[int]:
        """Yield the operators of forward that run in a swapped cell."""
        for number, operator in enumerate(self.index.trace.operators):
            if operator.layer_index is not None and operator.is_forward:
                actions = self.actions[operator.layer_index]
                if actions.is_swapped or (actions.swapped and is_in(operator, actions.swapped)):
                    yield number

    def _swap_layer(self, facts: BlockFacts, home: _Region | None) -> int | None:
        """Return the layer that swaps a saved block; None if it stays."""
        if facts.is_protected or not self.swapped_operators:
            return None
        operators = self.index.trace.operators
        savers = [
            s for s, _ in facts.reads if s in self.swapped_operators and self._region_of(facts.micro_batch, s) is None
        ]
        for use in facts.forward_uses:
            operator = self.index.memory.tasks[use].operator
            region = self._region_of(facts.micro_batch, operator)
            if operator in self.swapped_operators and region is not None and region is not home:
                savers.append(operator)  # an input of a recomputed cell
        layers = sorted({layer for saver in savers if (layer := operators[saver].layer_index) is not None})
        if not layers or layers[0] + self.prefetch >= self.index.num_layers:
            return None
        span = self.index.forward_spans[facts.micro_batch, layers[0]]
        return None if any(use > span.last for use in facts.forward_uses) else layers[0]

    def _swap(self, number: int, facts: BlockFacts, layer: int, kept_end: int) -> None:
        index = self._add_copy(number, facts.micro_batch, layer, facts.slice_bytes or facts.block.size_bytes)
        copy = self.schedule.copies[index]
        self._add(number, self._position(facts.block.begin), copy.release, Purpose.OFFLOADED, index)
        self._add(number, copy.fetch, max(copy.backward_begin, kept_end), Purpose.PREFETCHED, index)
        if facts.slice_bytes:
            lifetime = MemoryLifetime(facts.slice_bytes, copy.forward_end, copy.backward_begin, number, Purpose.SLICE)
            self.schedule.lifetimes.append(lifetime)

    def _add_copy(self, number: int, micro_batch: int, layer: int, size_bytes: int) -> int:
        """Add a copy of a layer, and return its index."""
        own, later = self._spans(micro_batch, layer), self._spans(micro_batch, layer + self.prefetch)
        self.schedule.copies.append(
            Copy(
                size_bytes=size_bytes,
                block=number,
                layer=layer,
                micro_batch=micro_batch,
                forward_end=own[0].last,
                release=later[0].last,
                fetch=later[1].first,
                backward_begin=own[1].first,
            )
        )
        return len(self.schedule.copies) - 1

    def _moved_weights(self) -> dict[int, int]:
        """Return the layer that moves a weight, by block: of equal blocks any one, as only their size counts."""
        layers: dict[int, int] = {}
        blocks = [number for number, facts in enumerate(self.index.blocks) if facts.is_permanent]
        for view in self.index.weight_views:
            layer = self.index.trace.operators[view.saver].layer_index
            if view.saver not in self.swapped_operators or view.saver in self.region_names or layer is None:
                continue
            number = next((n for n in blocks if n not in layers and self.index.is_size_of(n, view.size_bytes)), None)
            if number is not None and layer + self.prefetch < self.index.num_layers:
                layers[number] = layer
        return layers

    def _swap_weight(self, number: int, layer: int) -> None:
        begin = 0
        for micro_batch in range(self.index.num_micro_batches):
            index = self._add_copy(number, micro_batch, layer, self.index.memory.blocks[number].size_bytes)
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
            for (micro, of_layer, _), region in self.regions.items()
            if micro == micro_batch and of_layer == layer
        ]
        return (
            TaskSpan(self.positions[forward.first], self.positions[forward.last]),
            TaskSpan(min([first, *begins]), self.positions[backward.last]),
        )

    def _add(self, number: int, begin: int, end: int, purpose: Purpose, copy: int = -1) -> None:
        size_bytes = self.index.memory.blocks[number].size_bytes
        self.schedule.lifetimes.append(MemoryLifetime(size_bytes, begin, max(begin, end), number, purpose, copy))
