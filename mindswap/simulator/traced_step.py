"""Simulation of a step of MindFormers 2.x (PyNative) from a tracked dry run: memory as tracked, time by the cost model.

All memory of the step is in the trace, by block: weights, float32 weights and states, activations, the loss with its
pieces, gradients, the optimizer. A policy changes the lifetimes of activations (`pynative.step_schedule`).
"""

from collections.abc import Iterator, Sequence
from copy import copy as shallow_copy
from dataclasses import replace

import numpy as np

from mindswap.config.step_settings import StepSettings
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.policy.model import Policy
from mindswap.pynative.passes_in_flight import find_held, host_bytes_in_flight
from mindswap.pynative.recomputed_regions import LayerActions
from mindswap.pynative.step_index import StepIndex
from mindswap.pynative.step_memory import BACKWARD, FORWARD, OPTIMIZER, StepMemory
from mindswap.pynative.step_schedule import Copy, MemoryLifetime, Purpose, Schedule, schedule_step
from mindswap.pynative.trace import RecordedStep
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.static_memory import StaticMemory
from mindswap.simulator.cost.transfer import copy_ns
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import (
    NO_OP,
    Copies,
    Intervals,
    MemoryKind,
    OpKind,
    Ops,
    Program,
    copy_reference,
)
from mindswap.simulator.step_model import SimulatedStep
from mindswap.simulator.step_model_2x import StepModel2x, distance_of
from mindswap.simulator.timeline import StepTerm, Timeline
from mindswap.simulator.traced_tasks import find_roles, label_tasks, task_durations_ns

CAVEATS = (
    "memory is that of a dry run of this step, with the policy applied to its blocks; times are estimated from shapes",
    "host launches are not modelled: where they are slower than the kernels, the step is longer",
)
_KINDS = {
    Purpose.FORWARD_ONLY: MemoryKind.TRANSIENT,
    Purpose.RECOMPUTED: MemoryKind.RECOMPUTED,
    Purpose.OFFLOADED: MemoryKind.OFFLOADING,
    Purpose.PREFETCHED: MemoryKind.PREFETCHED,
    Purpose.SLICE: MemoryKind.OFFLOADING,
}
_PARTS = {
    Purpose.RECOMPUTED: MemoryPart.RECOMPUTED_ACTIVATIONS,
    Purpose.OFFLOADED: MemoryPart.SAVED_ACTIVATIONS,
    Purpose.PREFETCHED: MemoryPart.PREFETCHED_COPIES,
    Purpose.SLICE: MemoryPart.SAVED_ACTIVATIONS,
}


class TracedStepModel(StepModel2x):
    """Step model of MindFormers 2.x. In policies, distances count layers, and patterns match entire dotted paths.

    Args:
        step: a recorded step with its memory.
        captured: the same step as a graph.
        costs: durations of operators, and the device with its links.
        settings: micro-batches and batch size.
        caveats: what of the file is not modelled, as text, in addition to `CAVEATS`.
        is_own_engine: whether mindswap's own executor swaps; default is the swap of MindFormers.
        in_flight: other passes that are in flight during each tracked one, as in a pipeline stage; default is none.

    Attributes:
        file_caveats: `caveats`.
        layer_indices: its layers in the full model, of which a pipeline stage has a part.
        is_own_engine: whether mindswap's own executor swaps.
        has_swap_elsewhere: whether pipeline stages swap whose layers are in no policy of this one.
    """

    def __init__(
        self,
        step: RecordedStep,
        captured: CapturedStep,
        costs: CostTable,
        settings: StepSettings,
        caveats: Sequence[str] = (),
        is_own_engine: bool = False,
        in_flight: Sequence[int] = (),
    ):
        if step.memory is None:
            raise AssertionError("a trace without the memory of a step")
        self.costs, self.settings, self.captured = costs, settings, captured
        self.file_caveats = tuple(caveats)
        self.is_own_engine = is_own_engine
        self.has_swap_elsewhere = False
        self.caveats = (*CAVEATS, *caveats)
        self.step_memory: StepMemory = step.memory
        self.index = StepIndex(step.trace, step.memory)
        self.layer_indices = step.layer_indices or tuple(range(self.index.num_layers))
        self.in_flight = tuple(in_flight)
        self._task_labels, self.texts = label_tasks(self.index)
        self._task_ns = task_durations_ns(self.index, captured.graph, costs)
        self._roles = find_roles(self.index, self._task_labels, self.texts, self.layer_indices)
        self._tasks = self._ops_of_tasks()
        self._cells = {
            tree: {".".join(path) for path, node in tree.walk() if not node.is_primitive}
            for tree in set(captured.trees)
        }

    # -- a step -----------------------------------------------------------------------------------

    def simulate(self, policy: Policy) -> SimulatedStep:
        """Simulate a step under a policy."""
        schedule = self.schedule(policy)
        timeline = run_program(self.program_of(schedule))
        peaks = tuple(int(peak) for peak in peak_memory(timeline))
        return SimulatedStep(timeline, self.terms(timeline), peaks, (self.static_of(schedule),))

    def program(self, policy: Policy) -> Program:
        """Build operators, copies and memory intervals of a step under a policy."""
        return self.program_of(self.schedule(policy))

    def schedule(self, policy: Policy) -> Schedule:
        """Return tasks, copies and lifetimes of memory under a policy."""
        has_swap = self.has_swap_elsewhere or bool(policy.layer_swap or policy.op_swap)
        is_whole = self.is_own_engine and has_swap  # without swap the hooks of the executor are not there
        return schedule_step(self.index, self.actions(policy), distance_of(policy), self.is_own_engine, is_whole)

    def with_swap_elsewhere(self) -> "TracedStepModel":
        """Return the model for policies of its layers alone, while other pipeline stages swap."""
        model = shallow_copy(self)
        model.has_swap_elsewhere = True
        return model

    def actions(self, policy: Policy) -> list[LayerActions]:
        """Return the actions of a policy on each layer."""
        return [
            LayerActions(
                is_recomputed=layer in policy.layer_recompute,
                is_swapped=any(layer in entry.layers for entry in policy.layer_swap),
                recomputed=tuple(e.pattern for e in policy.select_recompute if layer in e.layers),
                swapped=tuple(e.pattern for e in policy.op_swap if layer in e.layers),
                distances=(
                    *((entry.pattern, entry.prefetch) for entry in policy.op_swap if layer in entry.layers),
                    *(("", entry.prefetch) for entry in policy.layer_swap if layer in entry.layers),
                ),
            )
            for layer in self.layer_indices
        ]

    def saving_cells(self, min_permille: int) -> list[str]:
        """Return the cells that save at least a part of what their layer saves, in any layer, by dotted path."""
        operators = self.index.trace.operators
        by_cell: dict[tuple[int, str], int] = {}
        for facts in self.index.blocks:
            if not facts.is_saved or facts.is_protected or facts.micro_batch != 0 or not facts.reads:
                continue
            saver = operators[facts.reads[0].saver]
            if saver.layer_index is not None:
                for depth in range(len(saver.path)):
                    key = saver.layer_index, ".".join(saver.path[:depth])
                    by_cell[key] = by_cell.get(key, 0) + facts.block.size_bytes
        large = (
            path
            for (layer, path), size_bytes in by_cell.items()
            if path and size_bytes * 1000 >= by_cell[layer, ""] * min_permille
        )
        return sorted(dict.fromkeys(large), key=lambda path: (path.count("."), path))

    def has_cell(self, layer: int, path: str) -> bool:
        """Return whether a layer has a cell at a dotted path; "" is the layer itself."""
        return not path or path in self._cells[self.captured.trees[self.layer_indices.index(layer)]]

    @property
    def static(self) -> tuple[StaticMemory, ...]:
        """Memory that is live during the entire step."""
        return (self.static_of(Schedule()),)

    def terms(self, timeline: Timeline) -> tuple[StepTerm, ...]:
        """Return the time of the micro-batches that were not tracked: they are as the last one."""
        tracked, total = self.index.num_micro_batches, self.settings.num_micro_batches
        if total <= tracked:
            return ()
        return (StepTerm(f"{total - tracked} more micro-batches", self.pass_ns(timeline) * (total - tracked)),)

    def pass_ns(self, timeline: Timeline, stage: int = 0) -> int:
        """Return the time of forward and backward of the last tracked micro-batch.

        Args:
            timeline: a simulated step.
            stage: number of this model in the timeline.
        """
        program, tracked = timeline.program, self.index.num_micro_batches
        begin, end = program.stage_starts[stage : stage + 2].tolist()
        micro_batches, labels = program.ops.micro_batch[begin:end], program.ops.label[begin:end]
        is_pass = np.array([not str(program.labels[label]).startswith(OPTIMIZER) for label in labels])
        ends_ns = [
            int(timeline.op_end_ns[begin:end][is_pass & (micro_batches == micro_batch)].max(initial=0))
            for micro_batch in range(tracked)
        ]
        return ends_ns[-1] - (ends_ns[-2] if tracked > 1 else 0)

    def model_flops(self) -> int:
        """Return the floating point operations of matrix units in one step without recompute, over all cards."""
        graph = self.captured.graph
        total = sum(
            work.flops
            for nodes, works in zip((graph.forward, graph.backward), measure_work(graph), strict=True)
            for node, work in zip(nodes, works, strict=True)
            if classify(node.op).unit is ComputeUnit.MATRIX
        )
        cards_per_stage = self.settings.num_cards // self.settings.pipeline.num_stages
        return total * self.settings.num_micro_steps * cards_per_stage

    # -- parts ------------------------------------------------------------------------------------

    def static_of(self, schedule: Schedule) -> StaticMemory:
        """Return the memory that is live during the entire step, without weights that the schedule moves."""
        memory = self.step_memory
        moved_bytes = sum(
            memory.blocks[number].size_bytes
            for number in {copy.block for copy in schedule.copies}
            if self.index.blocks[number].is_permanent
        )
        permanent = sum(facts.block.size_bytes for facts in self.index.blocks if facts.is_permanent)
        return StaticMemory(
            parameter_bytes=memory.weight_bytes - moved_bytes,
            gradient_bytes=0,
            optimizer_bytes=memory.state_bytes,
            workspace_bytes=0,
            constant_bytes=permanent - memory.weight_bytes - memory.state_bytes,
            host_bytes=host_bytes_in_flight(schedule, self.in_flight),
        )

    def program_of(self, schedule: Schedule) -> Program:
        """Build operators, copies and memory intervals of a step with a schedule."""
        return Program(
            stage_starts=np.array([0, len(schedule.tasks)]),
            ops=self._ops(schedule),
            copies=self._copies(schedule.copies),
            intervals=self._intervals(schedule),
            labels=self.texts,
            contended_permille=self.costs.device.contended_permille,
        )

    def _ops_of_tasks(self) -> Ops:
        """Return the tracked tasks as operators, without those that run once more."""
        tasks = self.step_memory.tasks
        kinds = {FORWARD: OpKind.FORWARD, BACKWARD: OpKind.BACKWARD, OPTIMIZER: OpKind.BACKWARD}
        layers = map(self.index.layer_of, range(len(tasks)))
        return Ops(
            duration_ns=np.array(self._task_ns, np.int64),
            kind=np.array([kinds[task.phase] for task in tasks], np.int8),
            wait_op=np.full(len(tasks), NO_OP, np.int64),
            layer=np.array([-1 if layer is None else self.layer_indices[layer] for layer in layers], np.int32),
            micro_batch=np.array([task.micro_batch for task in tasks], np.int32),
            label=np.array(self._task_labels, np.int32),
        )

    def _ops(self, schedule: Schedule) -> Ops:
        numbers, is_recomputed = np.array(schedule.tasks, np.int64).reshape(-1, 2).T
        ops = self._tasks.rows(numbers)
        return replace(ops, kind=np.where(is_recomputed == 1, np.int8(OpKind.RECOMPUTE), ops.kind))

    def _copies(self, copies: Sequence[Copy]) -> Copies:
        device = self.costs.device
        sizes = [copy.size_bytes for copy in copies]

        def column(values: Sequence[int], dtype: type = np.int64) -> np.ndarray:
            return np.array(values, dtype)

        return Copies(
            size_bytes=column(sizes),
            out_ns=column([copy_ns(size, device.offload, device) for size in sizes]),
            in_ns=column([copy_ns(size, device.prefetch, device) for size in sizes]),
            producer_op=column([copy.forward_end for copy in copies]),
            release_op=column([copy.release for copy in copies]),
            prefetch_op=column([copy.fetch - 1 for copy in copies]),
            first_user_op=column([copy.wait for copy in copies]),
            label=column([self._roles[copy.block].label for copy in copies], np.int32),
            layer=column([self.layer_indices[copy.layer] for copy in copies], np.int32),
            micro_batch=column([copy.micro_batch for copy in copies], np.int32),
        )

    def _intervals(self, schedule: Schedule) -> Intervals:
        last = len(schedule.tasks) - 1
        rows = list(self._interval_rows(schedule.lifetimes, last))
        for held in find_held(self.index, schedule, self.in_flight):
            role = self._roles[held.block]
            held_part = MemoryPart.SAVED_ACTIVATIONS if role.kind is MemoryKind.TRANSIENT else role.part
            # Not `KEPT`, which is what this pass saves in a layer.
            kinds = MemoryKind.TRANSIENT, held_part
            rows.append((held.size_bytes, held.begin, held.end, *kinds, role.label, role.layer))
        columns = np.array(rows, np.int64).reshape(-1, 7).T
        size_bytes, begin, end, kind, part, label, layer = columns
        return Intervals(
            size_bytes=size_bytes,
            begin=begin,
            end=end,
            kind=kind.astype(np.int8),
            part=part.astype(np.int8),
            label=label.astype(np.int32),
            layer=layer.astype(np.int32),
            stage=np.zeros(len(rows), np.int32),
        )

    def _interval_rows(self, lifetimes: Sequence[MemoryLifetime], last: int) -> Iterator[tuple[int, ...]]:
        for lifetime in lifetimes:
            if self.index.blocks[lifetime.block].is_permanent and lifetime.copy < 0:
                continue  # static memory
            role = self._roles[lifetime.block]
            if lifetime.purpose is Purpose.TRACKED:  # most of them, and looking up an enumeration is slow
                end = min(lifetime.end, last)
                yield lifetime.size_bytes, min(lifetime.begin, last), end, role.kind, role.part, role.label, role.layer
                continue
            kind = _KINDS.get(lifetime.purpose, role.kind)
            part = _PARTS.get(lifetime.purpose, role.part)
            if lifetime.purpose is Purpose.FORWARD_ONLY and part is MemoryPart.SAVED_ACTIVATIONS:
                part = MemoryPart.TEMPORARIES
            end = min(lifetime.end, last)
            if lifetime.purpose is Purpose.OFFLOADED:
                end = int(copy_reference(np.array(lifetime.copy)))
            yield lifetime.size_bytes, min(lifetime.begin, last), end, kind, part, role.label, role.layer
