"""A plan for a step: its figures, its sections of the configuration, and how it is saved."""

import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindswap.errors import PlanError
from mindswap.features.plan.pynative import CHUNKS, ENGINE, added_chunks, added_engine, is_model_2x, sections_2x
from mindswap.features.plan.report import format_plan
from mindswap.features.plan.states import OptimizerStates
from mindswap.features.plan.written import planned_text
from mindswap.features.plan.written_policies import WrittenPolicies
from mindswap.features.simulate import LoadedStep, Run
from mindswap.files import file_name, write_new
from mindswap.planner.build_plan import with_policy
from mindswap.planner.problem import Plan, PlanProblem
from mindswap.planner.recompute_counts import counted_sections
from mindswap.planner.write import written_policy
from mindswap.policy.model import Layers, Policy
from mindswap.report.html import in_notebook
from mindswap.simulator.cost.budget import MemoryBudget
from mindswap.units import format_bytes, format_time


@dataclass(frozen=True, eq=False)
class StepPlan:
    """A plan for a step. All times and sizes are simulated. `print` shows it.

    Attributes:
        step: the planned step.
        problem: budget, objective and allowed means of the search.
        plan: the policy, with its simulated time and memory.
        budget_source: origin of the budget in words; "" if the user gave the budget.
        memory: memory budget of a card with its safety margin, compared with simulated peaks; None without a margin.
        states: placement of the optimizer states, with the reason; None if it was not a choice.
    """

    step: LoadedStep
    problem: PlanProblem
    plan: Plan
    budget_source: str = ""
    memory: MemoryBudget | None = None
    states: OptimizerStates | None = None

    @property
    def fits(self) -> bool:
        """Return whether the plan fits the budget. If no policy fits, the plan is the one closest to the budget."""
        return self.plan.fits

    @property
    def policy(self) -> Policy:
        """The policy of the plan; layers are given by index."""
        return self.plan.policy

    @property
    def sections(self) -> dict[str, Any]:
        """The policy as sections of the configuration, by section name."""
        if is_model_2x(self.step.model):
            chunks = added_chunks(self.step)
            changed: dict[str, Any] = {} if chunks is None else {CHUNKS[0]: {CHUNKS[1]: chunks}}
            if added_engine(self.step, self.policy):
                changed[ENGINE[0]] = self.step.document.data()[ENGINE[0]]
            return sections_2x(self.policy, len(self.step.model.captured.sample.layer_map)) | changed
        is_moved = self.states is not None and self.states.is_changed
        return self._policy_sections() | ({"optimizer": self.step.document.data()["optimizer"]} if is_moved else {})

    def _policy_sections(self) -> dict[str, Any]:
        """Return the policy as sections of a configuration of MindFormers 1.9."""
        if counted := counted_sections(self.policy, self.step.document, self.step.model.captured.num_layers):
            return counted
        no_recompute: dict[str, Any] = {"recompute_config": {"recompute": False}}  # of a disabled policy
        return no_recompute | written_policy(self.policy).to_config()

    @property
    def step_time_ns(self) -> int:
        """Simulated step time in ns."""
        return self.plan.step_time_ns

    @property
    def peak_bytes(self) -> int:
        """Simulated peak device memory in bytes, the highest of all pipeline stages."""
        return self.plan.peak_bytes

    @property
    def step_time_s(self) -> float:
        """Simulated step time in seconds."""
        return self.step_time_ns / 1e9

    @property
    def peak_gib(self) -> float:
        """Simulated peak device memory in GiB."""
        return self.peak_bytes / 2**30

    def within(self, budget_bytes: int) -> "StepPlan":
        """Return the same plan with another budget, which reports then show."""
        return replace(self, plan=replace(self.plan, budget_bytes=budget_bytes))

    def without_swaps(self, ineffective: Mapping[int, Set[str]]) -> "StepPlan | None":
        """Return the plan without some swaps, with a new simulation.

        Args:
            ineffective: layer index -> patterns of `op_swap` to remove in that layer.

        Returns:
            The smaller plan; None if it no longer fits or if a pattern is not one of `op_swap`.
        """
        entries = []
        for entry in self.policy.op_swap:
            layers = entry.layers.resolve(self.step.model.captured.num_layers)
            remaining = tuple(layer for layer in layers if entry.pattern not in ineffective.get(layer, ()))
            if remaining == layers:
                entries.append(entry)
            elif remaining:
                entries.append(replace(entry, layers=Layers(remaining)))
        removed = set().union(*ineffective.values())
        if not removed <= {entry.pattern for entry in self.policy.op_swap}:
            return None
        policy = replace(self.policy, op_swap=tuple(entries))
        evaluation = WrittenPolicies(self.step, self.problem, self.plan.budget_bytes).evaluate(policy)
        if not evaluation.fits:
            return None
        return replace(self, plan=with_policy(self.plan, policy, evaluation))

    def run(self) -> Run:
        """Simulate the step under the plan, as `simulate` does with the file that has it."""
        return self.step.simulate(self.policy, f"{self.step.title}, planned")

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the configuration with the plan. Comments and all other keys stay; the text is read back first.

        Args:
            path: output file; may be the configuration itself with `overwrite`.
            overwrite: replace an existing file.

        Raises:
            PlanError: if no policy fits, or the written text is parsed as another policy.
            DataError: the file cannot be written, or already exists.
        """
        if not self.fits:
            raise PlanError(f"nothing fits, so there is no plan to write to {path}\n    fix:     more memory")
        write_new(path, planned_text(self.step, self.plan, str(path)), overwrite=overwrite)

    def save_plot(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of memory and streams over the step, of the configuration and of the plan.

        Raises:
            DataError: if matplotlib is missing or the file cannot be written.
        """
        from mindswap.report.plan_plot import plot_before_after

        reports = (self.step.simulate().report(), self.run().report())
        plot_before_after(*reports, Path(file_name(path)), self.plan.budget_bytes, ("your file", "this plan"))

    def __str__(self) -> str:
        return self.format()

    def format(self, is_verbose: bool = False) -> str:
        """Format the plan and the policies that it is compared with; `is_verbose` adds the number of simulations."""
        settings = self.step.model.settings
        title = self.step.device.title
        tokens = settings.num_tokens / settings.num_cards
        states = str(self.states) if self.states is not None else ""
        return format_plan(self.plan, title, tokens, self.budget_source, self.memory, is_verbose, states)

    def __repr__(self) -> str:
        verdict = "fits in" if self.fits else "does not fit in"
        figures = f"{format_time(self.step_time_ns)}, {format_bytes(self.peak_bytes)}"
        return f"<StepPlan {self.step.title}: {figures}, {verdict} {format_bytes(self.plan.budget_bytes)}, simulated>"

    def _repr_html_(self) -> str:
        return in_notebook(repr(self), str(self))
