"""Base of searches over whole policies: each policy is simulated once."""

from collections.abc import Sequence

from mindswap.planner.evaluate import Candidate, evaluate, evaluate_short
from mindswap.planner.problem import Compared, PlanProblem
from mindswap.planner.solver.search import Interruptible
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel


class PolicySearch:
    """Simulates policies, each once.

    Args:
        problem: budgets and permissions.
        progress: called after each simulation.
        short_models: models with few micro-batches to simulate instead of the whole step, from `short_model`.

    Attributes:
        evaluated: results by policy, without timelines, which take too much memory.
    """

    def __init__(self, problem: PlanProblem, progress: Interruptible, short_models: Sequence[StepModel] = ()):
        self.problem, self.progress, self.short_models = problem, progress, short_models
        self.evaluated: dict[Policy, Candidate] = {}

    def evaluate(self, policy: Policy, *, is_interruptible: bool = True) -> Candidate:
        """Return the result of a policy, simulated unless it is known."""
        if policy not in self.evaluated:
            problem, models = self.problem, self.short_models
            evaluation = evaluate_short(problem, policy, models) if models else evaluate(problem, policy)
            self.evaluated[policy] = Candidate.of(problem, policy, evaluation)
            if is_interruptible:
                self.progress()
        return self.evaluated[policy]

    def fits(self, policy: Policy) -> bool:
        """Return whether a policy is within the budgets."""
        return self.evaluate(policy).fits(self.problem.budget_bytes)

    def rank(self, policy: Policy) -> tuple[object, ...]:
        """Return a sort key, smaller is better: fits, then time (memory if nothing fits), then fewer changed layers."""
        return rank_of(self.evaluated[policy], self.problem.budget_bytes)

    def compared(self, policies: dict[str, Policy]) -> tuple[Compared, ...]:
        """Return evaluated policies, given by name, with their results."""
        results = ((name, self.evaluated[policy]) for name, policy in policies.items())
        budget_bytes = self.problem.budget_bytes
        return tuple(Compared(name, r.step_time_ns, r.peak_bytes, r.fits(budget_bytes)) for name, r in results)


def rank_of(candidate: Candidate, budget_bytes: int) -> tuple[object, ...]:
    """Return the sort key of `PolicySearch.rank`."""
    is_over, first, second = candidate.rank(budget_bytes)
    return is_over, first, num_changes(candidate.policy), second


def num_changes(policy: Policy) -> int:
    """Return the number of layers that a policy names, in all entries together."""
    groups = [entry.layers for entry in policy.layer_swap] + [entry.layers for entry in policy.op_swap]
    groups += [policy.layer_recompute, *(entry.layers for entry in policy.select_recompute)]
    return sum(len(layers.indices or ()) for layers in groups)
