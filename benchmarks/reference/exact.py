"""References for small cases: every choice there is, and an integer programme of the additive relaxation.

They serve tests of the fast solver, and whoever wants to know how good it is; no size but a small one ends.
"""

import contextlib
import itertools
import math
from collections.abc import Sequence

import numpy as np

from mindswap.errors import SimulationError
from mindswap.planner.solver.search import Progress, Search, Stop
from mindswap.planner.stage_problem import KEEP, DecisionCosts, StageProblem

__all__ = ["DISTANCES", "count_choices", "enumerate_all", "solve_relaxed"]

# Distances that are tried for a swap; those between differ little.
DISTANCES = (1, 2, 3, 4, 6, 8)
MAX_CHOICES = 2_000_000


def enumerate_all(
    stage_problem: StageProblem,
    progress: Progress = lambda: None,
    starts: Sequence[np.ndarray] = (),
    distances: Sequence[int] = DISTANCES,
) -> Search:
    """The best of all choices.

    Where recompute adds up, step time never falls below that of keeping everything plus what is recomputed, and
    choices that are over the best so far by this alone are not simulated.

    Raises:
        SimulationError: there are more than a few million.
    """
    if count_choices(stage_problem.costs, distances) > MAX_CHOICES:
        raise SimulationError("too many choices to try them all: use the solver 'fast'")
    search = Search(stage_problem, MAX_CHOICES, progress)
    options = _options(stage_problem.costs, distances)
    shape = (stage_problem.costs.num_layers, stage_problem.costs.num_groups)
    with contextlib.suppress(Stop):
        keep_score = search.score(np.zeros(shape, np.int64))
        if keep_score.fits:
            return search
        times = [
            [_recompute_ns(stage_problem.costs, cell, value) for value in values] for cell, values in options.items()
        ]
        micro_batches = stage_problem.layout.num_micro_batches
        is_additive = getattr(stage_problem, "is_additive", False)  # recompute takes the sum of its times, never less
        for picked in itertools.product(*(range(len(values)) for values in options.values())):
            recompute_ns = sum(column[index] for column, index in zip(times, picked, strict=True)) * micro_batches
            best = search.best_score
            if (
                is_additive
                and best is not None
                and best.fits
                and keep_score.step_time_ns + recompute_ns > best.step_time_ns
            ):
                continue
            values = [column[index] for column, index in zip(options.values(), picked, strict=True)]
            assignment = np.array(values, np.int64).reshape(shape)
            if not _is_redundant(assignment):
                search.score(assignment)
    return search


def count_choices(costs: DecisionCosts, distances: Sequence[int] = DISTANCES) -> int:
    """Number of choices."""
    return math.prod(len(values) for values in _options(costs, distances).values())


def _options(costs: DecisionCosts, distances: Sequence[int]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Values of each cell, row after row."""
    options = {}
    for layer, group in np.ndindex(costs.num_layers, costs.num_groups):
        freed = costs.freed_bytes[layer, group]
        path_indices = tuple(-path_index for path_index in range(1, len(freed)) if freed[path_index] > 0)
        options[layer, group] = (KEEP, *path_indices, *(distances if freed[0] > 0 else ()))
    return options


def _recompute_ns(costs: DecisionCosts, cell: tuple[int, int], value: int) -> int:
    return int(costs.recompute_ns[cell][-value]) if value < KEEP else 0


def _is_redundant(assignment: np.ndarray) -> bool:
    """A layer that is fully recomputed has no items to decide."""
    return bool((assignment[assignment[:, 0] < KEEP, 1:] != KEEP).any())


def solve_relaxed(
    stage_problem: StageProblem, progress: Progress = lambda: None, starts: Sequence[np.ndarray] = ()
) -> Search:
    """An integer programme in which bytes and times add up, with HiGHS; its answer is then simulated.

    One variable for each cell and value: 1 if the cell has it. At most one per cell; what is freed covers what
    keeping everything is over the budget; copies take no longer than forward, or what is longer counts as time.

    Source:
        The formulation follows Beaumont et al., "Efficient combination of rematerialization and offloading for
        training DNNs" (NeurIPS 2021), without its order of operations in time.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    search = Search(stage_problem, 40, progress)
    costs = stage_problem.costs
    shape = (costs.num_layers, costs.num_groups)
    with contextlib.suppress(Stop):
        score, timeline = search.run(np.zeros(shape, np.int64))
        if score.fits:
            return search
        cells = [
            (layer, group, path_index)
            for layer, group, path_index in zip(*np.nonzero(costs.freed_bytes > 0), strict=True)
        ]
        freed = np.array([costs.freed_bytes[cell] for cell in cells], float)
        recompute_ns = np.array([costs.recompute_ns[cell] for cell in cells], float)
        copy_ns = np.array(
            [costs.copy_ns[layer, group] if path_index == 0 else 0 for layer, group, path_index in cells], float
        )
        num = len(cells)
        ops = timeline.program.ops
        forward_ns = float(ops.duration_ns[ops.kind == 0].sum()) / stage_problem.layout.num_micro_batches
        # [Constraint] One value per cell. A layer that is fully recomputed has no items: its row counts for all.
        rows = [layer * costs.num_groups + group for layer, group, _ in cells]
        full_layers = [(layer, j) for j, (layer, group, _) in enumerate(cells) if group == 0]
        entries = [(row, j) for j, row in enumerate(rows)]
        entries += [
            (layer * costs.num_groups + group, j) for layer, j in full_layers for group in range(1, costs.num_groups)
        ]
        at, of = zip(*entries, strict=True)
        once = coo_array((np.ones(len(at)), (at, of)), shape=(shape[0] * shape[1], num + 1)).tocsr()
        needed = -(-score.excess_bytes // costs.num_in_flight)
        for _ in range(8):
            # [Variables] cells, and the time of copies that forward does not hide.
            solution = milp(
                np.append(recompute_ns, 1.0),
                integrality=np.append(np.ones(num), 0),
                bounds=Bounds(0, np.append(np.ones(num), np.inf)),
                constraints=[
                    LinearConstraint(once, -np.inf, 1),
                    LinearConstraint(np.append(freed, 0)[None, :], needed, np.inf),
                    LinearConstraint(np.append(copy_ns, -1)[None, :], -np.inf, forward_ns),
                ],
            )
            if solution.x is None:
                break
            assignment = np.zeros(shape, np.int64)
            for (layer, group, path_index), value in zip(cells, solution.x[:num], strict=True):
                if value > 0.5:
                    assignment[layer, group] = -path_index if path_index else len(ops)
            now, line = search.run(assignment)
            distances = stage_problem.min_distances(line)
            now = min(now, search.score(np.where(assignment > KEEP, np.maximum(distances, 1), assignment)))
            if now.fits:
                break
            needed += -(-now.excess_bytes // costs.num_in_flight)
    return search
