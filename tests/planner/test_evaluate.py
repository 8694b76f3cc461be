"""A policy on the whole step: every stage has to fit, and short steps are carried on to all micro-batches."""

from dataclasses import replace

import pytest

from mindswap.planner.evaluate import evaluate, evaluate_short, short_model
from mindswap.planner.problem import PlanProblem
from mindswap.policy.model import Policy
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


@pytest.mark.parametrize("num_micro_batches", [8, 20])
def test_short_steps_are_carried_on(num_micro_batches):
    """On one stage every micro-batch takes the same time, so 2 and 4 of them tell the whole step."""
    model = small_model(num_micro_batches=num_micro_batches)
    shorts = short_model(model)
    assert [short.layout.num_micro_batches for short in shorts] == [2, 4]
    found = evaluate_short(PlanProblem(model, PLENTY, PLENTY, 8), Policy(), shorts)
    assert found.step_time_ns == model.simulate(Policy()).step_time_ns
