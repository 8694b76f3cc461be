"""Steps of the local search, by hand."""

import random
from dataclasses import replace

import numpy as np

from mindswap.planner.solver import improve
from mindswap.planner.solver.search import Search
from tests.planner.builders import Tensor, ToySpace


class Seen(ToySpace):
    """Layers of 10 bytes that run again in 5 ns, and 4 bytes in 1 ns; notes which choices are simulated."""

    def __init__(self, can_swap, num_layers=9):
        super().__init__([(Tensor(10, 5, 1, can_swap=False), Tensor(4, 1, 1, can_swap))] * num_layers)
        self.seen = []

    def timeline(self, assignment):
        self.seen.append(
            {(int(layer), int(group)): int(assignment[layer, group]) for layer, group in np.argwhere(assignment)}
        )
        return super().timeline(assignment)


def tried(spare_bytes, num_in_flight=1, forward_ns=10**9, can_swap=False):
    """What is tried around a choice that runs item 1 of layer 0 again, and whether something better is found."""
    assignment = np.zeros((9, 3), np.int64)
    assignment[0, 1] = -1
    stage_problem = Seen(can_swap)
    stage_problem.budget_bytes = stage_problem.evaluate(assignment).peak_bytes + spare_bytes
    stage_problem.costs = replace(stage_problem.costs, num_in_flight=num_in_flight)
    search = Search(stage_problem, 1000)
    start = (assignment, search.score(assignment))
    stage_problem.seen.clear()
    return stage_problem.seen, improve._change(search, start, forward_ns)[1] < start[1]


def test_what_is_kept_takes_the_memory_that_something_cheaper_frees():
    """To keep 10 bytes more takes 6 of others besides the 4 that are free: of two layers, from the first one on."""
    assert tried(10) == ([{}], True)
    assert tried(4) == ([{}, {(0, 2): -1, (1, 2): -1}], True)
    assert tried(6) == ([{}, {(0, 2): -1}], True)
    # Of two micro-batches that are there at once both count: 20 bytes for 4 and two times 8.
    assert tried(4, 2) == ([{}, {(0, 2): -1, (1, 2): -1}], True)


def test_what_copies_while_forward_runs_costs_nothing():
    """To swap 4 bytes takes 4 ns: 8 ns of forward hide two of them; 5 ns leave 3, more than 2 that run again."""
    assert tried(4, forward_ns=8, can_swap=True)[0][:2] == [{}, {(0, 2): 8, (1, 2): 8}]
    assert tried(4, forward_ns=5, can_swap=True)[0][:2] == [{}, {(0, 2): -1, (1, 2): -1}]


def test_no_more_than_so_many_are_tried(monkeypatch):
    monkeypatch.setattr(improve, "MAX_TRIALS", 1)
    assert tried(4) == ([{}], False)


def test_in_a_small_space_two_changes_are_tried_behind_all_single_ones():
    """To run item 2 of one layer and item 1 of another again takes 6 ns, item 1 of both 10, and is one change."""
    stage_problem, assignment = Seen(False, 2), np.zeros((2, 3), np.int64)
    search = Search(stage_problem, 1000)
    improve._change(search, (assignment, search.score(assignment)), 10**9)
    numbers = [len({(group, value) for (_, group), value in changed.items()}) for changed in stage_problem.seen]
    # Both items have parts [0], [1] and [0, 1]; each part of one goes with each of the other.
    assert numbers == [0] + [1] * 6 + [2] * 9


def test_what_cannot_be_done_is_not_tried_from_a_changed_choice():
    """Each tensor can be swapped, or run again, or neither; the others can be kept only."""
    tensors = [Tensor(10, 5, 1, can_swap, can_recompute) for can_swap in (0, 1) for can_recompute in (0, 1)]
    costs = ToySpace([tensors] * 2).costs
    chance = random.Random(1)
    seen = [improve._perturb(np.zeros((2, 5), np.int64), costs, chance) for _ in range(100)]
    values = [set(np.stack(seen)[:, :, group].ravel().tolist()) for group in range(5)]
    assert values == [{0}, {0}, {0, -1}, {0, 1, 4}, {0, -1, 1, 4}]
    assert max(np.count_nonzero(assignment) for assignment in seen) == 3
