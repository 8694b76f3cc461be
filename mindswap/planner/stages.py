"""A choice for all layers of a model within one budget: stage by stage, then the whole step together."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mindswap.planner.catalog import Catalog
from mindswap.planner.layer_assignments import Rows
from mindswap.planner.problem import PlanProblem
from mindswap.planner.solver import fast
from mindswap.planner.solver.improve import LEAST_REARRANGED, forward_time_ns, improve
from mindswap.planner.solver.search import Progress, Search, Stop
from mindswap.planner.stage_problem import KEEP, Figures, Score
from mindswap.planner.step_problem import StepSpace, WholeSpace, idle_times_ns
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel

# Rounds in which a stage that is over its budget in the whole step is solved again with less.
NUM_REPAIRS = 2
LEAST_REPAIR = 1000  # part of the budget that is taken off at least
# Operators that are simulated on the whole step of a pipeline, all tries together; and how many tries at least.
MAX_OPERATORS = 400_000
LEAST_EVALUATIONS = 16
# Operators that are simulated for known rows in other layers of the whole step.
MAX_REARRANGED = 3_000_000


class StageSolver:
    """Solves one model for one budget after the other; choices are of shape (num_layers of the model, num_items).

    Args:
        problem: all but the budget counts.
        short: the model with few micro-batches.
        catalog: its items.
        progress: called after each simulation; may raise `Stop`.

    Attributes:
        rows: what choices mean in the layers.
        num_evaluations: simulations made.
        fits_alone: each stage was within its budget when it was last solved, alone.
    """

    def __init__(self, problem: PlanProblem, short: StepModel, catalog: Catalog, progress: Progress):
        self.model = problem.model
        self.host_bytes = problem.host_bytes_per_card
        self.short = short
        self.asked = progress
        self.num_evaluations = 0
        self.fits_alone = False
        self._enough_extra_ns = 0.0  # per micro-batch
        self._kept_ns = 0  # the whole step if everything is kept; 0 before it is known
        self.rows = Rows(self.model.swapping(problem.allow.swap), catalog)
        self.num_stages = self.model.layout.num_stages
        spaces = [StepSpace(self.rows, stage, 0, self.host_bytes) for stage in range(self.num_stages)]
        self.layers = [list(space.layers) for space in spaces]
        self.idle_ns = idle_times_ns(short.simulate(Policy()).timeline) if self.num_stages > 1 else (0,)
        self.shape = (self.model.captured.num_layers, catalog.copy_ns.shape[1])

    def solve(self, budget_bytes: int, enough_extra_ns: int) -> np.ndarray:
        """The best choice that is found for a budget, static memory included; the nearest if none fits.

        Args:
            budget_bytes: of each stage.
            enough_extra_ns: what the step may take more than if everything is kept, to be good enough.
        """
        self._enough_extra_ns = enough_extra_ns / self.model.layout.num_micro_batches
        budgets = [budget_bytes - static.total_bytes for static in self.model.static]
        choice = np.zeros(self.shape, np.int64)
        with contextlib.suppress(Stop):
            self.fits_alone = False
            fitting = self._solve_stages(choice, range(self.num_stages), budgets)
            self.fits_alone = len(fitting) == self.num_stages
            if self.num_stages > 1:
                return self._repaired(choice, budget_bytes, budgets, fitting)
        return choice

    def effective(self, choice: np.ndarray) -> np.ndarray:
        """A choice for all layers without what it would swap for nothing."""
        return np.array([self.rows.effective(layer, row) for layer, row in enumerate(choice)])

    def mix(self, lean: np.ndarray, rich: np.ndarray, budget_bytes: int) -> np.ndarray:
        """The best mix of two choices within a budget."""
        space = WholeSpace(self.rows, self.short, budget_bytes, self.host_bytes)
        search = Search(space, MAX_OPERATORS, self.progress)
        over = space.over_bytes(space.timeline(rich))
        with contextlib.suppress(Stop):
            best_mix(search.score, [lean, rich], orders_of(self.layers, over.tolist()))
        return lean if search.best is None else search.best

    def progress(self) -> None:
        """Counts a simulation."""
        self.num_evaluations += 1
        self.asked()

    def _solve_stages(self, choice: np.ndarray, stages: Sequence[int], budgets: Sequence[int]) -> set[int]:
        """Fills in the layers of some stages, the one that lacks most memory first; gives those that fit alone.

        Stages are alike, so for the others a mix of what is known is often enough: a stage need not be better than
        the slowest one.
        """
        fitting: set[int] = set()
        spaces = {
            stage: StepSpace(self.rows, stage, budgets[stage], self.host_bytes, self.idle_ns[stage]) for stage in stages
        }
        for space in spaces.values():
            space.enough_extra_ns = self._enough_extra_ns
        searches = {stage: Search(space, MAX_OPERATORS, self.progress) for stage, space in spaces.items()}
        kept = {stage: search.score(np.zeros_like(choice[self.layers[stage]])) for stage, search in searches.items()}
        slowest_ns = max(_per_batch_ns(spaces[stage], score) for stage, score in kept.items())
        known = [choice[layers] for layers in self.layers if choice[layers].any()]
        for stage in sorted(stages, key=lambda stage: (-kept[stage].excess_bytes, stage)):
            space, layers = spaces[stage], self.layers[stage]
            choice[layers] = 0
            if kept[stage].fits or not layers:
                fitting |= {stage}
                continue
            options = [choice[layers], *(stretched(other, space.figures) for other in known)]
            found, mix = best_mix(searches[stage].score, options, orders_of([range(len(layers))]))
            if not found.fits or _per_batch_ns(space, found) > slowest_ns:
                search = fast.solve(space, self.progress, [mix] if found.fits else [])
                if search.best is None or search.best_score is None:
                    raise AssertionError("a search without a simulation")
                if search.best_score < found:
                    found, mix = search.best_score, search.best
                known.append(mix)
            choice[layers] = mix
            fitting |= {stage} if found.fits else set()
            slowest_ns = max(slowest_ns, _per_batch_ns(space, found))
        return fitting

    def _repaired(self, choice: np.ndarray, budget_bytes: int, budgets: list[int], fitting: set[int]) -> np.ndarray:
        """The choice on the whole step, where stages wait for each other: it must fit there, and be fast there."""
        space = WholeSpace(self.rows, self.short, budget_bytes, self.host_bytes)
        search = Search(space, LEAST_EVALUATIONS, self.progress)
        with contextlib.suppress(Stop):
            if not self._kept_ns:
                self._kept_ns = space.score(space.timeline(np.zeros_like(choice))).step_time_ns
            search.enough_ns = self._kept_ns + round(self._enough_extra_ns * space.num_scored)
            _, timeline = search.run(choice)
            search.max_evaluations = max(LEAST_EVALUATIONS, MAX_OPERATORS // len(timeline.program.ops))
            tried = [choice.copy()]
            over = first_over = space.over_bytes(timeline)
            for _ in range(NUM_REPAIRS):
                # There is nothing less to ask for of a stage that does not fit alone.
                again = [stage for stage in np.flatnonzero(over > 0).tolist() if stage in fitting]
                if not again:
                    break
                for stage in again:
                    budgets[stage] -= max(int(over[stage]), budget_bytes // LEAST_REPAIR)
                fitting = fitting & self._solve_stages(choice, again, budgets)
                tried.append(choice.copy())
                over = space.over_bytes(search.run(choice)[1])
            if len(tried) > 1:
                best_mix(search.score, tried, orders_of(self.layers, first_over.tolist()))
            # Time of forward of one micro-batch on one stage.
            forward_ns = forward_time_ns(timeline) // self.short.layout.num_micro_steps // self.num_stages
            num_rearranged = MAX_REARRANGED // len(timeline.program.ops)
            improve(search, forward_ns, least_rearranged=min(LEAST_REARRANGED, num_rearranged))
        return choice if search.best is None else search.best


def _per_batch_ns(space: StepSpace, score: Score) -> float:
    return (score.step_time_ns - space.idle_ns) / space.num_scored


# Mixes of two choices: some layers as one has them, the others as the other one. Layers are alike, so what lies between
# two good choices for neighbouring budgets is nearly as good for the budgets between them.

# The order in which layers go over from one choice to the other.
Order = Sequence[int]


def mixed(lean: np.ndarray, rich: np.ndarray, layers: Sequence[int]) -> np.ndarray:
    """Some layers of one choice, the others of another.

    Args:
        lean: the choice that needs less memory.
        rich: one of the same shape.
        layers: those of `lean`.
    """
    choice = rich.copy()
    choice[list(layers)] = lean[list(layers)]
    return choice


def best_mix(
    score: Callable[[np.ndarray], Score], choices: Sequence[np.ndarray], orders: Sequence[Order]
) -> tuple[Score, np.ndarray]:
    """The best of some choices and of their mixes.

    For each pair of one that fits and a faster one that does not, as few layers as possible are taken from the
    first; their number is found by halving.

    Args:
        score: what a choice comes to.
        choices: at least one, all of the same shape.
        orders: from which layers to take them.
    """
    known = [(score(choice), number, choice) for number, choice in enumerate(choices)]
    best, _, chosen = min(known, key=lambda entry: entry[:2])
    for lean, rich in _pairs(known):
        for order in orders:
            low, high = 0, len(order)  # layers of `lean`: too few, enough
            while high - low > 1:
                middle = (low + high) // 2
                choice = mixed(lean, rich, order[:middle])
                found = score(choice)
                low, high = (low, middle) if found.fits else (middle, high)
                if found < best:
                    best, chosen = found, choice
    return best, chosen


def _pairs(known: Sequence[tuple[Score, int, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The fastest that fits, with each that does not and is faster."""
    fitting = [entry for entry in known if entry[0].fits]
    if not fitting:
        return
    lean = min(fitting, key=lambda entry: entry[:2])
    for rich in known:
        if not rich[0].fits and rich[0].step_time_ns < lean[0].step_time_ns:
            yield lean[2], rich[2]


def orders_of(stages: Sequence[Sequence[int]], over_bytes: Sequence[int] = ()) -> list[Order]:
    """Orders in which layers can go over: of all stages in turn, from the first or from the last one of each.

    Args:
        stages: layers of each pipeline stage.
        over_bytes: what each stage is over its budget; where some are, also those first that are most.
    """
    forward = [layer for turn in range(max(map(len, stages))) for own in stages for layer in own[turn : turn + 1]]
    backward = [
        layer for turn in range(max(map(len, stages))) for own in stages for layer in own[::-1][turn : turn + 1]
    ]
    fullest = sorted(range(len(over_bytes)), key=lambda stage: -over_bytes[stage])
    by_need = [layer for stage in fullest for layer in stages[stage]] if len(stages) > 1 else []
    return [order for order in (forward, backward, by_need) if order]


def stretched(choice: np.ndarray, figures: Figures) -> np.ndarray:
    """A choice for the layers of one pipeline stage, carried over to those of another.

    Args:
        choice: of other layers; items are the same.
        figures: of the layers that it shall be for; decisions that they do not have are left out.
    """
    num_layers = figures.num_layers
    own = choice[np.arange(num_layers) * len(choice) // max(1, num_layers)]
    return np.where(figures.can(own), own, KEEP)
