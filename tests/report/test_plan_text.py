from mindswap.planner.result import Plan
from mindswap.policy.model import Policy
from mindswap.report.plan_text import format_plan

GIB = 2**30


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
