"""Simulation of the pipeline stages of a step of MindFormers 2.x (PyNative), each from a tracked dry run of its own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindswap.graph.analysis.liveness import LayerSample
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.static_memory import StaticMemory
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.program import Copies, Intervals, Program, copy_position, copy_reference, join
from mindswap.simulator.step_model import SimulatedStep
from mindswap.simulator.step_model_2x import StepModel2x
from mindswap.simulator.timeline import StepTerm, Timeline
from mindswap.simulator.traced_step import TracedStepModel

CAVEAT = (
    "pipeline stages: each was recorded alone, with one micro-batch after the other; memory of those in flight is "
    "added, and the time to fill and drain the pipeline"
)


class StagedStepModel(StepModel2x):
    """Step model of all pipeline stages of MindFormers 2.x.

    Args:
        stages: model of each stage, in order.

    Attributes:
        stages: model of each stage.

    Raises:
        ValueError: the stages are not the layers of one model.
    """

    def __init__(self, stages: Sequence[TracedStepModel]):
        self.stages = tuple(stages)
        first = self.stages[0]
        layers = sorted(layer for stage in self.stages for layer in stage.layer_indices)
        if layers != list(range(len(layers))):
            raise ValueError(f"the stages have the layers {layers}")
        self.costs = first.costs
        self.settings = first.settings
        self.is_own_engine, self.file_caveats = first.is_own_engine, first.file_caveats
        self.caveats = (*first.caveats, CAVEAT)
        self.captured = self._join_captured()
        self.layer_indices = tuple(layers)
        self._stage_of = {layer: stage for stage in self.stages for layer in stage.layer_indices}

    def _join_captured(self) -> CapturedStep:
        """Return cell trees of all layers; the graph is that of the first stage."""
        trees: dict[int, CellNode] = {}
        for stage in self.stages:
            trees |= dict(zip(stage.layer_indices, stage.captured.trees, strict=True))
        layers = tuple(range(len(trees)))
        ordered = tuple(trees[layer] for layer in layers)
        first = self.stages[0].captured
        return replace(first, sample=LayerSample(layers, layers), trees=ordered, notes=(*first.notes, CAVEAT))

    def has_cell(self, layer: int, path: str) -> bool:
        """Return whether a layer of the model has a cell at a dotted path; "" is the layer itself."""
        return self._stage_of[layer].has_cell(layer, path)

    def saving_cells(self, min_permille: int) -> list[str]:
        """Return the cells that save at least a part of what their layer saves, in any layer, by dotted path."""
        paths = {path for stage in self.stages for path in stage.saving_cells(min_permille)}
        return sorted(paths, key=lambda path: (path.count("."), path))

    def simulate(self, policy: Policy) -> SimulatedStep:
        """Simulate a step under a policy."""
        schedules = [stage.schedule(policy) for stage in self.stages]
        pairs = list(zip(self.stages, schedules, strict=True))
        timeline = run_program(join_stages([stage.program_of(schedule) for stage, schedule in pairs]))
        peaks = tuple(int(peak) for peak in peak_memory(timeline))
        static = tuple(stage.static_of(schedule) for stage, schedule in pairs)
        return SimulatedStep(timeline, self.terms(timeline), peaks, static)

    def program(self, policy: Policy) -> Program:
        """Build operators, copies and memory intervals of all stages under a policy."""
        return join_stages([stage.program(policy) for stage in self.stages])

    @property
    def static(self) -> tuple[StaticMemory, ...]:
        """Memory of each stage that is live during the entire step."""
        return tuple(static for stage in self.stages for static in stage.static)

    def terms(self, timeline: Timeline) -> tuple[StepTerm, ...]:
        """Return the time of the micro-batches that were not tracked, and of filling and draining the pipeline."""
        passes_ns = [stage.pass_ns(timeline, number) for number, stage in enumerate(self.stages)]
        num_more = self.settings.num_micro_batches - self.stages[0].index.num_micro_batches
        fill = StepTerm("filling and draining the pipeline", sum(passes_ns) - max(passes_ns))
        more = StepTerm(f"{num_more} more micro-batches", max(passes_ns) * num_more)
        return (more, fill) if num_more > 0 else (fill,)

    def model_flops(self) -> int:
        """Return the floating point operations of matrix units in one step without recompute, over all cards."""
        return sum(stage.model_flops() for stage in self.stages)


def join_stages(programs: Sequence[Program]) -> Program:
    """Return the program of several stages that do not wait for each other.

    Args:
        programs: program of each stage, with one stage each.
    """
    ops, copies, intervals = [], [], []
    labels: list[str] = []
    starts = [0]
    num_copies = 0
    for stage, program in enumerate(programs):
        first = starts[-1]
        label = program.ops.label + len(labels)
        waits = np.where(program.ops.wait_op < 0, program.ops.wait_op, program.ops.wait_op + first)
        ops.append(replace(program.ops, label=label, wait_op=waits))
        copies.append(_shifted_copies(program.copies, first, len(labels)))
        intervals.append(_shifted_intervals(program.intervals, first, num_copies, len(labels), stage))
        labels += map(str, program.labels)
        starts.append(first + len(program.ops))
        num_copies += len(program.copies)
    return Program(
        stage_starts=np.array(starts),
        ops=join(ops),
        copies=join(copies),
        intervals=join(intervals),
        labels=labels,
        contended_permille=programs[0].contended_permille,
    )


def _shifted_copies(copies: Copies, num_ops: int, num_labels: int) -> Copies:
    prefetch = np.where(copies.prefetch_op < 0, copies.prefetch_op, copies.prefetch_op + num_ops)
    return replace(
        copies,
        producer_op=copies.producer_op + num_ops,
        release_op=copies.release_op + num_ops,
        prefetch_op=prefetch,
        first_user_op=copies.first_user_op + num_ops,
        label=copies.label + num_labels,
    )


def _shifted_intervals(intervals: Intervals, num_ops: int, num_copies: int, num_labels: int, stage: int) -> Intervals:
    def shifted(ends: np.ndarray) -> np.ndarray:
        return np.where(ends < 0, copy_reference(copy_position(ends) + num_copies), ends + num_ops)

    return replace(
        intervals,
        begin=shifted(intervals.begin),
        end=shifted(intervals.end),
        label=intervals.label + num_labels,
        stage=np.full(len(intervals), stage, np.int32),
    )
