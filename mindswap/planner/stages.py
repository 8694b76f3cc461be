"""Search an assignment for all layers within one budget: stage by stage, then on the whole pipeline."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.problem import PlanProblem
from mindswap.planner.solver import fast
from mindswap.planner.solver.hiding_time import forward_time_ns
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
        stage_problems = [
            SingleStageProblem(self.layer_assignments, stage, 0, self.host_bytes) for stage in range(self.num_stages)
        ]
        self.layers = [list(stage_problem.layers) for stage_problem in stage_problems]
        self.idle_ns = idle_times_ns(short.simulate(Policy()).timeline) if self.num_stages > 1 else (0,)
        self.shape = (self.model.captured.num_layers, layer_assignments.catalog.copy_ns.shape[1])

    def solve(self, budget_bytes: int, tolerated_extra_ns: int) -> np.ndarray:
        """Return the best assignment found for a budget, static memory included; the closest one if none fits.

        Args:
            budget_bytes: device memory budget of each stage.
            tolerated_extra_ns: slowdown of the step over keeping everything that is good enough.
        """
        self._tolerated_extra_ns = tolerated_extra_ns / self.model.layout.num_micro_batches
        budgets = [budget_bytes - static.total_bytes for static in self.model.static]
        assignment = np.zeros(self.shape, np.int64)
        with contextlib.suppress(Stop):
            self.fits_alone = False
            fitting = self._solve_stages(assignment, range(self.num_stages), budgets)
            self.fits_alone = len(fitting) == self.num_stages
            if self.num_stages > 1:
                return self._repair(assignment, budget_bytes, budgets, fitting)
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

        Stages are similar, and none needs to be faster than the slowest one, so a combination of the assignments of
        stages already solved is often enough.
        """
        fitting: set[int] = set()
        stage_problems = {
            stage: SingleStageProblem(
                self.layer_assignments,
                stage,
                budget_bytes=budgets[stage],
                host_budget_bytes=self.host_bytes,
                idle_ns=self.idle_ns[stage],
                tolerated_extra_ns=self._tolerated_extra_ns,
            )
            for stage in stages
        }
        searches = {
            stage: Search(stage_problem, MAX_OPERATORS, self.progress)
            for stage, stage_problem in stage_problems.items()
        }
        keep_scores = {
            stage: search.score(np.zeros_like(assignment[self.layers[stage]])) for stage, search in searches.items()
        }
        slowest_ns = max(_per_batch_ns(stage_problems[stage], score) for stage, score in keep_scores.items())
        solved_assignments = [assignment[layers] for layers in self.layers if assignment[layers].any()]
        for stage in sorted(stages, key=lambda stage: (-keep_scores[stage].excess_bytes, stage)):
            stage_problem, layers = stage_problems[stage], self.layers[stage]
            assignment[layers] = 0
            if keep_scores[stage].fits or not layers:
                fitting |= {stage}
                continue
            options = [assignment[layers], *(resample(other, stage_problem.costs) for other in solved_assignments)]
            score, assignment_of_stage = best_mix(searches[stage].score, options, orders_of([range(len(layers))]))
            if not score.fits or _per_batch_ns(stage_problem, score) > slowest_ns:
                search = fast.solve(stage_problem, self.progress, [assignment_of_stage] if score.fits else [])
                if search.best is None or search.best_score is None:
                    raise AssertionError("a search without a simulation")
                if search.best_score < score:
                    score, assignment_of_stage = search.best_score, search.best
                solved_assignments.append(assignment_of_stage)
            assignment[layers] = assignment_of_stage
            fitting |= {stage} if score.fits else set()
            slowest_ns = max(slowest_ns, _per_batch_ns(stage_problem, score))
        return fitting

    def _repair(self, assignment: np.ndarray, budget_bytes: int, budgets: list[int], fitting: set[int]) -> np.ndarray:
        """Repair and improve an assignment on the whole pipeline, where stages wait for each other."""
        pipeline = PipelineProblem(self.layer_assignments, self.short, budget_bytes, self.host_bytes)
        search = Search(pipeline, MIN_EVALUATIONS, self.progress)
        with contextlib.suppress(Stop):
            if not self._keep_all_ns:
                self._keep_all_ns = pipeline.score(pipeline.timeline(np.zeros_like(assignment))).step_time_ns
            search.enough_ns = self._keep_all_ns + round(self._tolerated_extra_ns * pipeline.num_scored)
            _, timeline = search.run(assignment)
            search.max_evaluations = max(MIN_EVALUATIONS, MAX_OPERATORS // len(timeline.program.ops))
            tried = [assignment.copy()]
            excess_bytes = initial_excess_bytes = pipeline.excess_bytes_of_stages(timeline)
            for _ in range(NUM_REPAIRS):
                # A smaller budget does not help a stage that does not fit on its own.
                over_budget = [stage for stage in np.flatnonzero(excess_bytes > 0).tolist() if stage in fitting]
                if not over_budget:
                    break
                for stage in over_budget:
                    budgets[stage] -= max(int(excess_bytes[stage]), budget_bytes // MIN_REPAIR)
                fitting = fitting & self._solve_stages(assignment, over_budget, budgets)
                tried.append(assignment.copy())
                excess_bytes = pipeline.excess_bytes_of_stages(search.run(assignment)[1])
            if len(tried) > 1:
                best_mix(search.score, tried, orders_of(self.layers, initial_excess_bytes.tolist()))
            # Forward time of one micro-step on one stage.
            forward_ns = forward_time_ns(timeline) // self.short.layout.num_micro_steps // self.num_stages
            improve(search, forward_ns)
        return assignment if search.best is None else search.best


def _per_batch_ns(stage_problem: SingleStageProblem, score: Score) -> float:
    return (score.step_time_ns - stage_problem.idle_ns) / stage_problem.num_scored


# Combinations of two assignments: some layers from one, the others from the other. Layers are similar, so combinations
# of two good assignments for neighbouring budgets are nearly as good for the budgets in between.

# The order in which layers switch from one assignment to the other.
Order = Sequence[int]


def mixed(low_memory: np.ndarray, high_memory: np.ndarray, layers: Sequence[int]) -> np.ndarray:
    """Combine two assignments layer by layer.

    Args:
        low_memory: assignment that needs less memory.
        high_memory: assignment of the same shape.
        layers: layers that take the decisions of `low_memory`.
    """
    assignment = high_memory.copy()
    assignment[list(layers)] = low_memory[list(layers)]
    return assignment


def best_mix(
    score: Callable[[np.ndarray], Score], assignments: Sequence[np.ndarray], orders: Sequence[Order]
) -> tuple[Score, np.ndarray]:
    """Return the best of some assignments and of their combinations, with its score.

    For each pair of one that fits and a faster one that does not, the minimum number of layers is taken from the first,
    by bisection.

    Args:
        score: assignment -> its score.
        assignments: at least one, all of the same shape.
        orders: orders in which layers switch to the assignment that fits.
    """
    scored = [(score(assignment), number, assignment) for number, assignment in enumerate(assignments)]
    best, _, best_assignment = min(scored, key=lambda entry: entry[:2])
    for low_memory, high_memory in _pairs(scored):
        for order in orders:
            low, high = 0, len(order)  # layers of `low_memory`: too few, enough
            while high - low > 1:
                middle = (low + high) // 2
                assignment = mixed(low_memory, high_memory, order[:middle])
                mixed_score = score(assignment)
                low, high = (low, middle) if mixed_score.fits else (middle, high)
                if mixed_score < best:
                    best, best_assignment = mixed_score, assignment
    return best, best_assignment


def _pairs(scored: Sequence[tuple[Score, int, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the fastest assignment that fits with each faster one that does not."""
    fitting = [entry for entry in scored if entry[0].fits]
    if not fitting:
        return
    low_memory = min(fitting, key=lambda entry: entry[:2])
    for high_memory in scored:
        if not high_memory[0].fits and high_memory[0].step_time_ns < low_memory[0].step_time_ns:
            yield low_memory[2], high_memory[2]


def orders_of(stages: Sequence[Sequence[int]], excess_bytes_of_stages: Sequence[int] = ()) -> list[Order]:
    """Return orders in which layers switch: round robin over the stages, from the first or the last layer of each.

    Args:
        stages: layers of each pipeline stage.
        excess_bytes_of_stages: bytes of each stage over its budget; if given, also an order by decreasing excess.
    """
    forward = [layer for rank in range(max(map(len, stages))) for layers in stages for layer in layers[rank : rank + 1]]
    backward = [
        layer for rank in range(max(map(len, stages))) for layers in stages for layer in layers[::-1][rank : rank + 1]
    ]
    fullest = sorted(range(len(excess_bytes_of_stages)), key=lambda stage: -excess_bytes_of_stages[stage])
    by_need = [layer for stage in fullest for layer in stages[stage]] if len(stages) > 1 else []
    return [order for order in (forward, backward, by_need) if order]


def resample(assignment: np.ndarray, costs: DecisionCosts) -> np.ndarray:
    """Transfer the assignment of one pipeline stage to the layers of another.

    Args:
        assignment: assignment of the other stage, with the same groups.
        costs: costs of the layers; decisions that are impossible in a layer become `KEEP`.
    """
    num_layers = costs.num_layers
    resampled = assignment[np.arange(num_layers) * len(assignment) // max(1, num_layers)]
    return np.where(costs.is_possible(resampled), resampled, KEEP)
