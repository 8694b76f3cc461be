"""All solvers on the same small problems; every expected number is worked out by hand or by trying everything."""

from dataclasses import replace

import numpy as np
import pytest
from reference.exact import count_choices, enumerate_all, solve_relaxed

from mindswap.planner.solver.fast import forward_time_ns, solve
from mindswap.planner.solver.improve import DecisionChange, _moves, _parts
from mindswap.planner.solver.search import Stop
from mindswap.planner.stage_problem import DecisionCosts
from mindswap.simulator.timeline import StallCause
from tests.planner.builders import Tensor, ToySpace, random_space
from tests.strength import examples, is_nightly

# Two layers of two tensors. Forward takes 2 * (10 + 20) ns and 1 ns at each end, backward 2 * (30 + 40) and 2.
PLAIN_NS = 60 + 2 + 140 + 2
LAYER = (Tensor(100, forward_ns=10, backward_ns=30), Tensor(50, forward_ns=20, backward_ns=40))


EVERY_SOLVER = {"fast": solve, "exact": enumerate_all, "relaxed": solve_relaxed}


def stage_problem(budget_bytes: int, **kwargs) -> ToySpace:
    return ToySpace((LAYER, LAYER), budget_bytes, **kwargs)


@pytest.mark.parametrize("name", sorted(EVERY_SOLVER))
def test_what_fits_is_left_alone(name):
    found = EVERY_SOLVER[name](stage_problem(300))
    assert found.best_score.fits
    assert not found.best.any()
    assert found.best_score.step_time_ns == PLAIN_NS
    assert found.best_score.peak_bytes == 300


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(EVERY_SOLVER) if is_nightly() else ["fast", "relaxed"])
def test_the_cheapest_tensor_that_is_enough_runs_again(name):
    """Copies take a second each; 50 bytes over: one tensor of 100 bytes, again in 10 ns, is cheaper than one of 50."""
    found = EVERY_SOLVER[name](stage_problem(250, ns_per_byte=10**7))
    assert found.best_score.fits
    assert found.best_score.step_time_ns == PLAIN_NS + 10
    assert sorted(found.best.flatten().tolist()) == [-1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", sorted(EVERY_SOLVER) if is_nightly() else ["fast", "relaxed"])
def test_an_impossible_budget_is_said(name):
    found = EVERY_SOLVER[name](stage_problem(10))
    assert not found.best_score.fits
    assert found.best_score.excess_bytes == found.best_score.peak_bytes - 10


@pytest.mark.long
def test_a_copy_that_hides_costs_nothing():
    """A link that moves 100 bytes in 1 ns: no recompute is needed."""
    layers = (Tensor(100, 10, 30, can_recompute=False), Tensor(50, 20, 40, can_recompute=False))
    fast_link = ToySpace((layers, layers), 250, ns_per_byte=0)
    found = solve(fast_link)
    assert found.best_score.fits
    assert found.best_score.step_time_ns == PLAIN_NS


@pytest.mark.long
def test_host_memory_is_a_limit_too():
    """Swap would be free, but the host has no room; so the cheap tensor runs again."""
    found = solve(stage_problem(250, ns_per_byte=0, host_budget_bytes=0))
    assert found.best_score.fits
    assert not (found.best > 0).any()
    assert found.best_score.step_time_ns == PLAIN_NS + 10


@pytest.mark.long
def test_same_problem_same_answer():
    first, second = solve(random_space(examples(2, 7))), solve(random_space(examples(2, 7)))
    assert first.best.tolist() == second.best.tolist()
    assert first.num_evaluations == second.num_evaluations


def test_an_interrupted_search_keeps_its_best():
    calls = []

    def progress() -> None:
        calls.append(1)
        if len(calls) == 20:
            raise Stop

    seed = examples(2, 14)
    full, stopped = solve(random_space(seed)), solve(random_space(seed), progress)
    assert stopped.num_evaluations == 20 < full.num_evaluations
    assert stopped.best_score >= full.best_score


def test_the_best_choice_simulates_to_its_score():
    for seed in range(20) if is_nightly() else (0, 2):
        case = random_space(seed)
        found = solve(case)
        again = case.evaluate(found.best)
        assert (again.step_time_ns, again.peak_bytes) == (found.best_score.step_time_ns, found.best_score.peak_bytes)


DISTANCES = (1, 2, 4)


def compare(seeds, least: int, most: int, enough: int) -> int:
    """Compares with all choices there are; how many problems were of the right size."""
    num_compared = 0
    for seed in seeds:
        case = random_space(seed)
        if not least < count_choices(case.costs, DISTANCES) <= most:
            continue
        if num_compared == enough:
            break
        num_compared += 1
        exact, fast = enumerate_all(case, distances=DISTANCES).best_score, solve(case).best_score
        assert fast.fits or not exact.fits, seed
        if exact.fits:
            assert fast.step_time_ns <= 1.01 * exact.step_time_ns, seed
    return num_compared


@pytest.mark.long
@pytest.mark.parametrize("part", range(examples(1, 8)))
def test_within_a_percent_of_the_optimum(part):
    """At night at least 500 problems in all parts together: 500 seeds of each, of which a seventh are small enough."""
    assert compare(range(500 * part, 500 * part + examples(30, 500)), 0, 300, examples(3, 500)) >= examples(3, 63)


@pytest.mark.long
def test_within_a_percent_of_the_optimum_of_larger_problems():
    assert compare(range(100), examples(300, 1000), examples(1000, 3500), examples(1, 100)) >= examples(1, 10)


def test_moves_of_a_search():
    """A tensor frees 10 bytes by its copy of 7 ns, or 20 if it runs again in 5 ns; the layer 30 in 9 ns."""
    costs = DecisionCosts(np.array([[[0, 30], [10, 20]]] * 2), np.array([[[0, 9], [0, 5]]] * 2), np.array([[0, 7]] * 2))

    def moves(assignment):
        """Layers, item, value -> change of bytes freed, of time, of time on the link, and of host memory."""
        found = _moves(np.array(assignment), costs)
        return {(*move.layers.tolist(), f"item {move.group}", move.value): tuple(move.change) for move in found}

    # The usual distance is 8.
    assert moves([[0, 0], [0, 0]]) == {
        (0, "item 0", -1): (30, 9, 0, 0), (1, "item 0", -1): (30, 9, 0, 0), (0, 1, "item 0", -1): (60, 18, 0, 0),
        (0, "item 1", -1): (20, 5, 0, 0), (1, "item 1", -1): (20, 5, 0, 0), (0, 1, "item 1", -1): (40, 10, 0, 0),
        (0, "item 1", 8): (10, 0, 7, 10), (1, "item 1", 8): (10, 0, 7, 10), (0, 1, "item 1", 8): (20, 0, 14, 20),
    }  # fmt: skip
    # Of a layer that runs again no tensor is chosen; to keep it costs the bytes and gives the time back.
    found = moves([[-1, 0], [0, 5]])
    assert found[0, "item 0", 0] == (-30, -9, 0, 0)
    assert found[1, "item 1", 0] == (-10, 0, -7, -10) and found[1, "item 1", -1] == (10, 5, -7, -10)
    assert found[1, "item 0", -1] == (20, 9, -7, -10)
    assert {key[0] for key in found if "item 1" in key} == {1}
    # The distance that other layers have is the one that is tried.
    assert moves([[0, 0], [0, 5]])[0, "item 1", 5] == (10, 0, 7, 10)


def test_moves_of_the_same_decision_are_no_pair():
    """Nor one of a layer as a whole and one of a tensor in it."""

    def move(layers, group):
        return DecisionChange(np.array(layers), group, -1, np.zeros(4))

    assert move([0, 1], 2).overlaps(move([1], 2)) and move([0, 1], 0).overlaps(move([1], 2))
    assert not move([0, 1], 2).overlaps(move([2], 2)) and not move([0, 1], 2).overlaps(move([1], 3))


@pytest.mark.parametrize(
    ("number", "parts"),
    [
        (0, []),
        (1, [[0]]),
        (2, [[0], [1], [0, 1]]),
        (3, [[0], [2], [0, 1], [1, 2], [0, 1, 2], [1]]),
        (6, [[0], [5], [0, 1], [4, 5], [0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [1], [2], [3], [4]]),
        (7, [[0], [6], [0, 1], [5, 6], [0, 1, 2, 3], [3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]]),
    ],
)
def test_layers_that_are_moved_together(number, parts):
    """First and last ones, and all; of few layers those between one by one."""
    assert [part.tolist() for part in _parts(np.arange(number))] == parts


def test_copies_have_the_time_that_forward_waits_for_communication():
    """Forward of one layer: 1 + 5 + 1 ns in a step that waits for none; where its second operator waits 9, 16 ns."""
    timeline = ToySpace(((Tensor(10, 5, 7),),)).timeline(np.array([[0, 0]]))
    assert forward_time_ns(timeline) == 7
    cause, stall_ns = timeline.stall_cause.copy(), timeline.stall_ns.copy()
    cause[1], stall_ns[1] = StallCause.COMMUNICATION, 9
    assert forward_time_ns(replace(timeline, stall_cause=cause, stall_ns=stall_ns)) == 16
