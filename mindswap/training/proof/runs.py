"""The runs of `mindswap prove`, one after the other, and what their profile says of the device."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mindswap.config.source import load_document
from mindswap.files import write_new
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, read_cost_settings
from mindswap.training.proof.children import ask, read_effect, read_fits, read_measured, train
from mindswap.training.proof.model import MeasuredRun, Proof, Variant, typical_ns
from mindswap.training.proof.proving import ProofRequest, simulate
from mindswap.units import format_count, format_time


def run_variants(bench: ProofRequest, proof: Proof) -> Iterator[Proof]:
    """Run one variant after the other, then calibrate; gives the proof as it stands after each step."""
    yield proof
    for index, variant in enumerate(proof.variants):
        if variant.skipped:
            continue
        before, behind = proof.variants[:index], proof.variants[index + 1 :]
        measured = _run(bench, proof, variant)
        variant = replace(variant, measured=measured)
        proof = replace(proof, variants=(*before, variant, *behind))
        yield proof
        if variant.name != "off":
            bench.say(f"{variant.name}: compiled graph and log lines")
            words = ["verify", "--json", variant.config, "--log", str(bench.folder / variant.name / "logs")]
            variant = replace(variant, effect=read_effect(ask(words)))
            proof = replace(proof, variants=(*before, variant, *behind))
            yield proof
        if measured.exit_code and not measured.is_out_of_memory:
            # What keeps one run from training keeps the others, too: do not wait for it again.
            rest = (replace(other, skipped=f"{variant.name} failed") for other in behind)
            yield replace(proof, variants=(*before, variant, *rest))
            return
    yield calibrated(bench, proof)


def _run(bench: ProofRequest, proof: Proof, variant: Variant) -> MeasuredRun:
    workers = format_count(proof.num_workers, "worker")
    bench.say(f"{variant.name}: {variant.title}: {proof.num_steps} steps, {workers}")
    folder = bench.folder / variant.name
    folder.mkdir()
    begin_s = time.monotonic()
    code = train(Path(variant.config), folder, proof.num_workers, bench.say)
    measured = read_measured(folder, code, time.monotonic() - begin_s)
    step = typical_ns(measured, proof.is_profiled)
    losses = [entry.loss for entry in measured.workers[-1].steps] if measured.workers else []
    if measured.is_out_of_memory:
        outcome = "out of device memory"
    elif code:
        outcome = f"failed, exit code {code}: {measured.last_error or f'see {variant.name}/logs'}"
    else:
        outcome = f"{measured.wall_s:.0f} s; step {format_time(step) if step else 'not timed'}"
        outcome += f", loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else ""
    bench.say(f"    {outcome}")
    return measured


def calibrated(bench: ProofRequest, proof: Proof) -> Proof:
    """The simulations again, with the figures that the profile of a run gives; most of all of one that copies."""
    found = {variant.name: variant.measured.profile for variant in proof.variants if variant.measured is not None}
    profile = next((found[name] for name in ("plan", "yaml", "off") if found.get(name) is not None), None)
    if profile is None:
        reason = "no profile" if not proof.is_profiled else "no profile of a device: a CPU has no kernels to fit"
        return replace(proof, calibration_problem=reason)
    bench.say("calibrating from the profile, simulating again")
    file = bench.folder / "device.yaml"
    configured = read_cost_settings(load_document(str(bench.file("yaml")))).device or DEFAULT_DEVICE
    device = bench.device_words[1] if bench.device_words[:1] == ("--device",) else configured
    answer = ask(["calibrate", profile, "-o", str(file), "--device", device, "--json"])
    if answer.data is not None:
        write_new(bench.folder / "calibration.json", json.dumps(answer.data, indent=1) + "\n")
        notes = tuple(map(str, answer.data["notes"]))
        proof = replace(proof, calibration=read_fits(answer.data), calibration_notes=notes)
    if answer.exit_code or answer.data is None:
        return replace(proof, calibration_problem=answer.error or "mindswap calibrate failed")
    variants = tuple(
        replace(variant, calibrated=simulate(bench, variant.name, ("--device", str(file)))[1])
        if variant.simulated is not None
        else variant
        for variant in proof.variants
    )
    return replace(proof, variants=variants)
