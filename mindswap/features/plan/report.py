"""Report of a plan as text and JSON. All times and sizes are simulated, as the reports state."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mindswap.config.device_memory import PATH, host_bytes_for
from mindswap.planner.problem import FULL, YOURS, Compared, Plan
from mindswap.policy.wording import format_layers as _layers
from mindswap.report.tables import attributes, format_table
from mindswap.simulator.cost.budget import Fit, MemoryBudget
from mindswap.units import UNITS, format_bytes, format_count, format_time

HEADER = ("simulated", "step time", "tokens/s/card", "vs. keep all", "peak memory", "fits")
NUM_HOLDERS = 6


def format_plan(
    plan: Plan,
    device_title: str,
    tokens_per_card: float,
    budget_source: str = "",
    memory: MemoryBudget | None = None,
    is_verbose: bool = False,
    states: str = "",
) -> str:
    """Format a plan and the policies that it is compared with.

    Args:
        plan: the plan.
        device_title: name of the simulated device.
        tokens_per_card: tokens of a step per card.
        budget_source: origin of the budget; "" if the user gave it.
        memory: memory budget with its safety margin, for peaks without fragmentation; None without a margin.
        is_verbose: also show the number of simulations.
        states: placement of the optimizer states in words; "" for none.
    """
    budget = format_bytes(plan.budget_bytes)
    lines = [f"plan for {budget} per card on {device_title}; all figures are simulated"]
    lines += [f"budget: {budget_source}", ""] if budget_source else [""]
    compared = {each.name: each for each in plan.compared}
    if file_policy := compared.get(YOURS):
        fit = _fit(file_policy, memory)
        verdict = "fits" if fit is Fit.YES else "does not fit"
        if memory is not None and fit is Fit.IN_MARGIN:
            verdict = memory.describe(file_policy.peak_bytes)
        figures = f"{format_time(file_policy.step_time_ns)}, {format_bytes(file_policy.peak_bytes)}"
        lines.append(f"your file    {figures}, {verdict}")
    if plan.fits:
        lines += [*_figure_lines(plan, compared.get(FULL)), *([f"optimizer    {states}"] if states else [])]
        lines += [*_search_lines(plan, is_verbose), "", *_policy_lines(plan)]
    else:
        lines += [*_nothing_fits_lines(plan, budget_source), *_search_lines(plan, is_verbose)]
    unique_rows: dict[tuple[str, ...], tuple[str, ...]] = {}  # by figures: policies with equal figures share a row
    for each in plan.compared:
        if plan.fits and each.name == FULL and each.step_time_ns > plan.step_time_ns:
            continue  # the restriction costs nothing
        row = _row(each, plan.unconstrained_ns, tokens_per_card, memory)
        unique_rows.setdefault(row[1:], row)
    rows = list(unique_rows.values())
    if plan.fits:
        this_plan = Compared("this plan", plan.step_time_ns, plan.peak_bytes, True)
        rows.append(_row(this_plan, plan.unconstrained_ns, tokens_per_card, memory))
    return "\n".join([*lines, "", format_table(HEADER, rows)])


def _figure_lines(plan: Plan, full: Compared | None) -> Iterator[str]:
    """Format time and memory of a feasible plan; `full` is the unrestricted plan, if this one is a simple one."""
    yield f"step time    {format_time(plan.step_time_ns)}, {_percent(plan.slowdown)} over keeping every activation"
    indent = " " * 13
    if plan.lower_bound_ns is not None and plan.gap is not None:
        bound = format_time(plan.lower_bound_ns)
        yield f"{indent}{_percent(plan.gap)} over the lower bound: no policy is faster than {bound} in this memory"
    if full is not None and full.fits:
        cost = _percent(plan.step_time_ns / full.step_time_ns - 1)
        is_slower = plan.step_time_ns > full.step_time_ns
        yield (
            f"{indent}{cost} over the unrestricted plan"
            if is_slower
            else f"{indent}no slower than the unrestricted plan"
        )
    stages = ", ".join(format_bytes(size, "GiB") for size in plan.stage_peak_bytes)
    of_stages = f"; stages {stages}" if len(plan.stage_peak_bytes) > 1 else ""
    yield f"peak memory  {format_bytes(plan.peak_bytes)} of {format_bytes(plan.budget_bytes)}{of_stages}"
    if plan.is_coupled:  # the specification excludes this combination, but the backend compiles it
        yield f"{indent}swaps what recomputed operators use: MindSpore 2.9.0 does it, against the specification"
    yield f"host memory  {format_bytes(plan.host_bytes)} per node"


def _search_lines(plan: Plan, is_verbose: bool) -> Iterator[str]:
    number = format_count(plan.num_evaluations, "simulation")
    if plan.is_interrupted:
        better = "a faster plan" if plan.fits else "a plan that fits"
        yield f"search       interrupted after {number}: a longer search may find {better}"
    elif is_verbose:
        yield f"search       {number}"


def _nothing_fits_lines(plan: Plan, budget_source: str) -> list[str]:
    needed, host = format_bytes(plan.smallest_budget_bytes), format_bytes(plan.host_bytes)
    lines = [f"nothing fits; the smallest plan found needs {needed} per card, and {host} of host memory per node"]
    if plan.lower_bound_ns is None and plan.least_budget_bytes > plan.budget_bytes:
        lines.append(f"no policy can fit: every one needs {format_bytes(plan.least_budget_bytes)} or more per card")
    lines.append("    memory of the card at the peak:")
    lines += [f"    {format_bytes(size):>10}  {name}" for name, size in plan.holders[:NUM_HOLDERS]]
    fixes = [f"--memory {_round_up(plan.smallest_budget_bytes)}"] * (plan.smallest_budget_bytes > plan.budget_bytes)
    fixes += [f"--host-memory {_round_up(host_bytes_for(plan.host_bytes))}"] * (
        plan.host_bytes > plan.host_budget_bytes
    )
    fix = " ".join(fixes)
    if fixes and PATH in budget_source and plan.smallest_budget_bytes > plan.budget_bytes:
        fix += f', and {PATH}: "{-(-plan.smallest_budget_bytes // 2**30)}GB" in the file'
    return [*lines, f"    fix: {fix}"]


def plan_to_json(plan: Plan, device: str, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan as plain data for `--json`; `sections` has the policy as in the file."""
    return {
        "simulated": True,
        "device": device,
        "status": "feasible" if plan.fits else "infeasible",
        **attributes(plan, "step_time_ns unconstrained_ns lower_bound_ns slowdown gap budget_bytes peak_bytes"),
        **attributes(plan, "stage_peak_bytes stage_static_bytes"),
        "host_bytes_per_node": plan.host_bytes,
        **attributes(plan, "smallest_budget_bytes least_budget_bytes"),
        "host_budget_bytes_per_node": plan.host_budget_bytes,
        "holders": [{"name": name, "size_bytes": size} for name, size in plan.holders],
        **attributes(plan, "is_coupled num_evaluations is_interrupted"),
        "compared": [attributes(each, "name step_time_ns peak_bytes fits") for each in plan.compared],
        **sections,
    }


def format_sweep(plans: Sequence[Plan], device_title: str, places: Sequence[str], states: str = "") -> str:
    """Format the plans of a sweep as a table.

    Args:
        plans: the plans, least memory first.
        device_title: name of the simulated device.
        places: for each plan where its optimizer states are; a column, unless all are in one place.
        states: why the states are in one place only; "" for none.
    """
    rows = []
    has_places = len(set(places)) > 1
    for number, plan in enumerate(plans):
        policy, gap = plan.policy, "" if plan.gap is None else _percent(plan.gap)
        num_swaps = len(policy.op_swap) + len(policy.layer_swap)
        entries = f"{num_swaps}, {len(policy.select_recompute) + bool(policy.layer_recompute)}"
        figures = (format_bytes(plan.peak_bytes), format_time(plan.step_time_ns), _percent(plan.slowdown))
        rows.append((*figures, gap, entries, *([places[number]] if has_places else [])))
    head = ["peak memory", "step time", "vs. keep all", "above lower bound", "swap entries, recompute entries"]
    lines = [f"simulated on {device_title}", "", format_table([*head, *["optimizer states"] * has_places], rows)]
    if not has_places:
        lines += ["", f"optimizer states {places[0]}" + (f": {states}" if states else " are better with every plan")]
    return "\n".join(lines)


def sweep_to_json(plans: Sequence[Plan], places: Sequence[bool]) -> list[dict[str, Any]]:
    """Return the plans of a sweep as plain data for `--json`.

    Args:
        plans: the plans.
        places: for each plan whether its optimizer states are on the host.
    """
    return [
        {
            "simulated": True,
            **attributes(plan, "peak_bytes step_time_ns slowdown lower_bound_ns is_coupled"),
            "states_on_host": is_on_host,
            **plan.policy.to_config(),
        }
        for plan, is_on_host in zip(plans, places, strict=True)
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _round_up(size_bytes: int) -> str:
    """Format a size for the command line, rounded up to one decimal."""
    unit = "GiB" if size_bytes >= UNITS["GiB"] else "MiB"
    return f"{-(-size_bytes * 10 // UNITS[unit]) / 10:.1f}{unit}"


def _policy_lines(plan: Plan) -> list[str]:
    policy = plan.policy
    lines = [f"swap       {e.pattern}  prefetch {e.prefetch}  {_layers(e.layers)}" for e in policy.op_swap]
    lines += [f"swap       full layers  prefetch {e.prefetch}  {_layers(e.layers)}" for e in policy.layer_swap]
    lines += [f"recompute  {e.pattern}  {_layers(e.layers)}" for e in policy.select_recompute]
    if policy.layer_recompute:
        lines.append(f"recompute  full layers  {_layers(policy.layer_recompute)}")
    if policy.output_recompute:
        lines.append(f"recompute  their outputs, with the layers after them  {_layers(policy.output_recompute)}")
    return lines or ["nothing is swapped and nothing is recomputed: all activations fit"]


def _fit(compared: Compared, memory: MemoryBudget | None) -> Fit:
    """Return whether a policy fits; IN_MARGIN if its peak is inside the safety margin only."""
    if compared.fits:
        return Fit.YES
    return Fit.IN_MARGIN if memory is not None and memory.fit(compared.peak_bytes) is Fit.IN_MARGIN else Fit.NO


def _row(compared: Compared, keep_ns: int, tokens_per_card: float, memory: MemoryBudget | None) -> tuple[str, ...]:
    return (
        compared.name,
        format_time(compared.step_time_ns),
        f"{tokens_per_card * 1e9 / compared.step_time_ns:.0f}",
        f"{100 * (compared.step_time_ns / keep_ns - 1):+.2f} %",
        format_bytes(compared.peak_bytes),
        _fit(compared, memory).value,
    )
