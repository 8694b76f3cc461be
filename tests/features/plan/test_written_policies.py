"""Each row of a plan has the figures that `simulate` shows of the file with that policy."""

from pathlib import Path

import pytest

from mindswap.features.compare import baseline_of
from mindswap.features.plan import make_plan
from mindswap.features.step import Step
from mindswap.planner.problem import YOURS, Allow
from mindswap.planner.simple import MAX_ENTRIES, num_entries
from mindswap.policy.coverage import BASELINES
from tests.planner.test_checked_plans import CONFIGS, recorded_step

O1, POOL = 'memory_optimize_level: "O1"', "mindswap: {fragments: 0.09}"
CASES = [
    pytest.param("qwen2_0_5b", O1, Allow(), marks=pytest.mark.long),
    pytest.param("qwen2_0_5b", O1, Allow(swap=False), marks=pytest.mark.long),
    pytest.param("qwen2_0_5b", POOL, Allow(), marks=pytest.mark.long),
    ("qwen3_small", "", Allow()),
    ("qwen3_small", O1, Allow(swap=False)),
]


def step_with(name: str, setting: str, folder: Path) -> Step:
    """Return a recorded step whose file plans addresses (O1, without swap), or whose device has a pool of blocks."""
    text = CONFIGS[name].read_text()
    if setting == O1:
        text = text.replace('memory_optimize_level: "O0"', O1).replace("swap: True", "swap: False")
    elif setting:
        text += f"\n{setting}\n"
    (folder / "train.yaml").write_text(text)
    step = recorded_step(name, folder / "train.yaml")
    assert (step.model.settings.plans_memory, step.device.leaves_fragments) == (setting == O1, setting == POOL)
    return step


@pytest.mark.parametrize(("name", "setting", "allow"), CASES)
def test_a_plan_shows_what_simulate_shows(name, setting, allow, tmp_path):
    """Qwen2-0.5B has the parallel optimizer and one micro-batch, so it is compiled otherwise without swap."""
    step = step_with(name, setting, tmp_path)
    kept, least = (step.simulate(baseline_of(each, step)) for each in ("none", "full-recompute"))
    for share in (1.0, 0.5):
        budget_bytes = round(least.actual_peak_bytes + (kept.actual_peak_bytes - least.actual_peak_bytes) * share)
        plan = make_plan(step, budget_bytes, allow)
        rows = {row.name: row for row in plan.plan.compared}
        file = step.simulate()
        assert (rows[YOURS].step_time_ns, rows[YOURS].peak_bytes) == (file.step_time_ns, file.actual_peak_bytes)
        for baseline, entry in BASELINES.items():
            if entry.title in rows:
                run, row = step.simulate(baseline_of(baseline, step)), rows[entry.title]
                assert (row.step_time_ns, row.peak_bytes) == (run.step_time_ns, run.actual_peak_bytes), baseline
                assert row.fits == (run.actual_peak_bytes <= budget_bytes)
        assert plan.fits and plan.peak_bytes <= budget_bytes and (plan.plan.gap is None or plan.plan.gap >= 0)
        plan.save(tmp_path / "planned.yaml", overwrite=True)
        written = recorded_step(name, tmp_path / "planned.yaml").simulate()
        assert written.policy.is_swap_enabled == step.is_swap_written(plan.policy)
        assert (plan.step_time_ns, plan.plan.stage_peak_bytes) == (written.step_time_ns, written.actual_peaks_bytes)
        assert (plan.run().step_time_ns, plan.run().actual_peaks_bytes) == (
            plan.step_time_ns,
            written.actual_peaks_bytes,
        )


@pytest.mark.long
def test_a_simple_plan_has_few_entries_where_rows_are_evaluated_as_they_are_written(tmp_path):
    """The unrestricted plan is a row, too, and faster."""
    step = step_with("qwen2_0_5b", O1, tmp_path)
    kept, least = (step.simulate(baseline_of(each, step)).actual_peak_bytes for each in ("none", "full-recompute"))
    plan = make_plan(step, round(least + (kept - least) * 0.3), simple=True)
    assert plan.fits and num_entries(plan.policy) <= MAX_ENTRIES
