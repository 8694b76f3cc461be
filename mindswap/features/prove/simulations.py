"""Simulations of the runs of a proof, by the commands that a user would call."""

from dataclasses import replace
from typing import Any

from mindswap.features.prove.proof import Proof, Simulated, Variant
from mindswap.features.prove.request import TITLES, ProofRequest
from mindswap.features.prove.worker_runs import read_simulated
from mindswap.system.children import ask
from mindswap.units import format_bytes

# Without --memory: percentage of the peak without swap and recompute, so that the plan has to offload something.
DEFAULT_BUDGET_PERCENT = 80


def simulate_all(request: ProofRequest, proof: Proof) -> Proof:
    """Simulate all runs, and make the plan."""
    request.report_status("simulating: swap off")
    title, off = simulate(request, "off")
    variants = []
    for name in request.variants:
        if name == "plan":
            variants.append(simulate_plan(request, off))
            continue
        simulated = off
        if name == "yaml":
            request.report_status("simulating: as the configuration asks")
            simulated = simulate(request, name)[1]
        variants.append(Variant(name, TITLES[name], str(request.file(name)), simulated))
    return replace(proof, device=title, variants=tuple(variants))


def simulate(request: ProofRequest, name: str, device: tuple[str, ...] | None = None) -> tuple[str, Simulated]:
    """Simulate a run; return the title of the device and the simulated figures."""
    words = request.device_words if device is None else device
    data = ask(["simulate", "--json", str(request.file(name)), *words]).require(f"simulating {name}.yaml")
    return data["device"], read_simulated(data)


def simulate_plan(request: ProofRequest, off: Simulated) -> Variant:
    """Plan within the budget; without a requested one, within a budget that needs swap or recompute."""
    budget, file = request.budget_bytes or off.peak_bytes * DEFAULT_BUDGET_PERCENT // 100, request.file("plan")
    answer = _ask_plan(request, budget)
    if answer["status"] == "infeasible" and request.budget_bytes is None:
        budget = (answer["smallest_budget_bytes"] + off.peak_bytes) // 2
        answer = _ask_plan(request, budget)
    if not answer["ok"]:
        smallest = format_bytes(answer["smallest_budget_bytes"])
        reason = answer.get("verdict") or f"nothing fits into {format_bytes(budget)}; the minimum found is {smallest}"
        return Variant("plan", TITLES["plan"], str(file), skipped=reason, budget_bytes=budget)
    simulated = simulate(request, "plan")[1]
    return Variant("plan", f"{TITLES['plan']} for {format_bytes(budget)}", str(file), simulated, budget_bytes=budget)


def _ask_plan(request: ProofRequest, budget_bytes: int) -> Any:
    request.report_status(f"planning for {format_bytes(budget_bytes)}")
    words = ["--memory", f"{budget_bytes}B", "-o", str(request.file("plan")), "--json", *request.device_words]
    return ask(["plan", str(request.file("yaml")), *words]).require("planning")
