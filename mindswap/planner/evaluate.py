"""Evaluate a policy by simulating the whole step; independent of the solvers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mindswap.planner.problem import PlanProblem
from mindswap.policy.model import Policy
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.program import OpKind
from mindswap.simulator.step_model import SimulatedStep, StepModel
from mindswap.simulator.step_model_2x import StepModel2x
from mindswap.simulator.summary import host_bytes_per_node, peak_host_bytes
from mindswap.simulator.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Result of simulating a policy."""

    step: SimulatedStep  # the simulated step
    step_time_ns: int  # extrapolated to all micro-batches if fewer were simulated
    stage_peak_bytes: tuple[int, ...]  # peak device memory of each stage
    host_bytes: int  # host memory of a node
    fits: bool  # every stage is within the device budget, and the node within the host budget
    is_extrapolated: bool = False  # `step` has fewer micro-batches than the configuration

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any stage."""
        return max(self.stage_peak_bytes)

    def within(self, problem: PlanProblem) -> "Evaluation":
        """Return the evaluation against the budgets of another problem."""
        fits = self.peak_bytes <= problem.budget_bytes and self.host_bytes <= problem.host_bytes
        return replace(self, fits=fits)


# More than any peak, so that all policies within the host memory come before those beyond it.
BEYOND_HOST_BYTES = 2**60


@dataclass(frozen=True, eq=False)
class Candidate:
    """An evaluated policy, without its timeline."""

    policy: Policy  # in layer indices
    step_time_ns: int  # this field and the next one are those of `Evaluation`
    stage_peak_bytes: tuple[int, ...]
    is_on_host: bool  # host memory is within its budget
    # assignment that the policy was made from; empty for other policies
    assignment: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    @classmethod
    def of(
        cls, problem: PlanProblem, policy: Policy, evaluation: Evaluation, assignment: np.ndarray | None = None
    ) -> "Candidate":
        """Build a candidate from a policy and its evaluation."""
        is_on_host = evaluation.host_bytes <= problem.host_bytes
        candidate = cls(policy, evaluation.step_time_ns, evaluation.stage_peak_bytes, is_on_host)
        return candidate if assignment is None else replace(candidate, assignment=assignment)

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any stage."""
        return max(self.stage_peak_bytes)

    def fits(self, budget_bytes: int) -> bool:
        """Return whether it is within a budget of device memory, and within the host budget."""
        return self.is_on_host and self.peak_bytes <= budget_bytes

    def rank(self, budget_bytes: int) -> tuple[bool, int, int]:
        """Return a sort key, smaller is better: step time if it fits; else peak memory, after all within the host."""
        if self.fits(budget_bytes):
            return False, self.step_time_ns, self.peak_bytes
        return True, self.peak_bytes + (0 if self.is_on_host else BEYOND_HOST_BYTES), self.step_time_ns


# A step with more operators than this is simulated with fewer micro-batches and extrapolated.
MAX_OPERATORS = 60_000
# Minimum number of steady rounds (one forward and one backward of a full pipeline) that are simulated: with fewer, a
# growing backlog of copies is not visible.
NUM_ROUNDS = 4
# Number of these rounds, the last ones, whose time is extrapolated.
MEASURED_ROUNDS = 2
# If one more micro-batch takes less than a round of the slowest stage by more than this many thousandths, the step is
# not yet steady, and more micro-batches are simulated.
UNSTEADY_PERMILLE = 1


def evaluate(problem: PlanProblem, policy: Policy) -> Evaluation:
    """Evaluate a policy on the step with all stages and layers, and as many micro-batches as fit `MAX_OPERATORS`.

    In a pipeline the number of micro-batches is doubled until one more takes as long as a round of the slowest stage:
    that stage slows down the others only after their queued work is done.
    """
    factor = 2
    while True:
        evaluation, is_steady = _extrapolate(problem, policy, short_model(problem.model, MAX_OPERATORS, factor))
        if is_steady:
            return evaluation
        factor *= 2


def evaluate_short(problem: PlanProblem, policy: Policy, short_models: Sequence[StepModel]) -> Evaluation:
    """Evaluate a policy on two short steps, and extrapolate to the number of micro-batches of the full step.

    Once a pipeline is full, every further micro-batch takes the same time, and the peak memory does not change.

    Args:
        problem: budgets.
        policy: policy to simulate.
        short_models: from `short_model`: with fewer and with more micro-batches, or the full step alone.
    """
    return _extrapolate(problem, policy, short_models)[0]


def _extrapolate(problem: PlanProblem, policy: Policy, short_models: Sequence[StepModel]) -> tuple[Evaluation, bool]:
    """Return `evaluate_short`, and whether one more micro-batch takes as long as a round of the slowest stage."""
    steps = [model.simulate(policy) for model in short_models]
    evaluation = evaluation_of(problem, steps[-1])
    if len(steps) == 1:
        return evaluation, True
    counts = [model.layout.num_micro_batches for model in short_models]
    (step_ns, passes_ns), (short_ns, short_passes_ns) = (
        (step.step_time_ns, step.timeline.step_time_ns) for step in reversed(steps)
    )
    per_batch_ns = (step_ns - short_ns) / (counts[1] - counts[0])
    passes_per_batch_ns = (passes_ns - short_passes_ns) / (counts[1] - counts[0])
    round_ns = slowest_round_ns(steps[1].timeline, short_models[1].layout)
    num_extrapolated = problem.model.layout.num_micro_batches - counts[1]
    step_time_ns = evaluation.step_time_ns + round(num_extrapolated * per_batch_ns)
    evaluation = replace(evaluation, step_time_ns=step_time_ns, is_extrapolated=True)
    return evaluation, passes_per_batch_ns * 1000 >= round_ns * (1000 - UNSTEADY_PERMILLE)


def slowest_round_ns(timeline: Timeline, layout: StageLayout, only_stage: int | None = None) -> int:
    """Return the time of a steady round (one forward and one backward) of the slowest stage; 0 without such rounds.

    Args:
        timeline: timeline of a step.
        layout: layout of the step.
        only_stage: index of the stage, if the timeline has this stage only.
    """
    stages = range(layout.num_stages) if only_stage is None else (only_stage,)
    starts = timeline.program.stage_starts.tolist()
    rounds_ns = [0]
    for stage, begin, end in zip(stages, starts[:-1], starts[1:], strict=True):
        ahead = layout.num_ahead(stage)
        last = layout.num_micro_batches - (ahead or 0)  # first micro-batch whose backward follows the last forward
        if ahead is None or last < MEASURED_ROUNDS:
            return 0
        ops, ends_ns = timeline.program.ops, np.zeros(layout.num_micro_batches, np.int64)
        is_backward = (ops.kind[begin:end] == OpKind.BACKWARD) | (ops.kind[begin:end] == OpKind.RECOMPUTE)
        np.maximum.at(ends_ns, ops.micro_batch[begin:end][is_backward], timeline.op_end_ns[begin:end][is_backward])
        rounds_ns.append(int(ends_ns[last] - ends_ns[last - MEASURED_ROUNDS]) // MEASURED_ROUNDS)
    return max(rounds_ns)


def short_model(model: StepModel, max_operators: int = 0, factor: int = 1) -> tuple[StepModel, ...]:
    """Return models with few micro-batches, enough for a full pipeline.

    Args:
        model: step model.
        max_operators: the first model gets about as many operators, if that allows more micro-batches than needed.
        factor: multiple of the needed number of micro-batches.

    Returns:
        Two models with different numbers of micro-batches; the model alone if it has no more than these.
    """
    if isinstance(model, StepModel2x):
        return (model,)
    layout = model.layout
    num_chunks = max(len(chunks) for chunks in layout.chunks)
    # Interleaved schedules process micro-batches in groups as large as the number of stages.
    first = layout.num_stages * (num_chunks + 1) if num_chunks > 1 else layout.num_stages + NUM_ROUNDS
    size = layout.num_stages if num_chunks > 1 else 1
    ops = sum(len(block.forward) + len(block.backward) for block in model.blocks(Policy())) * layout.num_sequences
    first = layout.short_of(max(first * factor, max_operators // ops // size * size))
    second = layout.short_of(first + max(2, size))
    if second >= layout.num_micro_batches:
        return (model,)
    return (model.with_micro_batches(first), model.with_micro_batches(second))


def evaluation_of(problem: PlanProblem, step: SimulatedStep) -> Evaluation:
    """Return the evaluation of a simulated step."""
    peaks = tuple(a + s.total_bytes for a, s in zip(step.activation_bytes, step.static, strict=True))
    timeline = step.timeline
    stage_host_bytes = [
        static.host_bytes + peak_host_bytes(timeline, np.flatnonzero(timeline.program.copies_stage == stage))
        for stage, static in enumerate(step.static)
    ]
    host_bytes = host_bytes_per_node(stage_host_bytes, problem.model.settings.num_cards, problem.num_cards_per_node)
    return Evaluation(step, step.step_time_ns, peaks, host_bytes, fits=False).within(problem)
