"""Checks of a proof: expectations compared with the runs."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from mindswap.features.prove.proof import Check, MeasuredRun, Proof, Simulated, Variant, Verdict
from mindswap.units import format_bytes, format_difference, format_time

# Accuracy claimed for the simulator: 15 % of the step time for one configuration, as in benchmarks/published/.
STEP_PERMILLE = 150
# assumed: statistics are in integer MiB, and pool and workspace differ by version; more is an error of the model.
MEMORY_PERMILLE = 50
# assumed: kernels of one step differ by a few percent from run to run.
OVERLAP_PERMILLE = 100
# Relative. assumed: atomic additions of kernels that are not deterministic; a wrong copy causes larger ones.
LOSS_TOLERANCE = 1e-3

_NO_DEVICE_MEMORY = "the CPU backend counts no device memory"
_NO_DEVICE_TIME = "a CPU ran, the simulated device did not"
_NO_COPIES = "the CPU backend copies nothing between device and host"


def make_checks(proof: Proof) -> tuple[Check, ...]:
    """Return all checks of a proof, in order of the runs."""
    off = next((variant for variant in proof.variants if variant.name == "off"), None)
    checks: list[Check] = []
    for variant in proof.variants:
        checks += _check_run(proof, variant)
        if variant.name != "off":
            checks += _check_effect(variant)
            checks += _check_losses(proof, variant, off)
        if variant.measured is not None and variant.simulated is not None:
            checks += _check_figures(proof, variant, variant.measured, variant.simulated)
    return tuple(checks)


def _check_run(proof: Proof, variant: Variant) -> Iterator[Check]:
    expected = f"{proof.num_steps} steps in each of {proof.num_workers} workers"
    measured = variant.measured
    if measured is None:
        reason = variant.skipped or ("interrupted" if proof.is_interrupted else "")
        yield Check(variant.name, "training", expected, "did not run", Verdict.UNSEEN, reason)
        return
    counts = {len(worker.steps) for worker in measured.workers}
    spread = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else "no"
    observed = f"{spread} steps in {len(measured.workers)} workers, exit code {measured.exit_code}"
    is_complete = measured.exit_code == 0 and counts == {proof.num_steps} and len(measured.workers) == proof.num_workers
    if is_complete:
        yield Check(variant.name, "training", expected, observed, Verdict.PASS)
    elif measured.is_out_of_memory and variant.name == "off":
        # Running out of memory without swap may be the reason for swap, so only the other runs must complete.
        reason = "without swap and recompute this model does not fit; --layers N makes it smaller"
        yield Check(variant.name, "training", expected, "out of device memory", Verdict.UNSEEN, reason)
    else:
        observed = "out of device memory" if measured.is_out_of_memory else observed
        reason = "; ".join(filter(None, [measured.last_error, f"see {variant.name}/logs"]))
        yield Check(variant.name, "training", expected, observed, Verdict.FAIL, reason)


def _check_effect(variant: Variant) -> Iterator[Check]:
    effect = variant.effect or {}
    name, expected = "compiled graph", "follows the configuration exactly"
    layers, logs = effect.get("layers"), effect.get("logs")
    if effect.get("error"):
        yield Check(variant.name, name, expected, "could not be compiled", Verdict.FAIL, effect["error"])
    elif layers:
        num_pairs, size = (sum(layer.get(key, 0) for layer in layers) for key in ("num_pairs", "swapped_bytes"))
        # `ok` of the output covers both graph and logs.
        is_ok = all(layer["ok"] for layer in layers) and bool(effect["ok"] or (logs and not logs["ok"]))
        observed, reason = f"{num_pairs} D2H and H2D copies, {format_bytes(size)}", f"mindswap verify {variant.config}"
        yield Check(variant.name, name, expected, observed, _verdict(is_ok), "" if is_ok else reason)
    if logs:
        observed, expected = "they do" if logs["ok"] else "they do not", "all workers log the policy as specified"
        findings = [
            f"{finding['level']}: {finding['message']}" for finding in logs["findings"] if finding["level"] != "note"
        ]
        yield Check(variant.name, "log lines", expected, observed, _verdict(logs["ok"]), "; ".join(findings))


def _verdict(is_ok: bool) -> Verdict:
    return Verdict.PASS if is_ok else Verdict.FAIL


def _check_losses(proof: Proof, variant: Variant, off: Variant | None) -> Iterator[Check]:
    is_exact = proof.target == "CPU" or proof.is_deterministic
    expected = "as with swap off, " + ("every bit" if is_exact else f"within {LOSS_TOLERANCE:g} of it")
    name = "losses"
    if variant.measured is None:
        return
    if off is None or off.measured is None or not any(worker.steps for worker in off.measured.workers):
        yield Check(variant.name, name, expected, "no losses with swap off", Verdict.UNSEEN, "off did not run")
        return
    pairs = list(_loss_pairs(off.measured, variant.measured))
    if not pairs:
        yield Check(variant.name, name, expected, "no losses", Verdict.FAIL, "no worker reported a step")
        return
    tolerance = 0.0 if is_exact else LOSS_TOLERANCE  # NaN is close to nothing, so it fails the check
    differing = [pair for pair in pairs if not math.isclose(pair.off_loss, pair.loss, rel_tol=tolerance)]
    largest = max(pair.relative_difference for pair in pairs)
    if not differing:
        observed = (
            f"{len(pairs)} losses equal" if largest == 0 else f"{len(pairs)} losses, differing by {largest:.2g} at most"
        )
        yield Check(variant.name, name, expected, observed, Verdict.PASS)
        return
    first = differing[0]
    observed = f"{len(differing)} of {len(pairs)} differ, by {largest:.2g} at most"
    reason = f"first in worker {first.worker}, step {first.step}: {first.off_loss!r} with swap off, {first.loss!r}"
    yield Check(variant.name, name, expected, observed, Verdict.FAIL, reason)


class _LossPair(NamedTuple):
    """Losses of one step of a worker in two runs."""

    worker: int
    step: int
    off_loss: float  # with swap off
    loss: float

    @property
    def relative_difference(self) -> float:
        """Difference relative to the loss with swap off."""
        return abs(self.off_loss - self.loss) / max(abs(self.off_loss), 1e-30) if self.off_loss != self.loss else 0.0


def _loss_pairs(off: MeasuredRun, run: MeasuredRun) -> Iterator[_LossPair]:
    """Yield the losses of all steps in both runs."""
    off_losses = {(worker.number, step.number): step.loss for worker in off.workers for step in worker.steps}
    for worker in run.workers:
        for step in worker.steps:
            if (worker.number, step.number) in off_losses:
                yield _LossPair(worker.number, step.number, off_losses[worker.number, step.number], step.loss)


def _check_figures(proof: Proof, variant: Variant, measured: MeasuredRun, simulated: Simulated) -> Iterator[Check]:
    is_cpu = proof.target == "CPU"
    step, peak = variant.figures[:2]
    no_statistics = "no statistics in the logs (MS_MEMORY_STATISTIC)"
    for figure, tolerance, reason in (
        (peak, MEMORY_PERMILLE, (no_statistics, _NO_DEVICE_MEMORY)),
        (step, STEP_PERMILLE, ("no step was timed", _NO_DEVICE_TIME)),
    ):
        simulated_value, measured_value, form = figure.simulated or 0, figure.measured, figure.form
        expected = f"{form(simulated_value)} simulated, within {tolerance / 10:g} %"
        if not measured_value or is_cpu:
            text = "nothing" if measured_value is None else f"{form(measured_value)} on this CPU"
            yield Check(variant.name, figure.name, expected, text, Verdict.UNSEEN, reason[is_cpu])
        else:
            # The error of the simulation is relative to the measurement, as everywhere.
            text = f"{form(measured_value)}: simulated {format_difference(simulated_value, measured_value)}"
            verdict = _verdict(abs(measured_value - simulated_value) * 1000 <= tolerance * measured_value)
            yield Check(variant.name, figure.name, expected, text, verdict)
        if variant.budget_bytes is not None and figure is peak:
            yield _budget(variant.name, variant.budget_bytes, None if is_cpu else measured_value)
    if simulated.copy_ns:
        yield _overlap(variant.name, measured, simulated, is_cpu)


def _budget(variant: str, budget_bytes: int, peak_bytes: int | None) -> Check:
    expected = f"at most {format_bytes(budget_bytes)}"
    if peak_bytes is None:
        return Check(variant, "memory budget", expected, "nothing", Verdict.UNSEEN, _NO_DEVICE_MEMORY)
    return Check(variant, "memory budget", expected, format_bytes(peak_bytes), _verdict(peak_bytes <= budget_bytes))


def _overlap(variant: str, measured: MeasuredRun, simulated: Simulated, is_cpu: bool) -> Check:
    minimum_permille = max(0, (simulated.hidden_permille or 0) - OVERLAP_PERMILLE)
    expected = f"at least {minimum_permille / 10:g} % of {format_time(simulated.copy_ns)} hidden"
    overlap = measured.overlap
    if is_cpu or overlap is None:
        reason = _NO_COPIES if is_cpu else "no profile with kernels of a device"
        return Check(variant, "copies overlap compute", expected, "nothing", Verdict.UNSEEN, reason)
    if overlap.hidden_permille is None:
        reason = "the profile of the step has no copy between device and host"
        return Check(variant, "copies overlap compute", expected, "no copies", Verdict.FAIL, reason)
    observed = (
        f"{overlap.hidden_permille / 10:g} % of {format_time(overlap.copy_ns)} hidden under compute, "
        f"{format_time(overlap.exposed_ns)} exposed"
    )
    return Check(
        variant, "copies overlap compute", expected, observed, _verdict(overlap.hidden_permille >= minimum_permille)
    )
