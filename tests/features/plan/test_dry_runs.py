"""Plans that are dry run: the budget of the next is corrected by what the backend needed more."""

from dataclasses import dataclass

import pytest

from mindswap.errors import LaunchError
from mindswap.features.dryrun.stage_runs import StageRun, stage_run
from mindswap.features.plan import dry_runs as plan_dry_run
from tests.features.dryrun.test_stage_runs import model


@dataclass(frozen=True)
class FakePlan:
    """A planner that fills its budget to the last byte, down to 50."""

    peak_bytes: int
    step_time_ns: int = 1_500_000

    @property
    def fits(self):
        return self.peak_bytes >= 50


@dataclass(frozen=True)
class FakeReport:
    peak_bytes: int
    budget_bytes: int

    @property
    def fits(self):
        return self.peak_bytes <= self.budget_bytes


@pytest.mark.parametrize(
    ("real", "asked", "fits"),
    [
        (lambda planned: planned, [100], True),
        (lambda planned: planned + 20, [100, 80], True),  # always 20 more: 100 - 20
        # a quarter more: 125 is 25 too much; then 75, of which 94 fit
        (lambda planned: planned * 5 // 4, [100, 75], True),
        # 40 more, then 60 more: 60, 40 is less than the least there is
        (lambda planned: 140 if planned == 100 else planned + 60, [100, 60, 40], False),
        # 10 more, 12, 14, ...: 90 -> 102, 88 -> 102, and three times is all
        (lambda planned: planned + {100: 10, 90: 12, 88: 14}[planned], [100, 90, 88], False),
    ],
)
def test_the_budget_is_corrected_by_the_difference(monkeypatch, real, asked, fits):
    def dry_run(plan, budget_bytes, report_status):
        return FakeReport(real(plan.peak_bytes), budget_bytes)

    monkeypatch.setattr(plan_dry_run, "dry_run_plan", dry_run)
    attempts = plan_dry_run.plan_with_dry_runs(100, FakePlan)
    assert [attempt.requested_bytes for attempt in attempts] == asked
    assert attempts[-1].fits == fits
    assert not any(attempt.fits for attempt in attempts[:-1])


def test_a_later_plan_on_which_the_backend_fails_ends_it_and_the_first_ones_are_shown(monkeypatch):
    def dry_run(plan, budget_bytes, report_status):
        if plan.peak_bytes < 100:
            raise LaunchError("dry run of rank 0: RuntimeError\n    log:     there")
        return ShownReport(120, budget_bytes)

    monkeypatch.setattr(plan_dry_run, "dry_run_plan", dry_run)
    attempts = plan_dry_run.plan_with_dry_runs(100, FakePlan)
    text = plan_dry_run.format_attempts(attempts)
    assert text.endswith("no plan: dry run of rank 0: RuntimeError\n    log:     there") and text.count("NO") == 2
    assert [one["failure"] is None for one in plan_dry_run.attempts_to_json([attempts[-1]])] == [False]
    with pytest.raises(LaunchError, match="RuntimeError"):
        plan_dry_run.plan_with_dry_runs(90, FakePlan)


@dataclass(frozen=True)
class ShownReport(FakeReport):
    used_peak_bytes: int = 0
    actual_peak_bytes: int = 0
    notes: tuple[str, ...] = ()
    stages: tuple[StageRun, ...] = ()


def test_a_plan_that_does_not_fit_says_so():
    plan, report = FakePlan(60), ShownReport(70, 65)
    attempts = [plan_dry_run.DryRunPlan(65, plan, report)]
    assert plan_dry_run.format_attempts(attempts).endswith(
        "no plan fits on the backend after 1 of 3\n    fix: more memory"
    )
    _, header, _, row, *_ = plan_dry_run.format_attempts(attempts).splitlines()
    assert "step time" in header and "1.50 ms" in row
    measured = ShownReport(70, 65, stages=(stage_run(0, 2, {2: model(2)}),))
    shown = plan_dry_run.format_attempts([plan_dry_run.DryRunPlan(65, plan, measured)])
    assert "\nrank 0: exact: all 2 layers\n" in shown
    nothing = plan_dry_run.DryRunPlan(55, FakePlan(40), None)
    assert "nothing fits into the budget\n    fix: more memory" in plan_dry_run.format_attempts([*attempts, nothing])
    assert "fix:" not in plan_dry_run.format_attempts([plan_dry_run.DryRunPlan(65, plan, ShownReport(65, 65))])
