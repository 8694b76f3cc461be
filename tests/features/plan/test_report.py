from dataclasses import replace

from mindswap.features.plan.report import format_plan, plan_to_json
from mindswap.planner.problem import YOURS, Compared, Plan
from mindswap.policy.model import Policy

GIB = 2**30


PLAN = Plan(
    fits=True, policy=Policy(), step_time_ns=2 * 10**9, stage_peak_bytes=(53 * GIB,), stage_static_bytes=(8 * GIB,),
    host_bytes=0, budget_bytes=54 * GIB, unconstrained_ns=2 * 10**9, lower_bound_ns=2 * 10**9,
    smallest_budget_bytes=53 * GIB, least_budget_bytes=9 * GIB, host_budget_bytes=2**40, holders=(), num_evaluations=1,
    compared=(
        Compared(YOURS, 3 * 10**9, 58 * GIB, False),
        Compared("keep all", 2 * 10**9, 60 * GIB, False, "none"),
        Compared("select recompute", 2 * 10**9, 60 * GIB, False, "select-recompute"),
        Compared("swap everything", 3 * 10**9, 30 * GIB, True, "swap-everything"),
    ),
)  # fmt: skip


def test_your_file_is_the_first_row_and_rows_that_say_the_same_are_one():
    text = format_plan(PLAN, "card", 4000.0)
    assert "\nyour file    3.00 s, 58.0 GiB, does not fit\nstep time    2.00 s" in text
    table = text.partition("simulated   ")[2].splitlines()[2:]
    assert [" ".join(row.split()) for row in table] == [
        "your file 3.00 s 1333 +50.00 % 58.0 GiB no",
        "keep all 2.00 s 2000 +0.00 % 60.0 GiB no",
        "swap everything 3.00 s 1333 +50.00 % 30.0 GiB yes",
        "this plan 2.00 s 2000 +0.00 % 53.0 GiB yes",
    ]
    assert len(plan_to_json(PLAN, "card", {})["compared"]) == 4  # all of them for machines


def test_a_file_that_is_as_the_common_setting_stands_under_its_own_name():
    own = (replace(PLAN.compared[1], name=YOURS, baseline=""), *PLAN.compared[1:])
    table = format_plan(replace(PLAN, compared=own), "card", 4000.0).partition("simulated   ")[2].splitlines()[2:]
    assert [row.split("  ")[0] for row in table] == ["your file", "swap everything", "this plan"]


def test_that_the_specification_says_otherwise_is_one_sentence():
    plain, coupled = (format_plan(replace(PLAN, is_coupled=is_coupled), "card", 1.0) for is_coupled in (False, True))
    (line,) = set(coupled.splitlines()) - set(plain.splitlines())
    assert "MindSpore 2.9.0" in line and "specification" in line


def fix_of(budget_source: str) -> str:
    """Of a plan for 28.5 GiB where 43.1 GiB is the least, rounded up to 43.2."""
    plan = Plan(
        fits=False, policy=Policy(), step_time_ns=10**9, stage_peak_bytes=(44 * GIB,),
        stage_static_bytes=(8 * GIB,), host_bytes=0, budget_bytes=57 * GIB // 2, unconstrained_ns=10**9,
        lower_bound_ns=None, smallest_budget_bytes=43 * GIB + GIB // 8, least_budget_bytes=43 * GIB,
        host_budget_bytes=2**40, holders=(), compared=(), num_evaluations=1,
    )  # fmt: skip
    (fix,) = [line.strip() for line in format_plan(plan, "card", 1.0, budget_source).splitlines() if "fix:" in line]
    return fix


def test_where_the_file_is_the_limit_more_memory_for_the_plan_alone_would_not_do():
    assert fix_of("") == fix_of("58.0 GiB (device d), no margin") == "fix: --memory 43.2GiB"
    source = "30.0 GiB (context.max_device_memory, a.yaml:1:1), less a margin of 5 %; --margin 0 for none"
    assert fix_of(source) == 'fix: --memory 43.2GiB, and context.max_device_memory: "44GB" in the file'


def bound_line(lower_bound_ns: int) -> str:
    """Of a plan of 1.02 s, where keeping everything takes 1 s."""
    plan = Plan(
        fits=True, policy=Policy(), step_time_ns=1_020_000_000, stage_peak_bytes=(28 * GIB,),
        stage_static_bytes=(8 * GIB,), host_bytes=0, budget_bytes=29 * GIB, unconstrained_ns=10**9,
        lower_bound_ns=lower_bound_ns, smallest_budget_bytes=28 * GIB, least_budget_bytes=9 * GIB,
        host_budget_bytes=2**40, holders=(), compared=(), num_evaluations=1,
    )  # fmt: skip
    (line,) = [line.strip() for line in format_plan(plan, "card", 1.0, "").splitlines() if " % over " in line][1:2]
    return line


def test_the_bound_is_what_is_proven():
    assert bound_line(1_010_000_000) == "0.99 % over the lower bound: no policy is faster than 1.01 s in this memory"
    assert bound_line(990_000_000) == "3.03 % over the lower bound: no policy is faster than 990 ms in this memory"
