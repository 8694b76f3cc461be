"""The planner of an adaptive run: one answer for a configuration, a budget, and what was measured so far.

`planner_child` starts it in a process of its own.
"""

import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mindswap.api.loaded_step import LoadedStep
from mindswap.api.plan import compact, planned_text, problem_of
from mindswap.api.step import load_step
from mindswap.config.source import load_document
from mindswap.config.step import is_on_cpu
from mindswap.errors import MindswapError
from mindswap.graph.cache import from_plain, to_plain
from mindswap.planner.evaluate import evaluate
from mindswap.planner.planner import Planner as Solver
from mindswap.planner.problem import Plan as FoundPlan
from mindswap.planner.problem import PlanProblem
from mindswap.policy.model import NO_LAYERS, Policy
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, read_cost_settings
from mindswap.simulator.cost.hardware import Device, Link, Network, with_fragments
from mindswap.simulator.cost.table import CostTable
from mindswap.training.adaptive.model import CLASSES, Corrections, NothingFits, TrainingPlan

Way = TypeVar("Way", Link, Network)


def plan_training(config_path: Path, budget_bytes: int, corrections: Corrections) -> TrainingPlan | NothingFits:
    """The fastest plan for a MindFormers YAML within a budget of device memory for each card.

    Raises:
        MindswapError: the step cannot be captured, or the plan not be written.
    """
    loaded = corrected_step(load_step(str(config_path), _device(config_path)), corrections).with_swap()
    offset = corrections.static_offset_bytes
    problem = problem_of(loaded, max(budget_bytes - offset, 1))
    # Operators that only the stand-ins of a CPU have cannot be named in a configuration.
    found = Solver(loaded.model, known=loaded.known_layers).plan(problem)
    if not found.fits:
        # Within the memory of the device, it is the host's that is too small.
        smallest_bytes = with_fragments(loaded.device, found.smallest_budget_bytes) + offset
        return NothingFits(smallest_bytes if found.peak_bytes > problem.budget_bytes else None)
    found = replace(
        compact(loaded, found),
        budget_bytes=budget_bytes,
        stage_peak_bytes=tuple(peak + offset for peak in found.stage_peak_bytes),
    )
    return TrainingPlan(
        _key(found.policy),
        planned_text(loaded, found, str(config_path)),
        budget_bytes,
        found.peak_bytes,
        found.step_time_ns,
        _exposed_copy_ns(problem, found),
        corrections,
    )


def corrected_device(device: Device, corrections: Corrections) -> Device:
    """The device as the measurements show it: all but the links to the host at one speed, those at another."""
    speed, link = corrections.compute_permille, corrections.link_permille

    def at(permille: int, old: Way) -> Way:
        bandwidth = old.bandwidth_bytes_per_s * permille // 1000
        return replace(old, bandwidth_bytes_per_s=bandwidth, latency_ns=old.latency_ns * 1000 // permille)

    def share(old: int) -> int:
        return max(old * speed // 1000, 1)

    return replace(
        device,
        compute_permille=share(device.compute_permille),
        weight_gradient_permille=share(device.weight_gradient_permille),
        attention_permille=share(device.attention_permille),
        attention_grad_permille=share(device.attention_grad_permille),
        memory_permille=share(device.memory_permille),
        cache_bandwidth_bytes_per_s=device.cache_bandwidth_bytes_per_s * speed // 1000,
        vector_rates={kind: rate * speed // 1000 for kind, rate in device.vector_rates.items()},
        op_latency_ns={kind: ns * 1000 // speed for kind, ns in device.op_latency_ns.items()},
        offload=at(link, device.offload),
        prefetch=at(link, device.prefetch),
        host_bandwidth_bytes_per_s=device.host_bandwidth_bytes_per_s * link // 1000,
        intranode=at(speed, device.intranode),
        internode=at(speed, device.internode),
    )


def _device(config_path: Path) -> str | None:
    """Device of a configuration that names none; None where it names one."""
    document = load_document(str(config_path))
    if read_cost_settings(document).device is not None:
        return None
    return "cpu" if is_on_cpu(document) else DEFAULT_DEVICE


def corrected_step(loaded: LoadedStep, corrections: Corrections) -> LoadedStep:
    """The step at the speed that was measured; its weights stay as they were captured."""
    if corrections.compute_permille == corrections.link_permille == 1000:
        return loaded
    device = corrected_device(loaded.device, corrections)
    measured = {key: ns * 1000 // corrections.compute_permille for key, ns in loaded.model.costs.measured.items()}
    return replace(loaded, model=loaded.model.remade(costs=CostTable(device, measured)))


def _key(policy: Policy) -> str:
    """Says what the policy does, in short."""
    does_swap = policy.default_prefetch is not None or policy.layer_swap or policy.op_swap
    does_recompute = policy.layer_recompute != NO_LAYERS or policy.select_recompute
    name = "-".join(["swap"] * bool(does_swap) + ["recompute"] * bool(does_recompute)) or "keep-all"
    return f"{name}-{hashlib.sha256(repr(policy).encode()).hexdigest()[:6]}"


def _exposed_copy_ns(problem: PlanProblem, found: FoundPlan) -> int:
    """Time in which copies keep the computation waiting, of the mean stage, carried on to all micro-batches."""
    step = evaluate(problem, found.policy).step
    exposed = step.timeline.exposed_copy_ns * found.step_time_ns // step.step_time_ns
    return exposed // len(found.stage_peak_bytes)


def _main() -> int:
    """The child: what was asked is the only word, the answer is JSON."""
    config, budget_bytes, corrections = json.loads(sys.argv[1])
    try:
        answer = plan_training(Path(config), budget_bytes, from_plain(corrections, CLASSES))
    except MindswapError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps(to_plain(answer)))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    sys.exit(_main())
