"""Plans of pipeline stages of MindFormers 2.x: which may swap, and what a dry run changes."""

import re
from dataclasses import replace

import pytest

from mindswap.config.parse import parse_document
from mindswap.errors import PlanError
from mindswap.features.dryrun.sharded_rank import ShardedRank, Shards
from mindswap.features.plan.pynative import (
    NO_SWAP_NOTE,
    UPSTREAM_STAGES_NOTE,
    allow_for_stages,
    no_swap_note,
    with_swappable_stages,
)
from mindswap.features.plan.states_planner import StatesPlanner
from mindswap.features.plan.step_planner import StepPlanner
from mindswap.features.plan.trainer_plans import (
    TrainerAttempt,
    format_trainer_attempts,
    lower_stages,
    trainer_attempts_to_json,
)
from mindswap.features.simulate import LoadedStep
from mindswap.planner.problem import Allow, PlanProblem
from mindswap.planner.staged_plan import plan_staged
from mindswap.policy.model import Policy
from mindswap.simulator.staged_step import StagedStepModel
from tests.features.dryrun.test_trainer_report import REPORT
from tests.simulator.test_staged_step import KEEP, stage

BOTH = Allow(swap=True, recompute=True)


def document(parallelism, engine="upstream"):
    return parse_document(
        f"training: {{}}\nmindswap: {{swap_engine: {engine}}}\nparallelism: {{{parallelism}}}\n", "two.yaml"
    )


def staged_step(parallelism, engine="upstream"):
    model = StagedStepModel(
        [stage(0, (1, 1), 8, engine == "mindswap", 2), stage(4, (0, 0), 8, engine == "mindswap", 2)]
    )
    return LoadedStep(document(parallelism, engine), Policy(is_swap_enabled=True), model, None, None)


@pytest.mark.parametrize(
    ("parallelism", "engine", "note"),
    [
        ("pipeline_parallel: 1, pipeline_parallel_interleave_num: 2", "upstream", ""),
        ("pipeline_parallel: 2", "mindswap", ""),
        ("pipeline_parallel: 2", "upstream", UPSTREAM_STAGES_NOTE),
        ("pipeline_parallel: 2, pipeline_parallel_interleave_num: 2", "mindswap", NO_SWAP_NOTE),
    ],
)
def test_which_stages_may_swap(parallelism, engine, note):
    file = document(parallelism, engine)
    assert no_swap_note(file) == note
    assert allow_for_stages(file, BOTH) == replace(BOTH, swap=not note)
    if note:
        with pytest.raises(
            PlanError, match=r"two\.yaml:3:\d+: parallelism\.pipeline_parallel\w*: no swap: .*\n.*\n.*fix"
        ):
            allow_for_stages(file, Allow(swap=True, recompute=False))
    assert no_swap_note(with_swappable_stages(file, BOTH)) == (note if note == NO_SWAP_NOTE else "")


def test_files_of_mindformers_1_9_may_use_all():
    file = parse_document("runner_config: {}\nparallel_config: {pipeline_stage: 2}\n", "two.yaml")
    assert allow_for_stages(file, BOTH) == BOTH


@pytest.mark.parametrize("planner_type", [StepPlanner, StatesPlanner])
def test_each_planner_keeps_to_it_and_says_so(planner_type):
    """The command line is one of its callers; `make_plan` and searches for strategies are others."""
    planner = planner_type(staged_step("pipeline_parallel: 2"))
    assert planner.notes == (UPSTREAM_STAGES_NOTE,)
    kept_bytes = planner.step.model.simulate(KEEP).peak_bytes
    plan = planner.plan(kept_bytes - (30 << 20)).plan
    assert plan.fits and not plan.policy.layer_swap and not plan.policy.op_swap
    assert planner_type(staged_step("pipeline_parallel: 2", "mindswap")).notes == ()


def test_only_stages_that_do_not_fit_get_less():
    """Budget 100. Stage 0 needs 110 where 97 were simulated, stage 1 needs 99 where 98 were."""
    first = lower_stages([], 100, [110, 99], [97, 98])
    assert first == [13, 0]
    second = lower_stages(first, 100, [101, 99], [87, 98])
    assert second == [14, 0]
    assert lower_stages(second, 100, [101, 99], [100, 98]) == [15, 0]  # always less than before


def test_each_attempt_shows_the_budget_of_a_stage_that_got_less():
    planner = StatesPlanner(staged_step("pipeline_parallel: 2", "mindswap"))
    less_bytes = (30 << 20, 0)
    plans = planner.plan(1 << 30), planner.plan(1 << 30, less_bytes=less_bytes)
    attempts = [
        TrainerAttempt(1 << 30, 1 << 30, plans[0], REPORT, less_bytes=(0, 0)),
        TrainerAttempt(1 << 30, 1 << 30, plans[1], REPORT, less_bytes=less_bytes),
    ]
    rows = [re.split(r" {2,}", line.strip()) for line in format_trainer_attempts(attempts).splitlines()]
    assert [row[0] for row in rows if row[-1] == "yes"] == ["1024 MiB", "1024 MiB; stage 0: 994 MiB"]
    data = trainer_attempts_to_json(attempts)
    assert [attempt["stage_asked_bytes"] for attempt in data] == [[], [994 << 20, 1 << 30]]


@pytest.mark.parametrize("rank_share", [0.5, 2])
def test_a_rank_of_the_training_is_shown_also_where_one_with_everything_does_not_fit(rank_share):
    plan = StatesPlanner(staged_step("pipeline_parallel: 2", "mindswap")).plan(1 << 30)
    used_bytes = REPORT.step.used_peak_bytes
    shards = Shards(num_cards=8, dense=8, experts=8, expert_parallel=1, is_resharded=True)
    rank = ShardedRank(shards, 1 << 20, 2 << 20, 3 << 20, 4 << 20, int(rank_share * used_bytes))
    dry_run = replace(REPORT, rank=rank)
    fits, fits_not = (
        format_trainer_attempts([TrainerAttempt(1 << 30, budget_bytes, plan, dry_run)])
        for budget_bytes in (used_bytes, used_bytes - 1)
    )
    assert "a rank of 8 cards with FSDP over 8 has" in fits and "a rank of 8 cards with FSDP over 8 has" in fits_not
    assert "no plan fits" in fits_not and "no plan fits" not in fits
    assert ("a rank of the training needs less, see below" in fits_not) == (rank_share < 1)


def test_a_stage_with_less_is_planned_alone():
    stages = stage(0, (1, 1), 8, True, 2), stage(4, (0, 0), 8, True, 2)
    problem = PlanProblem(StagedStepModel(stages), StagedStepModel(stages).simulate(KEEP).peak_bytes, 1 << 40, 8, BOTH)
    less_bytes = 30 << 20
    free, lowered = plan_staged(problem, stages), plan_staged(problem, stages, less_bytes=[less_bytes, 0])
    assert free.fits and lowered.fits
    assert lowered.stage_peak_bytes[0] <= problem.budget_bytes - less_bytes < free.stage_peak_bytes[0]
    assert lowered.stage_peak_bytes[1] == free.stage_peak_bytes[1]
