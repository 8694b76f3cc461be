"""Problems of a captured model for solvers: one pipeline stage, or all stages together."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindswap.planner.evaluate import NUM_ROUNDS, slowest_round_ns
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.stage_problem import AssignmentCost, DecisionCosts, Score, StageProblem
from mindswap.policy.model import Policy
from mindswap.simulator.engine import run_program
from mindswap.simulator.layer_block import Block
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.program import OpKind
from mindswap.simulator.program_builder import build_program
from mindswap.simulator.schedules.rounds import max_num_in_flight
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.summary import peak_host_bytes
from mindswap.simulator.timeline import Timeline


class _ModelProblem(StageProblem):
    """Base of problems of a captured model.

    Args:
        layer_assignments: layer assignments of the model, shared by all problems.
        model: step model, or one with fewer micro-batches.
        layers: layers with decisions.
        layout: stages and schedule.
        stage: index of the stage.
        in_flight: micro-batches whose activations are live at the peak.
        budget_bytes: as in `StageProblem`.
        host_budget_bytes: as in `StageProblem`.
    """

    fixed_operators = 3000  # cost of building the program

    def __init__(
        self,
        layer_assignments: LayerAssignments,
        model: StepModel,
        layers: Sequence[int],
        layout: StageLayout,
        stage: int,
        in_flight: int,
        budget_bytes: int,
        host_budget_bytes: int,
    ):
        super().__init__(model.transfers, layout, stage)
        self.budget_bytes = budget_bytes
        self.host_budget_bytes = host_budget_bytes
        self.layers = tuple(layers)
        catalog = layer_assignments.catalog
        self.groups = {
            name: i
            for layer_groups in catalog.groups
            for i, group in enumerate(layer_groups)
            for label in group.producers
            for name in label
        }
        layer_classes = [catalog.layer_classes[layer] for layer in self.layers]
        self.costs = DecisionCosts(
            freed_bytes=catalog.freed_bytes[layer_classes],
            recompute_ns=catalog.recompute_ns[layer_classes],
            copy_ns=catalog.copy_ns[layer_classes],
            num_in_flight=in_flight,
            conflicts=catalog.conflicts[layer_classes],
            is_cell=catalog.is_cell,
        )
        self._layer_assignments = layer_assignments
        self._plain = model.blocks(Policy())

    def blocks(self, assignment: np.ndarray) -> Sequence[Block]:
        """Return the blocks of the whole step with the assignment applied to the layers of this problem."""
        blocks = list(self._plain)
        for layer_index, decisions in zip(self.layers, assignment, strict=True):
            blocks[1 + layer_index] = self._layer_assignments.block(layer_index, decisions)
        return blocks

    def extrapolate(self, score: Score, timeline: Timeline) -> Score:
        """Add the time of micro-batches that are not simulated: a steady round of the slowest stage for each."""
        if not self.num_unsimulated:
            return score
        is_alone = timeline.program.num_stages < self.layout.num_stages
        round_ns = slowest_round_ns(timeline, self.layout, self.stage if is_alone else None)
        time_ns = score.step_time_ns + self.num_unsimulated * round_ns
        return replace(score, cost_ns=time_ns, step_time_ns=time_ns)

    def assignment_cost(self, layer: int, decisions: np.ndarray) -> AssignmentCost:
        """Return the exact cost of the decisions together: groups may share recomputed operators or names."""
        return self._layer_assignments.assignment_cost(self.layers[layer], decisions)

    def effective(self, layer: int, decisions: np.ndarray) -> np.ndarray:
        """Return the decisions without swaps that have no effect."""
        return self._layer_assignments.effective(self.layers[layer], decisions)


class SingleStageProblem(_ModelProblem):
    """One pipeline stage of a captured model, run alone for as few micro-batches as show its steady state.

    Args:
        layer_assignments: as in `_ModelProblem`.
        stage: index of the stage.
        budget_bytes: memory budget of activations.
        host_budget_bytes: host memory budget of one card.
        idle_ns: idle time of the stage, from `idle_times_ns`.
        tolerated_extra_ns: as in `StageProblem`.

    Attributes:
        idle_ns: idle time of the stage.
        num_unsimulated: micro-batches that are extrapolated.
    """

    def __init__(
        self,
        layer_assignments: LayerAssignments,
        stage: int,
        budget_bytes: int,
        host_budget_bytes: int,
        idle_ns: int = 0,
        tolerated_extra_ns: float = 0.0,
    ):
        model = layer_assignments.model
        num_micro_batches, num_in_flight = _short_run(model.layout, stage)
        num_layers = model.captured.num_layers
        segments = sorted(segment for chunk in model.layout.chunks[stage] for segment in chunk)
        layers = [segment - 1 for segment in segments if 1 <= segment <= num_layers]
        short = replace(model.layout, num_micro_batches=num_micro_batches)
        super().__init__(
            layer_assignments=layer_assignments,
            model=model,
            layers=layers,
            layout=short,
            stage=stage,
            in_flight=num_in_flight,
            budget_bytes=budget_bytes,
            host_budget_bytes=host_budget_bytes,
        )
        self.tolerated_extra_ns = tolerated_extra_ns
        if model.layout.num_ahead(stage) is not None:
            self.num_unsimulated = model.layout.num_micro_batches - num_micro_batches
        self.idle_ns, self._first_received_ns = 0, 0
        if idle_ns:
            timeline = self.timeline(np.zeros((len(layers), self.costs.num_groups), np.int64))
            kind = timeline.program.ops.kind
            ahead = np.flatnonzero(kind[: _first_backward(kind)] < OpKind.COLLECTIVE)
            self.idle_ns = idle_ns
            self._first_received_ns = int(timeline.op_end_ns[ahead[-1]]) + idle_ns

    def score(self, timeline: Timeline) -> Score:
        """Return the score of a timeline of this stage, extrapolated to all micro-batches of the step."""
        return self.extrapolate(super().score(timeline), timeline)

    def timeline(self, assignment: np.ndarray) -> Timeline:
        """Simulate an assignment on this stage alone.

        Received tensors are available at once, except the one that the first backward waits for.
        """
        program = build_program(self.blocks(assignment), self.transfers, self.layout, self.stage)
        kind = program.ops.kind
        is_received = np.flatnonzero(kind[: _first_backward(kind)] == OpKind.RECEIVE)
        if self._first_received_ns and len(is_received):
            program.ops.duration_ns[is_received[-1]] = self._first_received_ns
        return run_program(program)


def _first_backward(kind: np.ndarray) -> int:
    return int(np.argmax((kind == OpKind.BACKWARD) | (kind == OpKind.RECOMPUTE)))


def idle_times_ns(timeline: Timeline) -> tuple[int, ...]:
    """Return the idle time of each stage between its first forward passes and its first backward pass.

    Copies run in that time, so a stage that is simulated alone needs it, too.

    Args:
        timeline: timeline of a step that keeps everything.
    """
    ops, idle_ns = timeline.program.ops, []
    for begin, end in zip(timeline.program.stage_starts[:-1], timeline.program.stage_starts[1:], strict=True):
        compute = begin + np.flatnonzero(ops.kind[begin:end] < OpKind.COLLECTIVE)
        first = _first_backward(ops.kind[compute])
        idle_ns.append(int(timeline.op_start_ns[compute[first]] - timeline.op_end_ns[compute[first - 1]]))
    return tuple(idle_ns)


class PipelineProblem(_ModelProblem):
    """All pipeline stages of a captured model together, which wait for each other.

    Args:
        layer_assignments: as in `_ModelProblem`.
        model: step model, or one with fewer micro-batches.
        budget_bytes: device memory budget, static memory included.
        host_budget_bytes: host memory budget of one card.
    """

    def __init__(
        self, layer_assignments: LayerAssignments, model: StepModel, budget_bytes: int, host_budget_bytes: int
    ):
        in_flight = max(_short_run(model.layout, stage)[1] for stage in range(model.layout.num_stages))
        layers = range(model.captured.num_layers)
        super().__init__(
            layer_assignments=layer_assignments,
            model=model,
            layers=layers,
            layout=model.layout,
            stage=0,
            in_flight=in_flight,
            budget_bytes=budget_bytes,
            host_budget_bytes=host_budget_bytes,
        )
        full_layout = layer_assignments.model.layout
        if all(full_layout.num_ahead(stage) is not None for stage in range(full_layout.num_stages)):
            self.num_unsimulated = full_layout.num_micro_batches - model.layout.num_micro_batches
        self.static_bytes = np.array([static.total_bytes for static in model.static])

    def timeline(self, assignment: np.ndarray) -> Timeline:
        """Simulate an assignment on all stages."""
        return run_program(build_program(self.blocks(assignment), self.transfers, self.layout))

    def score(self, timeline: Timeline) -> Score:
        """Return the score of all stages together; the peak is the highest of any stage."""
        host_excess = int(self._host_excess_bytes(timeline).sum())
        excess_bytes = int(self.excess_bytes_of_stages(timeline).sum())
        peak_bytes = int((peak_memory(timeline) + self.static_bytes).max())
        time_ns = timeline.step_time_ns
        return self.extrapolate(Score(excess_bytes, time_ns, time_ns, peak_bytes, host_excess), timeline)

    def excess_bytes_of_stages(self, timeline: Timeline) -> np.ndarray:
        """Return the bytes of each stage over the budgets: int64, shape (num_stages,)."""
        peaks = peak_memory(timeline) + self.static_bytes
        return np.maximum(0, peaks - self.budget_bytes) + self._host_excess_bytes(timeline)

    def _host_excess_bytes(self, timeline: Timeline) -> np.ndarray:
        stage_of = timeline.program.copies_stage
        host = [peak_host_bytes(timeline, stage_of == stage) for stage in range(len(self.static_bytes))]
        return np.maximum(0, np.array(host) - self.host_budget_bytes)


def _short_run(layout: StageLayout, stage: int) -> tuple[int, int]:
    """Return the number of micro-batches for warm-up, steady state and cool-down, and the maximum in flight."""
    num_chunks, num_stages = len(layout.chunks[stage]), layout.num_stages
    max_in_flight = max_num_in_flight(layout.passes(stage))
    num_micro_batches = -(-max_in_flight // layout.num_sequences)  # micro-batches
    if num_chunks > 1:  # whole rounds, as the order is made of them
        rounds = -(-(num_micro_batches + num_chunks) // (num_chunks * num_stages))
        return layout.short_of(rounds * num_stages), -(-max_in_flight // num_chunks)
    return layout.short_of(num_micro_batches + NUM_ROUNDS), max_in_flight
