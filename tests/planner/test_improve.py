"""Steps of the local search, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from mindswap.planner.catalog import build_catalog
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.solver import improve
from mindswap.planner.solver.search import Search, Stop
from mindswap.planner.step_problem import PipelineProblem
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.step_model import StepModel
from tests.planner.builders import Tensor, ToySpace
from tests.planner.models import MB, small_model
from tests.planner.test_candidates import model_with_a_function

PLENTY = 10**12


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


def pipeline_over_budget(model: StepModel, excess_bytes: int) -> tuple[Search, np.ndarray]:
    """Return a search of all stages, each over its budget by as much if everything is kept, and that assignment."""
    pipeline = PipelineProblem(LayerAssignments(model, build_catalog(model)), model, 0, PLENTY)
    search = Search(pipeline, 100)
    peaks_bytes = peak_memory(search.timeline(search.best))
    pipeline.static_bytes = peaks_bytes.max() - peaks_bytes
    pipeline.budget_bytes = int(peaks_bytes.max()) - excess_bytes
    return search, np.zeros_like(search.best)


def relief_of(search: Search, assignment: np.ndarray, group: int) -> dict[tuple[int, ...], int]:
    """Return layers -> what recompute of a group in them frees."""
    costs = search.stage_problem.costs
    moves = [move for move in improve._moves(assignment, costs) if (move.group, move.value) == (group, -1)]
    freed = improve._relief_bytes(search, assignment, moves).tolist()
    return {tuple(move.layers.tolist()): size_bytes for move, size_bytes in zip(moves, freed, strict=True)}


def test_a_cell_relieves_the_peak_of_what_was_made_in_it():
    """No operator of `attn` has a name, so only the cell frees the 1 MB that `exp` keeps; not in the first layer."""
    search, assignment = pipeline_over_budget(model_with_a_function(), 9 * MB)
    attn = dict(search.stage_problem.cells)["attn"]
    relief = relief_of(search, assignment, attn)
    assert relief == {layers: len(layers) * MB for layers in relief} and (1, 2, 3) in relief
    # `recompute` of a layer leaves what it reads: `tanh` of the layer before, of the first layer two tensors.
    assert relief_of(search, assignment, 0)[0, 1, 2, 3] == 7 * MB
    assignment[:, attn] = [0, -1, -1, -1]
    assert not any(relief_of(search, assignment, attn).values())


def test_relief_of_two_stages_is_the_sum_but_of_each_no_more_than_its_excess():
    """Stage 0 has `relu` of each layer in two micro-batches, stage 1 in one; each is 1 MB over its budget, or 3 MB."""
    for excess_bytes, expected in ((MB, (MB, MB, 2 * MB)), (3 * MB, (3 * MB, 2 * MB, 5 * MB))):
        search, assignment = pipeline_over_budget(small_model(4, 2, 4), excess_bytes)
        relu = search.stage_problem.groups["mlp.relu"]
        relief = relief_of(search, assignment, relu)
        assert (relief[0, 1], relief[2, 3], relief[0, 1, 2, 3]) == expected


def test_every_simulation_counts_and_can_be_stopped():
    """Relief and distances need a timeline: the last one or the best one, or one more that counts."""
    num_runs = []

    class Counted(Seen):
        def timeline(self, assignment):
            num_runs.append(1)
            return super().timeline(assignment)

    stage_problem = Counted(can_swap=True)
    stage_problem.budget_bytes = 60
    search = Search(stage_problem, 50)
    swapped = np.full_like(search.best, 4) * [0, 0, 1]
    improve.improve(search, 10**9, [swapped])
    assert len(num_runs) == search.num_evaluations > 20 and search.fits

    def stop():
        raise Stop

    search.progress, search.max_evaluations = stop, 1000
    with pytest.raises(Stop):
        improve._relief_bytes(search, swapped * 2, [])


def test_what_exceeds_host_memory_takes_no_further_simulation():
    """Relief of the device is not asked for where swaps fill the host."""
    stage_problem = Seen(can_swap=True)
    stage_problem.host_budget_bytes = 8
    search = Search(stage_problem, 2)
    assignment = np.full_like(search.best, 4) * [0, 0, 1]
    start = search.score(assignment), assignment
    search.score(assignment * 0)
    assert start[0].host_excess_bytes
    stage_problem.seen.clear()
    improve._change(search, start, 10**9)
    assert stage_problem.seen == []
