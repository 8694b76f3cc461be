"""Replays a policy on the whole step, and says whether it fits. Trusts no solver: it sees only the policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindswap.planner.problem import PlanProblem
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import SimulatedStep, StepModel
from mindswap.simulator.summary import host_bytes_per_node, peak_host_bytes


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
        """The same beside the budgets of another problem."""
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
    choice: np.ndarray | None = None  # where it comes from one

    @classmethod
    def of(
        cls, problem: PlanProblem, policy: Policy, judged: Evaluation, choice: np.ndarray | None = None
    ) -> "Candidate":
        """A policy with what it comes to."""
        is_on_host = judged.host_bytes <= problem.host_bytes
        return cls(policy, judged.step_time_ns, judged.stage_peak_bytes, is_on_host, choice)

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any stage."""
        return max(self.stage_peak_bytes)

    def fits(self, budget_bytes: int) -> bool:
        """It is within a budget of device memory, and of the host."""
        return self.is_on_host and self.peak_bytes <= budget_bytes

    def rank(self, budget_bytes: int) -> tuple[bool, int, int]:
        """Less is better: what fits, then what is faster; where nothing fits, what needs less memory."""
        if self.fits(budget_bytes):
            return False, self.step_time_ns, self.peak_bytes
        return True, self.peak_bytes, self.step_time_ns


# A step of more operators than this is replayed with fewer micro-batches and carried on. They are more than it takes
# for copies that fall behind to show: four times the stages of a pipeline, or more.
MAX_OPERATORS = 60_000


def evaluate(problem: PlanProblem, policy: Policy) -> Evaluation:
    """A policy on the full step: all stages and layers, and all micro-batches that go into `MAX_OPERATORS`."""
    return evaluate_short(problem, policy, short_model(problem.model, MAX_OPERATORS))


def evaluate_short(problem: PlanProblem, policy: Policy, shorts: Sequence[StepModel]) -> Evaluation:
    """A policy on two short steps, carried on to the number of micro-batches of the full one.

    Once a pipeline is full, every further micro-batch takes the same time and memory stays as it is.

    Args:
        problem: what the budget is.
        policy: what to simulate.
        shorts: from `short_model`, with fewer and with more micro-batches; one is enough if it is the full step.
    """
    steps = [model.simulate(policy) for model in shorts]
    counts = [model.layout.num_micro_batches for model in shorts]
    judged = _judge(problem, steps[-1])
    if len(steps) == 1:
        return judged
    per_batch_ns = (steps[1].step_time_ns - steps[0].step_time_ns) / (counts[1] - counts[0])
    left = problem.model.layout.num_micro_batches - counts[1]
    return replace(judged, step_time_ns=judged.step_time_ns + round(left * per_batch_ns))


def short_model(model: StepModel, max_operators: int = 0) -> tuple[StepModel, ...]:
    """The model with fewer micro-batches, enough to show a full pipeline.

    Args:
        model: the step.
        max_operators: take so many micro-batches that the step has about as many operators; least by default.

    Returns:
        Two models, to see what one more micro-batch takes; the model itself where it is as short.
    """
    layout = model.layout
    num_chunks = max(len(chunks) for chunks in layout.chunks)
    # Interleaved schedules go in rounds of as many micro-batches as stages.
    first = layout.num_stages * (num_chunks + 1) if num_chunks > 1 else layout.num_stages + 1
    size = layout.num_stages if num_chunks > 1 else 1
    ops = sum(len(block.forward) + len(block.backward) for block in model.blocks(Policy())) * layout.num_sequences
    first = layout.short_of(max(first, max_operators // ops // size * size))
    second = layout.short_of(first + max(2, size))
    if second >= layout.num_micro_batches:
        return (model,)
    return (model.with_micro_batches(first), model.with_micro_batches(second))


def _judge(problem: PlanProblem, step: SimulatedStep) -> Evaluation:
    peaks = tuple(a + s.total_bytes for a, s in zip(step.activation_bytes, step.static, strict=True))
    timeline = step.timeline
    stage_host_bytes = [
        peak_host_bytes(timeline, np.flatnonzero(timeline.program.copies_stage == stage))
        for stage in range(timeline.program.num_stages)
    ]
    host_bytes = host_bytes_per_node(stage_host_bytes, problem.model.settings.num_cards, problem.num_cards_per_node)
    return Evaluation(step, step.step_time_ns, peaks, host_bytes, fits=False).within(problem)
