"""Planner of an adaptive run, for a configuration, a memory budget and measured corrections.

`planner_in_child` runs this module in a child process.
"""

import hashlib
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from mindswap.config.source import load_document
from mindswap.config.step_settings import is_on_cpu
from mindswap.errors import MindswapError
from mindswap.features.plan import WrittenPolicies, compact, make_problem, plan_within_pool, planned_text
from mindswap.features.simulate import LoadedStep
from mindswap.features.step import load_step
from mindswap.graph.capture_cache import from_plain, to_plain
from mindswap.planner.evaluate import evaluate
from mindswap.planner.planning import Planner as Solver
from mindswap.planner.problem import Plan as FoundPlan
from mindswap.planner.problem import PlanProblem
from mindswap.policy.model import NO_LAYERS, Policy
from mindswap.runtime.attempt.model import CLASSES, Corrections, NothingFits, TrainingPlan
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, read_cost_settings
from mindswap.simulator.cost.hardware import FIGURES, Device, FigureKind, figure_values, with_figures
from mindswap.system.children import hold_lifeline
from mindswap.system.signals import signals_raise


def plan_training(config_path: Path, budget_bytes: int, corrections: Corrections) -> TrainingPlan | NothingFits:
    """Find the fastest plan for a MindFormers YAML within a memory budget.

    Args:
        config_path: the configuration.
        budget_bytes: memory budget per device.
        corrections: measured corrections of the model.

    Returns:
        The plan with predictions, corrections included; or the smallest feasible budget.

    Raises:
        MindswapError: if the step cannot be captured, or the plan cannot be written.
    """
    loaded = corrected_step(load_step(str(config_path), _device(config_path)), corrections).as_compiled_with_swap()
    offset = corrections.static_offset_bytes
    problem = make_problem(loaded, max(budget_bytes - offset, 1))
    # The trees exclude operators of the CPU replacements, which a configuration cannot name.
    solver = Solver(loaded.model, required_trees=loaded.nameable_trees)
    plan = solver.plan(problem)
    written = WrittenPolicies(loaded, problem, max(budget_bytes - offset, 1))
    if written.differs:
        problem, plan, _ = plan_within_pool(written, plan, solver.plan)
    if not plan.fits:
        # If the peak is within the device's budget, host memory is too small.
        smallest_bytes = plan.smallest_budget_bytes + offset
        return NothingFits(smallest_bytes if plan.peak_bytes > written.budget_bytes else None)
    plan = replace(
        compact(loaded, plan),
        budget_bytes=budget_bytes,
        stage_peak_bytes=tuple(peak + offset for peak in plan.stage_peak_bytes),
    )
    return TrainingPlan(
        key=_key(plan.policy),
        yaml_text=planned_text(loaded, plan, str(config_path)),
        budget_bytes=budget_bytes,
        peak_bytes=plan.peak_bytes,
        step_time_ns=plan.step_time_ns,
        exposed_copy_ns=_exposed_copy_ns(problem, plan),
        corrections=corrections,
    )


# Figures of the host links, and figures that are independent of the measured speeds.
_LINKS = ("d2h", "d2h_latency", "h2d", "h2d_latency", "host_bandwidth")
_UNCORRECTED = (
    "memory_bandwidth",
    "margin",
    "fragments",
    "contended_fraction",
    "collective_fraction",
    "internode_fraction",
)


def corrected_device(device: Device, corrections: Corrections) -> Device:
    """Return the device with corrected speeds: one factor for the host links, one for all other figures."""
    values = figure_values(device)
    for name in [name for name in values if name not in _UNCORRECTED]:
        permille = corrections.link_permille if name in _LINKS else corrections.compute_permille
        kind = FIGURES[name].kind
        if kind is FigureKind.TIME:
            values[name] = values[name] * 1000 // permille
        elif kind in (FigureKind.BANDWIDTH, FigureKind.RATE, FigureKind.FRACTION):
            values[name] = max(values[name] * permille // 1000, int(kind is FigureKind.FRACTION))
    return with_figures(device, values, {})


def _device(config_path: Path) -> str | None:
    """Return the default device for a configuration; None if it names a device."""
    document = load_document(str(config_path))
    if read_cost_settings(document).device is not None:
        return None
    return "cpu" if is_on_cpu(document) else DEFAULT_DEVICE


def corrected_step(loaded: LoadedStep, corrections: Corrections) -> LoadedStep:
    """Return the step with corrected speeds."""
    if corrections.compute_permille == corrections.link_permille == 1000:
        return loaded
    device = corrected_device(loaded.device, corrections)
    measured = {key: ns * 1000 // corrections.compute_permille for key, ns in loaded.model.costs.measured.items()}
    return replace(loaded, model=loaded.model.with_costs(CostTable(device, measured)))


def _key(policy: Policy) -> str:
    """Return a readable digest of a policy."""
    does_swap = policy.default_prefetch is not None or policy.layer_swap or policy.op_swap
    does_recompute = policy.layer_recompute != NO_LAYERS or policy.select_recompute
    name = "-".join(["swap"] * bool(does_swap) + ["recompute"] * bool(does_recompute)) or "keep-all"
    return f"{name}-{hashlib.sha256(repr(policy).encode()).hexdigest()[:6]}"


def _exposed_copy_ns(problem: PlanProblem, plan: FoundPlan) -> int:
    """Return the exposed copy time (ns), averaged over stages and scaled to all micro-batches."""
    step = evaluate(problem, plan.policy).step
    exposed = step.timeline.exposed_copy_ns * plan.step_time_ns // step.step_time_ns
    return exposed // len(plan.stage_peak_bytes)


if __name__ == "__main__":  # in the child: the request is the only argument, the result is JSON
    config, requested_bytes, corrections_data = json.loads(sys.argv[1])
    try:
        with signals_raise():
            hold_lifeline(os.environ, signal.SIGTERM)
            answer = to_plain(plan_training(Path(config), requested_bytes, from_plain(corrections_data, CLASSES)))
    except MindswapError as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer))  # noqa: T201 JSON escapes
