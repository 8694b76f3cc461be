"""A policy on the whole step: every stage has to fit, and short steps are carried on to all micro-batches."""

from dataclasses import replace

import pytest

import mindswap.planner.evaluate
from mindswap.planner.evaluate import Candidate, evaluate, evaluate_short, short_model
from mindswap.planner.problem import PlanProblem
from mindswap.policy.model import Layers, OpRecompute, Policy
from tests.planner.models import small_model

PLENTY = 10**12


def test_the_fullest_stage_decides_what_fits():
    """Of a pipeline the first stage holds the most micro-batches."""
    model = small_model(num_stages=2, num_micro_batches=4)
    found = evaluate(PlanProblem(model, PLENTY, PLENTY, 8), Policy())
    least, most = sorted(found.stage_peak_bytes)
    assert least < most == found.peak_bytes
    budgets = {most: True, most - 1: False, least: False}
    assert {size: evaluate(PlanProblem(model, size, PLENTY, 8), Policy()).fits for size in budgets} == budgets


def test_another_problem_has_its_own_budgets_of_device_and_host():
    model = small_model()
    found = replace(evaluate(PlanProblem(model, PLENTY, PLENTY, 8), Policy()), host_bytes=100)
    peak = found.peak_bytes
    fits = {
        (device, host): found.within(PlanProblem(model, device, host, 8)).fits
        for device in (peak, peak - 1)
        for host in (100, 99)
    }
    assert [key for key, value in fits.items() if value] == [(peak, 100)]


def test_a_candidate_fits_where_device_and_host_have_room():
    """Less is better: what fits by time, then by memory; what does not by memory, then by time."""
    one, slow, full = (Candidate(Policy(), *costs, True) for costs in ((7, (5, 9)), (8, (5, 8)), (7, (9, 10))))
    assert (one.peak_bytes, one.fits(9), one.fits(8), replace(one, is_on_host=False).fits(9)) == (9, True, False, False)
    assert (one.rank(9), one.rank(8)) == ((False, 7, 9), (True, 9, 7))
    assert min(one, slow, full, key=lambda each: each.rank(10)) is one
    assert min(one, slow, full, key=lambda each: each.rank(9)) is one
    assert min(one, slow, full, key=lambda each: each.rank(8)) is slow
    assert min(one, slow, full, key=lambda each: each.rank(1)) is slow


def test_host_memory_of_a_candidate_is_held_against_that_of_the_node():
    problem = PlanProblem(small_model(), PLENTY, 100, 8)
    evaluation = replace(evaluate(problem, Policy()), host_bytes=100)
    assert Candidate.of(problem, Policy(), evaluation).is_on_host
    assert not Candidate.of(problem, Policy(), replace(evaluation, host_bytes=101)).is_on_host


@pytest.mark.parametrize(
    ("num_stages", "num_micro_batches", "expected"),
    [(1, 7, [7]), (1, 8, [5, 7]), (2, 8, [8]), (2, 9, [6, 8]), (4, 10, [10]), (4, 11, [8, 10])],
)
def test_two_short_steps_have_four_micro_batches_more_than_stages_and_two_more(num_stages, num_micro_batches, expected):
    """A step that is no longer than the second of them is taken whole."""
    short_models = short_model(small_model(4, num_stages, num_micro_batches))
    assert [short.layout.num_micro_batches for short in short_models] == expected


def test_a_short_step_has_so_many_operators_as_are_allowed():
    """One layer takes 4 + 4 operators in each micro-batch, its ends 2 + 1 more: 11."""
    model = small_model(1, 1, 20)
    assert sum(len(block.forward) + len(block.backward) for block in model.blocks(Policy())) == 11
    found = {size: short_model(model, size)[0].layout.num_micro_batches for size in (65, 66, 76, 77, 197)}
    assert found == {65: 5, 66: 6, 76: 6, 77: 7, 197: 17}
    assert short_model(model, 198) == (model,)


@pytest.mark.parametrize("num_micro_batches", [8, 20])
def test_short_steps_are_carried_on(num_micro_batches):
    """On one stage every micro-batch takes the same time, so 5 and 7 of them tell the whole step."""
    model = small_model(num_micro_batches=num_micro_batches)
    short_models = short_model(model)
    assert [short.layout.num_micro_batches for short in short_models] == [5, 7]
    found = evaluate_short(PlanProblem(model, PLENTY, PLENTY, 8), Policy(), short_models)
    assert found.step_time_ns == model.simulate(Policy()).step_time_ns


@pytest.mark.parametrize("num_stages", [4, 8])
def test_a_slow_stage_shows_however_late_it_slows_down_the_others(num_stages, monkeypatch):
    """Only the first stage runs something again, so the last one works off what it has in store for long."""
    monkeypatch.setattr(mindswap.planner.evaluate, "MAX_OPERATORS", 1)
    model = small_model(2 * num_stages, num_stages, 60)
    policy = Policy(True, select_recompute=(OpRecompute(r"attn\.exp", Layers((0,))),))
    problem = PlanProblem(model, PLENTY, PLENTY, 8)
    full_ns = model.simulate(policy).step_time_ns
    assert abs(evaluate_short(problem, policy, short_model(model)).step_time_ns - full_ns) > full_ns // 100
    assert evaluate(problem, policy).step_time_ns == full_ns
