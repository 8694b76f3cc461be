"""Compare short measured runs on this machine with their simulation: `mindswap prove`."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mindswap.adapters.mindrecord import write_synthetic_data
from mindswap.config.nodes import Document
from mindswap.config.source import load_document
from mindswap.config.step_settings import is_on_cpu, read_device_target, read_step_settings
from mindswap.errors import LaunchError, StoppedBySignal
from mindswap.features.prove.checks import make_checks
from mindswap.features.prove.page import format_proof_html, proof_to_json
from mindswap.features.prove.proof import MeasuredRun, Proof, Variant
from mindswap.features.prove.request import TITLES, ProofRequest
from mindswap.features.prove.simulations import simulate, simulate_all
from mindswap.features.prove.support_bundle import describe_machine, pack
from mindswap.features.prove.worker_runs import read_measured, run_workers
from mindswap.features.run import cards_missing
from mindswap.files import make_fresh, write_new
from mindswap.policy.equivalence import retained_layers
from mindswap.report.problems import answer_text
from mindswap.rules.checker import check_document, policy_of
from mindswap.rules.machine.software import count_cards
from mindswap.runtime.input_paths import has_dataset
from mindswap.runtime.short_run import SyntheticData, format_config, run_config, switched_off
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, read_cost_settings
from mindswap.system.children import ask
from mindswap.system.process_tree import become_subreaper, stop_descendants
from mindswap.system.signals import signals_raise
from mindswap.units import format_count, format_time

MAX_DEFAULT_WORKERS = 8


class ProveResult(NamedTuple):
    """Result of `prove`."""

    proof: Proof | None  # incomplete if interrupted; None if no run was started
    archive: Path | None  # support bundle; None if no run was started
    exit_code: int  # 0 if no check failed, 1 if one did, 128 + signal number if interrupted


def prove(request: ProofRequest, document: Document, archives_old: bool, begin_s: float) -> ProveResult:
    """Run a configuration, compare it with its simulation, and write a report and an archive into the folder.

    Args:
        request: runs to make, and their output folder.
        document: the configuration, from `load_trainable`.
        archives_old: whether to rename an existing output folder.
        begin_s: start of the command, of `time.monotonic`.

    Returns:
        Proof, archive and exit code.

    Raises:
        LaunchError: if the runs cannot start.
        DataError: if the folder exists, or cannot be created.
    """
    if request.cluster is None:
        _require_cards(document, request.options.num_workers)
    make_fresh(request.folder, archives_old, "-o ANOTHER_FOLDER, or --overwrite")
    become_subreaper()
    code, proof = 1, None
    try:
        with signals_raise():
            proof = _prepare(request, document)
            for state in _run_variants(request, proof):
                proof = state
            code = 0
    except StoppedBySignal as signal:
        request.report_status("interrupted: all workers are stopped")
        code = signal.exit_code
    finally:
        stop_descendants()
    if proof is None:
        request.report_status(f"no run was started; results so far are in {request.folder}")
        return ProveResult(None, None, code)
    proof = replace(proof, is_interrupted=code > 1, wall_s=time.monotonic() - begin_s)
    proof = replace(proof, checks=make_checks(proof))
    answer = answer_text("prove", proof_to_json(proof), proof.is_ok)
    write_new(request.folder / "report.json", answer + "\n", overwrite=True)
    write_new(request.folder / "report.html", format_proof_html(proof), overwrite=True)
    return ProveResult(proof, pack(request.folder), code or int(not proof.is_ok))


def _require_cards(document: Document, num_workers: int) -> None:
    """Fail early, before minutes of simulation, if there are too few devices."""
    if missing := cards_missing(document, []):
        raise LaunchError(missing)
    cards = 0 if is_on_cpu(document) else count_cards()
    if num_workers and 0 < cards < num_workers:
        raise LaunchError(f"--worker-num {num_workers}: this machine has {cards} cards, and a worker needs one")


def _prepare(request: ProofRequest, document: Document) -> Proof:
    """Write configurations and data, and simulate each run.

    Raises:
        MindswapError: if the configuration is wrong, or cannot be simulated.
    """
    policy_of(document, checked := check_document(document))
    if checked.num_layers is None or document.root is None:
        raise AssertionError("a checked file without a number of layers")
    options, num_nodes = request.options, request.cluster.num_nodes if request.cluster else 1
    num_layers = options.num_layers or checked.num_layers
    if num_layers > checked.num_layers:
        raise LaunchError(f"--layers {num_layers}: the model has {checked.num_layers}")
    if not options.num_workers:
        max_workers = min(MAX_DEFAULT_WORKERS, count_cards() or MAX_DEFAULT_WORKERS) * num_nodes
        options = replace(options, num_workers=min(read_step_settings(document).num_cards, max_workers))
    if options.num_workers % num_nodes:
        raise LaunchError(
            f"--nodes {num_nodes}: {format_count(options.num_workers, 'worker')}\n"
            "    allowed: as many on each node\n    fix:     --worker-num"
        )
    notes = []

    def make_data(short: Document) -> SyntheticData | None:
        if has_dataset(short.data()) and not request.wants_synthetic_data:
            return None
        notes.append("The data is random tokens, made for this proof: losses are no measure of the model.")
        request.report_status(f"making data: {options.num_steps} steps of random tokens")
        return write_synthetic_data(request.folder, short, options.num_steps)

    kept = retained_layers(checked.num_layers, num_layers) if num_layers < checked.num_layers else None
    config, changes = run_config(document, checked.num_layers, options, kept, make_data)
    if kept is not None:
        notes.append(
            f"{num_layers} of {checked.num_layers} layers run: each follows the settings of layer "
            f"{', '.join(map(str, kept))} of the full model, in this order."
        )
    header = f"Made by mindswap prove from {request.config}; changed there:\n" + "\n".join(changes)
    write_new(request.file("yaml"), format_config(config, header))
    write_new(request.file("off"), format_config(switched_off(config), header + f"\nrun off: {TITLES['off']}"))
    proof = Proof(
        config=str(request.config),
        target=read_device_target(document),
        device="",
        num_workers=options.num_workers,
        num_steps=options.num_steps,
        is_profiled=options.is_profiled,
        is_deterministic=options.is_deterministic,
        num_layers=num_layers,
        changes=changes,
        notes=tuple(notes),
        environment=describe_machine(),
    )
    return simulate_all(request, proof)


def _run_variants(request: ProofRequest, proof: Proof) -> Iterator[Proof]:
    """Run the variants in sequence, then calibrate; yield the proof after each step."""
    yield proof
    for index, variant in enumerate(proof.variants):
        if variant.skipped:
            continue
        before, after = proof.variants[:index], proof.variants[index + 1 :]
        measured = _run(request, proof, variant)
        variant = replace(variant, measured=measured)
        proof = replace(proof, variants=(*before, variant, *after))
        yield proof
        if variant.name != "off":
            request.report_status(f"{variant.name}: compiled graph and log lines")
            words = ["verify", "--json", variant.config, "--log", str(request.folder / variant.name / "logs")]
            answer = ask(words)
            effect = answer.data or {"error": answer.error or f"mindswap verify: exit code {answer.exit_code}"}
            variant = replace(variant, effect=effect)
            proof = replace(proof, variants=(*before, variant, *after))
            yield proof
        if measured.exit_code and not measured.is_out_of_memory:
            # The same error would stop the other runs, so they are skipped.
            skipped_variants = (replace(later_variant, skipped=f"{variant.name} failed") for later_variant in after)
            yield replace(proof, variants=(*before, variant, *skipped_variants))
            return
    yield calibrated(request, proof)


def _run(request: ProofRequest, proof: Proof, variant: Variant) -> MeasuredRun:
    workers = format_count(proof.num_workers, "worker")
    request.report_status(f"{variant.name}: {variant.title}: {proof.num_steps} steps, {workers}")
    folder = request.folder / variant.name
    folder.mkdir()
    begin_s = time.monotonic()
    cluster = request.cluster and replace(request.cluster, files=_data_files(request.folder))
    code = run_workers(request.config, Path(variant.config), folder, proof.num_workers, request.report_status, cluster)
    measured = read_measured(folder, code, time.monotonic() - begin_s, proof.is_profiled)
    step = measured.step_ns
    losses = [entry.loss for entry in measured.workers[-1].steps] if measured.workers else []
    if measured.is_out_of_memory:
        outcome = "out of device memory"
    elif code:
        outcome = f"failed, exit code {code}: {measured.last_error or f'see {variant.name}/logs'}"
    else:
        outcome = f"{measured.wall_s:.0f} s; step {format_time(step) if step else 'not timed'}"
        outcome += f", loss {losses[0]:.4f} -> {losses[-1]:.4f}" if losses else ""
    request.report_status(f"    {outcome}")
    return measured


def _data_files(folder: Path) -> dict[Path, bytes]:
    """Return path and content of the synthetic data."""
    return {path.absolute(): path.read_bytes() for path in folder.glob("*.mindrecord*")}


def calibrated(request: ProofRequest, proof: Proof) -> Proof:
    """Calibrate the device from the profile of a run and repeat the simulations; prefer a run with copies."""
    profiles = {variant.name: variant.measured.profile for variant in proof.variants if variant.measured is not None}
    profile = next((profiles[name] for name in ("plan", "yaml", "off") if profiles.get(name) is not None), None)
    if profile is None:
        reason = "no profile" if not proof.is_profiled else "no profile of a device: a CPU has no kernels to fit"
        return replace(proof, calibration_problem=reason)
    request.report_status("calibrating from the profile, simulating again")
    file = request.folder / "device.yaml"
    configured = read_cost_settings(load_document(str(request.file("yaml")))).device or DEFAULT_DEVICE
    device = request.device_words[1] if request.device_words[:1] == ("--device",) else configured
    answer = ask(["calibrate", profile, "-o", str(file), "--device", device, "--json"])
    if answer.data is not None:
        write_new(request.folder / "calibration.json", json.dumps(answer.data, indent=1) + "\n")
        proof = replace(proof, calibration=answer.data)
    if answer.exit_code or answer.data is None:
        return replace(proof, calibration_problem=answer.error or "mindswap calibrate failed")
    variants = tuple(
        replace(variant, calibrated=simulate(request, variant.name, ("--device", str(file)))[1])
        if variant.simulated is not None
        else variant
        for variant in proof.variants
    )
    return replace(proof, variants=variants)
