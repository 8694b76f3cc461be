"""Steps of the local search, by hand."""

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
    start = (search.score(assignment), assignment)
    stage_problem.seen.clear()
    return stage_problem.seen, improve._change(search, start, forward_ns)[0] < start[0]


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


def test_what_is_on_the_device_at_the_peak_is_recomputed_first():
    """Layer 0 swaps 10 bytes so far ahead that they are there twice at the peak, behind the 90 bytes of the last layer.

    Recompute of them alone frees the 20 bytes that are too many; by its costs it frees nothing. Before decisions that
    free enough, no distance is shorter.
    """

    class Logged(Seen):
        def __init__(self):
            others = [(Tensor(10, 50, 100, can_swap=False),)] * 3 + [(Tensor(90, 50, 100, False, False),)]
            ToySpace.__init__(self, [(Tensor(10, 50, 100),), *others])
            self.seen = []

    stage_problem, assignment = Logged(), np.zeros((5, 2), np.int64)
    assignment[0, 1] = 50
    search = Search(stage_problem, 2)
    stage_problem.budget_bytes = stage_problem.evaluate(assignment).peak_bytes - 20
    stage_problem.seen.clear()
    improve._climb(search, assignment, 10**9)
    assert [layers for layers in stage_problem.seen if layers != {(0, 1): 50}] == [{(0, 1): -1}]
    assert search.fits
