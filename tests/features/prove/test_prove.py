"""The plan of a proof, where `mindswap plan` answers as it is told."""

from dataclasses import replace
from pathlib import Path

from mindswap.features.prove import simulations
from mindswap.features.prove.proof import Proof, Simulated
from mindswap.features.prove.request import ProofRequest
from mindswap.runtime.short_run import RunOptions
from mindswap.system.children import Answer

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"
OFF = Simulated(100, 1000, 0, 0, 0)
STEP = {
    "device": "a card", "step_time_ns": 110, "peak_bytes": 900, "terms": [],
    "stages": [dict.fromkeys(["link_out_use", "link_in_use", "exposed_copy_out_ns", "exposed_copy_in_ns",
                              "copied_out_bytes", "copied_in_bytes"], 0)],
}  # fmt: skip


def planned(monkeypatch, tmp_path, answers, budget_bytes=None):
    """The run of a plan where `mindswap plan` answers by its budget, and all budgets that were asked for."""
    asked = []

    def ask(words):
        if words[0] == "simulate":
            return Answer(0, STEP, "")
        asked.append(int(words[words.index("--memory") + 1].removesuffix("B")))
        return Answer(1, answers[asked[-1]], "")

    monkeypatch.setattr(simulations, "ask", ask)
    request = ProofRequest(tmp_path, CONFIG, ("plan",), RunOptions(3, 2), budget_bytes, False, (), lambda text: None)
    return simulations.simulate_plan(request, OFF), asked


NO_ROOM = {"ok": False, "status": "infeasible", "smallest_budget_bytes": 900}


def test_where_80_percent_are_too_little_the_plan_is_for_half_way_to_the_least(monkeypatch, tmp_path):
    fits = {"ok": True, "status": "feasible", "smallest_budget_bytes": 900}
    variant, asked = planned(monkeypatch, tmp_path, {800: NO_ROOM, 950: fits})
    assert (asked, variant.budget_bytes, variant.skipped) == ([800, 950], 950, "")
    assert variant.simulated is not None and variant.simulated.peak_bytes == 900


def test_a_plan_that_does_not_fit_or_is_refused_by_the_compiler_does_not_run(monkeypatch, tmp_path):
    variant, _ = planned(monkeypatch, tmp_path, {800: NO_ROOM}, 800)
    assert (variant.skipped, variant.simulated) == ("nothing fits into 800 B; the minimum found is 900 B", None)
    refused = {"ok": False, "status": "feasible", "smallest_budget_bytes": 900, "verdict": "the graph does not"}
    variant, _ = planned(monkeypatch, tmp_path, {800: refused})
    assert (variant.skipped, variant.simulated) == ("the graph does not", None)


def test_each_run_has_the_simulation_of_its_own_file(monkeypatch, tmp_path):
    """Without swap 1000 bytes, as the configuration asks 900; the device is that of the command line."""
    peaks, seen = {"off": 1000, "yaml": 900}, []

    def ask(words):
        seen.append(words)
        return Answer(0, {**STEP, "peak_bytes": peaks[Path(words[2]).stem]}, "")

    monkeypatch.setattr(simulations, "ask", ask)
    options, device = RunOptions(3, 2), ("--device", "a")
    request = ProofRequest(tmp_path, CONFIG, ("off", "yaml"), options, None, False, device, lambda text: None)
    proof = simulations.simulate_all(request, Proof(str(CONFIG), "CPU", "", 2, 3))
    assert [(run.name, run.simulated.peak_bytes) for run in proof.variants] == [("off", 1000), ("yaml", 900)]
    assert proof == replace(Proof(str(CONFIG), "CPU", "a card", 2, 3), variants=proof.variants)
    assert seen == [["simulate", "--json", str(tmp_path / f"{name}.yaml"), *device] for name in peaks]
