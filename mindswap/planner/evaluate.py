"""Evaluate a policy by simulating the whole step; independent of the solvers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindswap.planner.problem import PlanProblem
from mindswap.policy.model import Policy
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.program import OpKind
from mindswap.simulator.step_model import SimulatedStep, StepModel
from mindswap.simulator.summary import host_bytes_per_node, peak_host_bytes
from mindswap.simulator.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A policy on the simulator."""

    step: SimulatedStep  # the simulated step
    step_time_ns: int  # its time; carried on to all micro-batches where fewer were simulated
    stage_peak_bytes: tuple[int, ...]  # device memory of each stage
    host_bytes: int  # host memory of a node
    fits: bool  # every stage is within the device budget, and the node within the host budget

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any stage."""
        return max(self.stage_peak_bytes)

    def within(self, problem: PlanProblem) -> "Evaluation":
        """Return the evaluation against the budgets of another problem."""
        fits = self.peak_bytes <= problem.budget_bytes and self.host_bytes <= problem.host_bytes
        return replace(self, fits=fits)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy that was replayed."""

    policy: Policy  # in layer indices
    # step_time_ns, stage_peak_bytes: as `Evaluation` has them
    step_time_ns: int
    stage_peak_bytes: tuple[int, ...]
    is_on_host: bool  # host memory is within its budget
    assignment: np.ndarray | None = None  # where it comes from one

    @classmethod
    def of(
        cls, problem: PlanProblem, policy: Policy, evaluation: Evaluation, assignment: np.ndarray | None = None
    ) -> "Candidate":
        """A policy with what it comes to."""
        is_on_host = evaluation.host_bytes <= problem.host_bytes
        return cls(policy, evaluation.step_time_ns, evaluation.stage_peak_bytes, is_on_host, assignment)

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any stage."""
        return max(self.stage_peak_bytes)

    def fits(self, budget_bytes: int) -> bool:
        """It is within a budget of device memory, and of the host."""
        return self.is_on_host and self.peak_bytes <= budget_bytes

    def rank(self, budget_bytes: int) -> tuple[bool, int, int]:
        """Return a sort key, smaller is better: fits, then step time; if nothing fits, peak memory."""
        if self.fits(budget_bytes):
            return False, self.step_time_ns, self.peak_bytes
        return True, self.peak_bytes, self.step_time_ns


# A step of more operators than this is replayed with fewer micro-batches and carried on.
MAX_OPERATORS = 60_000
# Turns of forward and backward of a full pipeline that are simulated at least: with fewer, copies that fall behind do
# not show.
NUM_ROUNDS = 4
# Of these, the last ones, whose time is carried on.
MEASURED_ROUNDS = 2
# What one more micro-batch takes less than a turn of the slowest stage, in thousandths, before more are simulated.
UNSTEADY_PERMILLE = 1


def evaluate(problem: PlanProblem, policy: Policy) -> Evaluation:
    """A policy on the full step: all stages and layers, and all micro-batches that go into `MAX_OPERATORS`.

    In a pipeline, more of them, until one more takes as long as a turn of the slowest stage. That one slows down the
    others one after another, as far as each has work in store.
    """
    factor = 2
    while True:
        evaluation, is_steady = _extrapolate(problem, policy, short_model(problem.model, MAX_OPERATORS, factor))
        if is_steady:
            return evaluation
        factor *= 2


def evaluate_short(problem: PlanProblem, policy: Policy, short_models: Sequence[StepModel]) -> Evaluation:
    """A policy on two short steps, carried on to the number of micro-batches of the full one.

    Once a pipeline is full, every further micro-batch takes the same time and memory stays as it is.

    Args:
        problem: what the budget is.
        policy: what to simulate.
        short_models: from `short_model`, with fewer and with more micro-batches; one is enough if it is the full step.
    """
    return _extrapolate(problem, policy, short_models)[0]


def _extrapolate(problem: PlanProblem, policy: Policy, short_models: Sequence[StepModel]) -> tuple[Evaluation, bool]:
    """As `evaluate_short`; and whether one more micro-batch takes as long as a turn of the slowest stage."""
    steps = [model.simulate(policy) for model in short_models]
    counts = [model.layout.num_micro_batches for model in short_models]
    evaluation = _evaluate(problem, steps[-1])
    if len(steps) == 1:
        return evaluation, True
    (step_ns, passes_ns), (short_ns, short_passes_ns) = (
        (step.step_time_ns, step.timeline.step_time_ns) for step in reversed(steps)
    )
    per_batch_ns = (step_ns - short_ns) / (counts[1] - counts[0])
    passes_per_batch_ns = (passes_ns - short_passes_ns) / (counts[1] - counts[0])
    round_ns = slowest_round_ns(steps[1].timeline, short_models[1].layout)
    num_extrapolated = problem.model.layout.num_micro_batches - counts[1]
    evaluation = replace(evaluation, step_time_ns=evaluation.step_time_ns + round(num_extrapolated * per_batch_ns))
    return evaluation, passes_per_batch_ns * 1000 >= round_ns * (1000 - UNSTEADY_PERMILLE)


def slowest_round_ns(timeline: Timeline, layout: StageLayout, only_stage: int | None = None) -> int:
    """Time of the last turns of forward and backward of the stage in which they take longest; 0 where none are known.

    Args:
        timeline: of a step that goes by turns for a while.
        layout: its layout.
        only_stage: the stage that runs alone.
    """
    stages = range(layout.num_stages) if only_stage is None else (only_stage,)
    starts = timeline.program.stage_starts.tolist()
    rounds_ns = [0]
    for stage, begin, end in zip(stages, starts[:-1], starts[1:], strict=True):
        ahead = layout.num_ahead(stage)
        last = layout.num_micro_batches - (ahead or 0)  # its backward comes behind the last forward
        if ahead is None or last < MEASURED_ROUNDS:
            return 0
        ops, ends_ns = timeline.program.ops, np.zeros(layout.num_micro_batches, np.int64)
        is_backward = (ops.kind[begin:end] == OpKind.BACKWARD) | (ops.kind[begin:end] == OpKind.RECOMPUTE)
        np.maximum.at(ends_ns, ops.micro_batch[begin:end][is_backward], timeline.op_end_ns[begin:end][is_backward])
        rounds_ns.append(int(ends_ns[last] - ends_ns[last - MEASURED_ROUNDS]) // MEASURED_ROUNDS)
    return max(rounds_ns)


def short_model(model: StepModel, max_operators: int = 0, factor: int = 1) -> tuple[StepModel, ...]:
    """The model with fewer micro-batches, enough to show a full pipeline.

    Args:
        model: the step.
        max_operators: take so many micro-batches that the step has about as many operators; least by default.
        factor: take so many times the least at least.

    Returns:
        Two models, to see what one more micro-batch takes; the model itself where it is as short.
    """
    layout = model.layout
    num_chunks = max(len(chunks) for chunks in layout.chunks)
    # Interleaved schedules go in rounds of as many micro-batches as stages.
    first = layout.num_stages * (num_chunks + 1) if num_chunks > 1 else layout.num_stages + NUM_ROUNDS
    size = layout.num_stages if num_chunks > 1 else 1
    ops = sum(len(block.forward) + len(block.backward) for block in model.blocks(Policy())) * layout.num_sequences
    first = layout.short_of(max(first * factor, max_operators // ops // size * size))
    second = layout.short_of(first + max(2, size))
    if second >= layout.num_micro_batches:
        return (model,)
    return (model.with_micro_batches(first), model.with_micro_batches(second))


def _evaluate(problem: PlanProblem, step: SimulatedStep) -> Evaluation:
    peaks = tuple(a + s.total_bytes for a, s in zip(step.activation_bytes, step.static, strict=True))
    timeline = step.timeline
    stage_host_bytes = [
        peak_host_bytes(timeline, np.flatnonzero(timeline.program.copies_stage == stage))
        for stage in range(timeline.program.num_stages)
    ]
    host_bytes = host_bytes_per_node(stage_host_bytes, problem.model.settings.num_cards, problem.num_cards_per_node)
    return Evaluation(step, step.step_time_ns, peaks, host_bytes, fits=False).within(problem)
