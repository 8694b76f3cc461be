"""Search an assignment for all layers within one budget: stage by stage, then on the whole pipeline."""

import contextlib
from collections.abc import Sequence

import numpy as np

from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.problem import PlanProblem
from mindswap.planner.solver import fast
from mindswap.planner.solver.improve import improve
from mindswap.planner.solver.search import Progress, Search, Stop
from mindswap.planner.stage_problem import KEEP, DecisionCosts, Score
from mindswap.planner.step_problem import PipelineProblem, SingleStageProblem, idle_times_ns
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel

# Rounds in which stages that exceed the budget on the whole pipeline are solved for a smaller one.
NUM_REPAIRS = 2
MIN_REPAIR = 1000  # a repair reduces the budget by at least 1/1000
# Limit of simulated operators on the whole pipeline; and the minimum number of simulations.
MAX_OPERATORS = 400_000
MIN_EVALUATIONS = 16


class StageSolver:
    """Solves one model for several budgets; assignments are int64 of shape (num_layers of the model, num_groups).

    Args:
        problem: problem; its budget is ignored.
        short: model with few micro-batches.
        layer_assignments: blocks and costs of layer assignments of the model.
        progress: called after each simulation; may raise `Stop`.

    Attributes:
        num_evaluations: number of simulations.
        fits_alone: whether each stage, simulated alone, was within its budget when it was last solved.
    """

    def __init__(self, problem: PlanProblem, short: StepModel, layer_assignments: LayerAssignments, progress: Progress):
        self.model = problem.model
        self.host_bytes = problem.host_bytes_per_card
        self.short = short
        self.on_simulated = progress
        self.num_evaluations = 0
        self.fits_alone = False
        self._tolerated_extra_ns = 0.0  # per micro-batch
        self._keep_all_ns = 0  # step time of the whole pipeline if everything is kept; 0 before it is computed
        self.layer_assignments = layer_assignments
        self.num_stages = self.model.layout.num_stages
        stages = range(self.num_stages)
        self.layers = [list(SingleStageProblem(layer_assignments, stage, 0, 0).layers) for stage in stages]
        self.idle_ns = idle_times_ns(short.simulate(Policy()).timeline) if self.num_stages > 1 else (0,)
        self.shape = (self.model.captured.num_layers, layer_assignments.catalog.copy_ns.shape[1])

    def solve(self, budget_bytes: int, tolerated_extra_ns: int) -> np.ndarray:
        """Return the best assignment found for a budget, static memory included; the closest one if none fits.

        Args:
            budget_bytes: device memory budget of each stage.
            tolerated_extra_ns: slowdown of the step over keeping everything that is good enough.
        """
        self._tolerated_extra_ns = tolerated_extra_ns / self.model.layout.num_micro_batches
        budgets = [budget_bytes] * self.num_stages
        assignment = np.zeros(self.shape, np.int64)
        with contextlib.suppress(Stop):
            self.fits_alone = False
            fitting = self._solve_stages(assignment, range(self.num_stages), budgets)
            self.fits_alone = len(fitting) == self.num_stages
            if self.num_stages > 1:
                return self._repair(assignment, budgets, fitting)
        return assignment

    def effective(self, assignment: np.ndarray) -> np.ndarray:
        """Return the assignment without swaps that have no effect."""
        return np.array(
            [self.layer_assignments.effective(layer, decisions) for layer, decisions in enumerate(assignment)]
        )

    def progress(self) -> None:
        """Count a simulation and call the progress function."""
        self.num_evaluations += 1
        self.on_simulated()

    def _solve_stages(self, assignment: np.ndarray, stages: Sequence[int], budgets: Sequence[int]) -> set[int]:
        """Solve some stages in place, the one with the largest excess first; return those that fit on their own.

        Stages are similar, and none needs to be faster than the slowest one, so the assignment of a stage already
        solved is often good enough.
        """
        fitting: set[int] = set()
        extra_ns = self._tolerated_extra_ns
        problems = {
            stage: SingleStageProblem(
                self.layer_assignments, stage, budgets[stage], self.host_bytes, self.idle_ns[stage], extra_ns
            )
            for stage in stages
        }
        searches = {stage: Search(problem, MAX_OPERATORS, self.progress) for stage, problem in problems.items()}
        keep_scores = {stage: search.score(search.best) for stage, search in searches.items()}
        slowest_ns = max(_per_batch_ns(problems[stage], score) for stage, score in keep_scores.items())
        solved = [assignment[layers] for layers in self.layers if assignment[layers].any()]
        for stage in sorted(stages, key=lambda stage: (-keep_scores[stage].excess_bytes, stage)):
            problem, layers, search = problems[stage], self.layers[stage], searches[stage]
            if not keep_scores[stage].fits and layers:
                for other in (assignment[layers], *solved):
                    search.score(resample(other, problem.costs))
                if not search.fits or _per_batch_ns(problem, search.best_score) > slowest_ns:
                    found = fast.solve(problem, self.progress, [search.best] if search.fits else [])
                    search = found if found.best_score < search.best_score else search
                    solved.append(search.best)
            assignment[layers] = search.best
            fitting |= {stage} if search.fits else set()
            slowest_ns = max(slowest_ns, _per_batch_ns(problem, search.best_score))
        return fitting

    def _repair(self, assignment: np.ndarray, budgets: list[int], fitting: set[int]) -> np.ndarray:
        """Repair and improve an assignment on the whole pipeline, where stages wait for each other."""
        budget_bytes = budgets[0]
        pipeline = PipelineProblem(self.layer_assignments, self.short, budget_bytes, self.host_bytes)
        search = Search(pipeline, MIN_EVALUATIONS, self.progress)
        with contextlib.suppress(Stop):
            if not self._keep_all_ns:
                self._keep_all_ns = pipeline.score(pipeline.timeline(np.zeros_like(assignment))).step_time_ns
            search.enough_ns = self._keep_all_ns + round(self._tolerated_extra_ns * pipeline.num_scored)
            _, timeline = search.run(assignment)
            search.max_evaluations = max(MIN_EVALUATIONS, MAX_OPERATORS // len(timeline.program.ops))
            for _ in range(NUM_REPAIRS):
                excess_bytes = pipeline.excess_bytes_of_stages(timeline)
                # A smaller budget does not help a stage that does not fit on its own.
                over_budget = [stage for stage in np.flatnonzero(excess_bytes > 0).tolist() if stage in fitting]
                if not over_budget:
                    break
                for stage in over_budget:
                    budgets[stage] -= max(int(excess_bytes[stage]), budget_bytes // MIN_REPAIR)
                fitting = fitting & self._solve_stages(assignment, over_budget, budgets)
                _, timeline = search.run(assignment)
            # Forward time of one micro-step on one stage.
            improve(search, fast.forward_time_ns(timeline) // self.short.layout.num_micro_steps // self.num_stages)
        return search.best


def _per_batch_ns(problem: SingleStageProblem, score: Score) -> float:
    return (score.step_time_ns - problem.idle_ns) / problem.num_scored


def resample(assignment: np.ndarray, costs: DecisionCosts) -> np.ndarray:
    """Transfer the assignment of one pipeline stage to the layers of another.

    Args:
        assignment: assignment of the other stage, with the same groups.
        costs: costs of the layers; decisions that are impossible in a layer become `KEEP`.
    """
    num_layers = costs.num_layers
    resampled = assignment[np.arange(num_layers) * len(assignment) // max(1, num_layers)]
    return np.where(costs.is_possible(resampled), resampled, KEEP)
