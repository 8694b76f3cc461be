"""Evaluation of policies as `simulate` shows them once they are written into the configuration."""

from dataclasses import dataclass, replace

from mindswap.config.weight_sharding import has_single_micro_step
from mindswap.features.simulate import LoadedStep
from mindswap.planner.build_plan import with_policy
from mindswap.planner.evaluate import Evaluation, evaluate, evaluation_of
from mindswap.planner.problem import Compared, Plan, PlanProblem
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel


@dataclass(frozen=True, eq=False)
class WrittenPolicies:
    """Evaluates policies as `simulate` does with the file that has them.

    A search simulates every policy as compiled with swap, and compares peaks without fragments. A file without swap
    may be compiled otherwise, and keeps its `memory_optimize_level`: addresses planned at O1 leave gaps. Fragments of
    the memory pool depend on the policy as well.

    Attributes:
        step: the planned step, as compiled with swap.
        problem: problem of the search.
        budget_bytes: device memory of each card, with fragments and gaps.
    """

    step: LoadedStep
    problem: PlanProblem
    budget_bytes: int

    @property
    def differs(self) -> bool:
        """Return whether figures of a written policy may differ from those of the search."""
        if type(self.step.model) is not StepModel:
            return False
        settings = self.step.model.settings
        is_recompiled = has_single_micro_step(self.step.document)
        return self.step.device.leaves_fragments or settings.plans_memory or is_recompiled

    def evaluate(self, policy: Policy, *, has_swap: bool | None = None) -> Evaluation:
        """Evaluate a policy as it is written: with the peaks that `simulate` shows of the file, against the budget.

        Args:
            policy: in layer indices.
            has_swap: whether the file has `swap: True`; None for as `plan` writes the policy.
        """
        if not self.differs:
            return evaluate(self.problem, policy)
        has_swap = self.step.is_swap_written(policy) if has_swap is None else has_swap
        model = (self.step if has_swap else self.step.as_compiled_without_swap()).model
        evaluation = evaluate(replace(self.problem, model=model), policy)
        peaks_bytes = evaluation.stage_peak_bytes
        if self.step.device.leaves_fragments or not has_swap:
            if evaluation.is_extrapolated:  # its gaps and fragments are those of the full step, and so is its time
                evaluation = evaluation_of(self.problem, model.simulate(policy))
            peaks_bytes = model.actual_peaks_bytes(evaluation.step, is_level_kept=not has_swap)
        fits = max(peaks_bytes) <= self.budget_bytes and evaluation.host_bytes <= self.problem.host_bytes
        return replace(evaluation, stage_peak_bytes=peaks_bytes, fits=fits)

    def planned(self, plan: Plan) -> Plan:
        """Return a plan with the figures of its policy as it is written."""
        if not self.differs:
            return plan
        evaluation = self.evaluate(plan.policy)
        peak_bytes = evaluation.peak_bytes
        return replace(
            with_policy(plan, plan.policy, evaluation),
            fits=evaluation.fits,
            stage_static_bytes=tuple(static.total_bytes for static in evaluation.step.static),
            smallest_budget_bytes=min(self.budget_bytes, peak_bytes) if evaluation.fits else peak_bytes,
        )

    def compared(self, row: Compared) -> Compared:
        """Return a row of the table with the figures of its policy as it is written; one without a policy as it is."""
        if row.policy is None or not self.differs:
            return row
        evaluation = self.evaluate(row.policy)
        return replace(
            row, step_time_ns=evaluation.step_time_ns, peak_bytes=evaluation.peak_bytes, fits=evaluation.fits
        )
