"""The lower bound of a step made by hand: memory, work, stages and micro-batches."""

from dataclasses import replace

import highspy
import pytest

from mindswap.planner.lower_bound import BoundInputs, least_budget_bytes
from mindswap.planner.lower_bound.inputs import Stage, StageLayers
from mindswap.planner.lower_bound.tensor_graph import (
    TensorGraph,
)
from mindswap.planner.problem import Allow
from mindswap.simulator.placing import TransferCosts
from tests.planner.lower_bound.builders import FLOW, PLENTY, bound, bound_inputs


def test_what_fits_takes_its_time():
    assert bound(bound_inputs(), 300) == 1000
    once = replace(bound_inputs().stages[0], idle_ns=43)
    assert bound(BoundInputs((FLOW,), (once,), bound_inputs().transfers), 300) == 1043


@pytest.mark.parametrize(("solved_by", "expected_ns"), [("choose", 1010), ("ipm", 1010), (None, 0)])
def test_a_programme_that_a_method_of_highs_gives_up_on_goes_to_the_next(monkeypatch, solved_by, expected_ns):
    """HiGHS answers "Unknown" to one of ten thousand; where nothing solves it, 0 is below any time."""

    class Stubborn(highspy.Highs):
        def getModelStatus(self):  # noqa: N802 the name of HiGHS
            is_solved = self.getOptionValue("solver")[1] == solved_by
            return super().getModelStatus() if is_solved else highspy.HighsModelStatus.kUnknown

    monkeypatch.setattr(highspy, "Highs", Stubborn)
    assert bound(bound_inputs(), 200, Allow(swap=False)) == expected_ns


def test_parts_of_tensors_count():
    assert bound(bound_inputs(), 250, Allow(swap=False)) == 1005


def test_stages_before_go_on_with_backward():
    """Both stages run 10 ns again per micro-batch; behind the last of the second there are 100 + 10 of the first."""
    costs = TransferCosts(lambda size: size, lambda size: size)
    layers = {StageLayers(0): 1}
    first = Stage(150, layers, 0, work_ns=300, backward_ns=100)
    second = Stage(150, layers, 0, work_ns=300, idle_ns=200)
    known = BoundInputs((FLOW,), (first, second), costs, num_micro_batches=4)
    assert bound(known, 50, Allow(swap=False)) == 200 + 4 * (300 + 10) + 100 + 10


def test_gradients_hide_behind_what_runs_again():
    known = bound_inputs(step_overhead_ns=60, gradients_ns=4)
    assert bound(known, 200, Allow(swap=False)) == 1060 + 10 - 4


def test_the_least_budget_is_what_nobody_can_move():
    stuck = TensorGraph(**{**vars(FLOW), "outputs": frozenset({0})})
    assert least_budget_bytes(bound_inputs(stuck), PLENTY, Allow(swap=False)) == 200
    assert least_budget_bytes(bound_inputs(stuck), PLENTY, Allow()) == 0
    assert bound(bound_inputs(stuck), 199, Allow(swap=False)) is None
