"""The problem that a solver sees: decisions for the layers of a pipeline stage, their costs, and their simulation.

An assignment is an integer array of shape (num_layers, num_groups): `KEEP`, a positive number to swap with that
`backward_prefetch`, or a negative number, -p, to recompute by path p. A solver sees this and nothing of MindSpore.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label, Names
from mindswap.planner.evaluate import slowest_round_ns
from mindswap.policy.cell_tree import is_within
from mindswap.simulator.engine import run_program
from mindswap.simulator.layer_block import Block
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.memory import peak_memory, profile_memory
from mindswap.simulator.placing import RELEASE_FACTOR, TransferCosts, execution_ranks
from mindswap.simulator.program import MemoryKind
from mindswap.simulator.program_builder import build_program
from mindswap.simulator.summary import peak_host_bytes
from mindswap.simulator.timeline import Timeline

KEEP = 0
# Memory of tensors that are copied, while they are on the device.
IN_FLIGHT = (MemoryKind.OFFLOADING, MemoryKind.PREFETCHED)


@dataclass(frozen=True, eq=False)
class DecisionCosts:
    """Costs and savings of each decision taken alone. The first axes are layers and activation groups."""

    # int64, shape (num_layers, num_groups, 1 + num_recompute_paths): device memory freed per micro-batch, by swap at
    # index 0, by recompute path p at index p; 0 if the decision is impossible
    freed_bytes: np.ndarray
    recompute_ns: np.ndarray  # int64, same shape: recompute time per micro-batch
    copy_ns: np.ndarray  # int64, shape (num_layers, num_groups): copy time, of the slower direction
    num_in_flight: int = 1  # micro-batches whose activations are alive at the peak
    # bool, shape (num_groups,): the group is a cell, which frees the same tensors as groups inside it; or broadcastable
    is_cell: np.ndarray = field(default_factory=lambda: np.zeros(1, bool))

    @property
    def num_layers(self) -> int:
        """Number of layers with decisions."""
        return self.freed_bytes.shape[0]

    @property
    def num_groups(self) -> int:
        """Number of activation groups of a layer."""
        return self.freed_bytes.shape[1]

    def is_possible(self, assignment: np.ndarray) -> np.ndarray:
        """Return whether each decision is possible in its layer: bool, shape (num_layers, num_groups)."""
        return (assignment == KEEP) | (_select_by_decision(self.freed_bytes, assignment) > 0)

    def of(self, assignment: np.ndarray) -> np.ndarray:
        """Return the costs of each decision alone: int64, shape (4, num_layers, num_groups), as in `AssignmentCost`."""
        is_swap = assignment > KEEP
        freed_bytes = np.where(assignment == KEEP, 0, _select_by_decision(self.freed_bytes, assignment))
        recompute_ns = _select_by_decision(self.recompute_ns, assignment)
        return np.stack([freed_bytes, recompute_ns, np.where(is_swap, self.copy_ns, 0), freed_bytes * is_swap])


def _select_by_decision(table: np.ndarray, assignment: np.ndarray) -> np.ndarray:
    """Select the entry of each decision from a table: index p for recompute path p, 0 for swap and keep."""
    return np.take_along_axis(table, np.maximum(-assignment, 0)[:, :, None], axis=2)[:, :, 0]


class AssignmentCost(NamedTuple):
    """Costs and savings of all decisions of one layer together, per micro-batch."""

    freed_bytes: int  # device memory freed between forward and backward
    recompute_ns: int  # recompute time
    copy_ns: int  # copy time, of the slower direction
    host_bytes: int  # host memory


@dataclass(frozen=True, order=True)
class Score:
    """Simulated cost of an assignment; smaller is better, compared field by field."""

    excess_bytes: int  # device and host memory over the budgets; 0 if it fits
    cost_ns: int  # step time plus a penalty for each entry of the policy
    step_time_ns: int  # simulated
    peak_bytes: int  # simulated device memory
    host_excess_bytes: int = 0  # part of `excess_bytes` that is host memory

    @property
    def fits(self) -> bool:
        """Return whether it is within the budgets."""
        return self.excess_bytes == 0


class PeakMemory(NamedTuple):
    """Device memory of the groups at the peaks of some stages, in bytes of all micro-batches.

    That of a cell is what operators inside it made, that of group 0 is of the full layer.
    """

    excess_bytes: np.ndarray  # int64, shape (num_stages,): of each stage over its budget
    kept_bytes: np.ndarray  # int64, shape (num_stages, num_layers, num_groups): saved for backward
    in_flight_bytes: np.ndarray  # int64, same shape: of tensors that are copied


class StageProblem(ABC):
    """The decisions of one pipeline stage, or of all, with their costs and budgets, and how assignments are simulated.

    Args:
        transfers: durations of copies.
        layout: stages and schedule of the simulated step.
        stage: stage that is simulated alone; None for all stages, which wait for each other.
    """

    costs: DecisionCosts  # of the decisions
    budget_bytes: int  # device memory budget of each stage
    host_budget_bytes: int  # for swapped tensors, per device
    static_bytes: np.ndarray  # int64, shape (num_stages simulated,): memory of each stage besides that of the program
    tolerated_extra_ns = 0.0  # per micro-batch: extra time over keeping everything that is good enough
    num_unsimulated = 0  # micro-batches that are extrapolated: a steady round of the slowest stage for each
    groups: Mapping[str, int]  # producer name of a tensor -> index of its group
    cells: Sequence[tuple[str, int]] = ()  # path and group of each cell that is decided as a group
    layers: Sequence[int]  # index in the model of each layer
    fixed_operators: int = 0  # fixed cost of a simulation, in operators

    def __init__(self, transfers: TransferCosts, layout: StageLayout, stage: int | None):
        self.transfers = transfers
        self.layout = layout
        self.stage = stage

    @abstractmethod
    def blocks(self, assignment: np.ndarray) -> Sequence[Block]:
        """Return the blocks of the whole step, with the assignment applied to the layers of the problem."""

    @abstractmethod
    def assignment_cost(self, layer: int, decisions: np.ndarray) -> AssignmentCost:
        """Return the cost of the decisions of one layer together.

        Args:
            layer: position among the layers of the problem.
            decisions: int64, shape (num_groups,); prefetch distances are ignored.
        """

    def effective(self, layer: int, decisions: np.ndarray) -> np.ndarray:
        """Return the decisions without swaps that have no effect; arguments as of `assignment_cost`."""
        return decisions

    @property
    def num_scored(self) -> int:
        """Number of micro-batches that the time of a score covers."""
        return self.layout.num_micro_batches + self.num_unsimulated

    def timeline(self, assignment: np.ndarray) -> Timeline:
        """Simulate an assignment."""
        return run_program(build_program(self.blocks(assignment), self.transfers, self.layout, self.stage))

    def score(self, timeline: Timeline) -> Score:
        """Return the score of a timeline, extrapolated to all micro-batches; the peak is the highest of any stage."""
        time_ns = timeline.step_time_ns
        if self.num_unsimulated:
            time_ns += self.num_unsimulated * slowest_round_ns(timeline, self.layout, self.stage)
        used_bytes = peak_memory(timeline) + self.static_bytes
        host_excess = int(self._host_excess_bytes(timeline).sum())
        excess_bytes = int(np.maximum(0, used_bytes - self.budget_bytes).sum()) + host_excess
        return Score(excess_bytes, time_ns, time_ns, int(used_bytes.max()), host_excess)

    def excess_bytes_of_stages(self, timeline: Timeline) -> np.ndarray:
        """Return the bytes of each stage over the budgets: int64, shape (num_stages simulated,)."""
        excess_bytes = np.maximum(0, peak_memory(timeline) + self.static_bytes - self.budget_bytes)
        return excess_bytes + self._host_excess_bytes(timeline)

    def _host_excess_bytes(self, timeline: Timeline) -> np.ndarray:
        stages = range(timeline.program.num_stages)
        host_bytes = [peak_host_bytes(timeline, timeline.program.copies_stage == stage) for stage in stages]
        return np.maximum(0, np.array(host_bytes) - self.host_budget_bytes)

    def min_distances(self, timeline: Timeline) -> np.ndarray:
        """Return the minimum `backward_prefetch` with which no copy delays an operator, given the times of a timeline.

        Returns:
            int64, shape (num_layers, num_groups): maximum over the micro-batches; 0 for groups that are not copied.
        """
        program, copies = timeline.program, timeline.program.copies
        min_distances = np.zeros((self.costs.num_layers, self.costs.num_groups), np.int64)
        needed = np.ones(len(copies), np.int64)
        for begin, end in zip(program.stage_starts.tolist(), program.stage_starts[1:].tolist(), strict=False):
            own_copies = np.flatnonzero((copies.producer_op >= begin) & (copies.producer_op < end))
            needed[own_copies] = _needed_distances(timeline, own_copies, begin, end)
        layer, group = self._positions_of(copies.layer, copies.label, program.labels)
        is_decided = (layer >= 0) & (group >= 0)
        np.maximum.at(min_distances, (layer[is_decided], group[is_decided]), needed[is_decided])
        return min_distances

    def memory_at_peaks(self, timeline: Timeline) -> PeakMemory:
        """Return the memory of each group at the peak of each stage that exceeds its budget.

        If none does, it is that of the stage with the highest peak.
        """
        used_bytes = peak_memory(timeline) + self.static_bytes
        stages = np.flatnonzero(used_bytes > self.budget_bytes)
        stages = stages if len(stages) else np.argmax(used_bytes, keepdims=True)
        holders = [profile_memory(timeline, stage).holders for stage in stages.tolist()]
        kind = timeline.program.intervals.kind
        return PeakMemory(
            np.maximum(0, used_bytes[stages] - self.budget_bytes),
            np.array([self._bytes_of(timeline, each[kind[each] == MemoryKind.KEPT]) for each in holders]),
            np.array([self._bytes_of(timeline, each[np.isin(kind[each], IN_FLIGHT)]) for each in holders]),
        )

    def _bytes_of(self, timeline: Timeline, holders: np.ndarray) -> np.ndarray:
        """Return the bytes of each group in some intervals: int64, shape (num_layers, num_groups)."""
        size_bytes, intervals = np.zeros(self.costs.copy_ns.shape, np.int64), timeline.program.intervals
        labels, label = timeline.program.labels, intervals.label[holders]
        layer, group = self._positions_of(intervals.layer[holders], label, labels)
        is_decided = (layer >= 0) & (group >= 0)
        np.add.at(size_bytes, (layer[is_decided], group[is_decided]), intervals.size_bytes[holders[is_decided]])
        size_bytes[:, 0] = size_bytes.sum(axis=1)
        for cell, position in self.cells:
            is_inside = np.array([isinstance(each, Names) and is_within(each[0], cell) for each in labels])[label]
            of_cell = (layer >= 0) & is_inside
            np.add.at(size_bytes[:, position], layer[of_cell], intervals.size_bytes[holders[of_cell]])
        return size_bytes

    def _positions_of(
        self, layer: np.ndarray, label: np.ndarray, labels: Sequence[Label]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the layer position and the group of tensors of a program, given layer and label; -1 for none."""
        layer_of = np.full(2 + max((*self.layers, int(layer.max(initial=0)))), -1)  # -1 is outside the layers
        layer_of[list(self.layers)] = np.arange(len(self.layers))
        paths = (label[0] if isinstance(label, Names) else label for label in labels)
        return layer_of[layer], np.array([self.groups.get(path, -1) for path in paths])[label]


def _needed_distances(timeline: Timeline, own_copies: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Return the minimum `backward_prefetch` of copies, in positions of the execution order, copies included.

    An offload needs those up to the last operator that starts before it has ended, divided by `RELEASE_FACTOR`; a
    prefetch those from its latest possible start to its first user.

    Args:
        timeline: timeline of a step.
        own_copies: positions of the copies of one stage.
        begin: position of the first operator of the stage.
        end: position after its last operator.
    """
    copies, ranks = timeline.program.copies, execution_ranks(timeline.program.ops, begin, end)
    producer, user = copies.producer_op[own_copies] - begin, copies.first_user_op[own_copies] - begin
    producers, start_ns = np.sort(producer), timeline.op_start_ns[begin:end]
    started_ns = np.maximum.accumulate(start_ns)
    last = np.maximum(np.searchsorted(started_ns, timeline.out_end_ns[own_copies], side="left") - 1, producer + 1)
    copies_before = np.searchsorted(producers, last) - np.searchsorted(producers, producer)
    release = -(-(ranks[last] - ranks[producer] - 1 + copies_before) // RELEASE_FACTOR)
    # Prefetches are sequential: each must start early enough for all later ones.
    order = np.argsort(user, kind="stable")
    duration_ns = (timeline.in_end_ns - timeline.in_start_ns)[own_copies][order]
    total_ns = np.cumsum(duration_ns)
    latest_ns = np.minimum.accumulate((start_ns[user[order]] - total_ns)[::-1])[::-1] + total_ns - duration_ns
    ended = np.searchsorted(np.maximum.accumulate(timeline.op_end_ns[begin:end]), latest_ns, side="right") - 1
    prefetch = np.empty(len(own_copies), np.int64)
    prefetch[order] = ranks[user[order]] - ranks[np.maximum(ended, 0)] - 1
    return np.maximum(1, np.maximum(release, prefetch))
