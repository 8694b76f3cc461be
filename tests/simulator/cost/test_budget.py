"""The one meaning of "fits"."""

from dataclasses import replace

import pytest

from mindswap.features.plan.report import _row
from mindswap.planner.problem import Compared
from mindswap.report.simulation_text import describe_budget
from mindswap.simulator.cost.budget import Fit, MemoryBudget, budget_of_device
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.cost.hardware import SET_BY_USER

GIB = 2**30
BUDGET = MemoryBudget(58 * GIB, margin_permille=50)  # a plan uses 55.1 GiB


@pytest.mark.parametrize(
    ("peak_gib", "fit", "words"),
    [
        (50.0, Fit.YES, "fits in 58.0 GiB with 8.0 GiB to spare"),
        (56.8, Fit.IN_MARGIN, "fits in 58.0 GiB with 1.2 GiB to spare, 1.7 GiB less than the margin of 5 %"),
        (58.0, Fit.IN_MARGIN, "fits in 58.0 GiB with 0 B to spare, 2.9 GiB less than the margin of 5 %"),
        (60.5, Fit.NO, "does NOT fit, 2.5 GiB more than 58.0 GiB"),
    ],
)
def test_simulations_plans_comparisons_and_dry_runs_say_the_same(peak_gib, fit, words):
    peak_bytes = int(peak_gib * GIB)
    assert BUDGET.fit(peak_bytes) is fit and BUDGET.fits(peak_bytes) == (fit is not Fit.NO)
    assert (
        BUDGET.describe(peak_bytes) == words == describe_budget(peak_bytes, BUDGET.usable_bytes, BUDGET.margin_permille)
    )
    in_plan = Compared("your file", 1, peak_bytes, fits=peak_bytes <= BUDGET.planned_bytes)
    assert _row(in_plan, 1, 1.0, BUDGET)[-1] == fit.value


def test_memory_that_the_user_names_has_no_margin_unless_that_is_named_too():
    device = load_device("atlas_800t_a2")
    assert budget_of_device(device).margin_permille == device.margin_permille > 0
    named = replace(device, sources={**device.sources, "usable_memory": SET_BY_USER})
    assert budget_of_device(named).margin_permille == 0
    both = replace(named, sources={**named.sources, "margin": SET_BY_USER})
    assert budget_of_device(both).margin_permille == device.margin_permille


def test_a_policy_that_only_the_host_memory_excludes_does_not_fit():
    assert _row(Compared("x", 1, 50 * GIB, fits=False), 1, 1.0, BUDGET)[-1] == "no"
