"""Problems of a captured model for solvers: one pipeline stage, or all stages together."""

from collections.abc import Sequence

import numpy as np

from mindswap.planner.evaluate import NUM_ROUNDS
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.stage_problem import AssignmentCost, DecisionCosts, StageProblem
from mindswap.policy.model import Policy
from mindswap.simulator.engine import run_program
from mindswap.simulator.layer_block import Block
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.program import OpKind
from mindswap.simulator.program_builder import build_program
from mindswap.simulator.schedules.rounds import max_num_in_flight
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.timeline import Timeline


class PipelineProblem(StageProblem):
    """All pipeline stages of a captured model together, which wait for each other.

    Args:
        layer_assignments: layer assignments of the model, shared by all problems.
        model: step model, or one with fewer micro-batches.
        budget_bytes: device memory budget of each stage, static memory included.
        host_budget_bytes: host memory budget of one card.
        stage: stage that is simulated alone; None for all of them.
    """

    fixed_operators = 3000  # cost of building the program

    def __init__(
        self,
        layer_assignments: LayerAssignments,
        model: StepModel,
        budget_bytes: int,
        host_budget_bytes: int,
        stage: int | None = None,
    ):
        super().__init__(model.transfers, model.layout, stage)
        self.budget_bytes = budget_bytes
        self.host_budget_bytes = host_budget_bytes
        catalog, full_layout = layer_assignments.catalog, layer_assignments.model.layout
        stages = range(full_layout.num_stages) if stage is None else (stage,)
        segments = sorted(segment for each in stages for chunk in full_layout.chunks[each] for segment in chunk)
        self.layers = tuple(segment - 1 for segment in segments if 1 <= segment <= model.captured.num_layers)
        self.static_bytes = np.array([model.static[each].total_bytes for each in stages])
        if all(full_layout.num_ahead(each) is not None for each in stages):
            self.num_unsimulated = full_layout.num_micro_batches - self.layout.num_micro_batches
        self.groups = {
            name: i
            for layer_groups in catalog.groups
            for i, group in enumerate(layer_groups)
            for label in group.producers
            for name in label
        }
        self.cells = tuple(
            dict.fromkeys(
                (group.label[0], i)
                for layer_groups in catalog.groups
                for i, group in enumerate(layer_groups)
                if catalog.is_cell[i] and group.label
            )
        )
        layer_classes = [catalog.layer_classes[layer] for layer in self.layers]
        self.costs = DecisionCosts(
            freed_bytes=catalog.freed_bytes[layer_classes],
            recompute_ns=catalog.recompute_ns[layer_classes],
            copy_ns=catalog.copy_ns[layer_classes],
            num_in_flight=max(_short_run(full_layout, each)[1] for each in stages),
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

    def assignment_cost(self, layer: int, decisions: np.ndarray) -> AssignmentCost:
        """Return the exact cost of the decisions together: groups may share recomputed operators or names."""
        return self._layer_assignments.assignment_cost(self.layers[layer], decisions)

    def effective(self, layer: int, decisions: np.ndarray) -> np.ndarray:
        """Return the decisions without swaps that have no effect."""
        return self._layer_assignments.effective(self.layers[layer], decisions)


class SingleStageProblem(PipelineProblem):
    """One pipeline stage of a captured model, run alone for as few micro-batches as show its steady state.

    Args:
        layer_assignments: as in `PipelineProblem`.
        stage: index of the stage.
        budget_bytes: as in `PipelineProblem`.
        host_budget_bytes: as in `PipelineProblem`.
        idle_ns: idle time of the stage, from `idle_times_ns`.
        tolerated_extra_ns: as in `StageProblem`.

    Attributes:
        idle_ns: idle time of the stage.
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
        short = model.with_micro_batches(_short_run(model.layout, stage)[0])
        super().__init__(layer_assignments, short, budget_bytes, host_budget_bytes, stage)
        self.tolerated_extra_ns = tolerated_extra_ns
        self.idle_ns, self._first_received_ns = idle_ns, 0
        if idle_ns:
            timeline = self.timeline(np.zeros(self.costs.copy_ns.shape, np.int64))
            kind = timeline.program.ops.kind
            ahead = np.flatnonzero(kind[: _first_backward(kind)] < OpKind.COLLECTIVE)
            self._first_received_ns = int(timeline.op_end_ns[ahead[-1]]) + idle_ns

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


def _short_run(layout: StageLayout, stage: int) -> tuple[int, int]:
    """Return the number of micro-batches for warm-up, steady state and cool-down, and the maximum in flight."""
    num_chunks, num_stages = len(layout.chunks[stage]), layout.num_stages
    max_in_flight = max_num_in_flight(layout.passes(stage))
    num_micro_batches = -(-max_in_flight // layout.num_sequences)  # micro-batches
    if num_chunks > 1:  # whole rounds, as the order is made of them
        rounds = -(-(num_micro_batches + num_chunks) // (num_chunks * num_stages))
        return layout.short_of(rounds * num_stages), -(-max_in_flight // num_chunks)
    return layout.short_of(num_micro_batches + NUM_ROUNDS), max_in_flight
