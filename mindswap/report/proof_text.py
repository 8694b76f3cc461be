"""A proof as text, and as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from mindswap.prove.model import Proof, Simulated, Variant, Verdict, typical_ns
from mindswap.report.tables import format_table
from mindswap.units import format_bytes, format_time
from mindswap.version import __version__

__all__ = ["SCHEMA", "count_verdicts", "figure_rows", "format_proof", "proof_to_json", "verdict_line"]

SCHEMA, SCHEMA_VERSION = "mindswap.prove", 1
FIGURE_HEADER = ("run", "figure", "measured", "simulated", "difference", "calibrated", "difference")
NOTHING = "-"


def format_proof(proof: Proof) -> str:
    """The checks, the figures, and one line that sums up."""
    checks = [(c.variant, c.name, c.verdict.value, c.seen) for c in proof.checks]
    lines = [_left_table(("run", "check", "verdict", "seen"), checks)]
    failed = [check for check in proof.checks if check.verdict is Verdict.FAIL]
    for check in failed:
        lines += ["", f"{check.variant}: {check.name}: expected {check.expected}; seen {check.seen}"]
        lines += [f"    {line}" for line in check.reason.splitlines()]
    rows = figure_rows(proof)
    if proof.target != "CPU" and any(row[2] != NOTHING for row in rows):
        lines += ["", format_table(FIGURE_HEADER, rows)]
    reasons = dict.fromkeys(check.reason for check in proof.checks if check.verdict is Verdict.UNSEEN and check.reason)
    lines += [""] + [f"not visible: {reason}" for reason in reasons] if reasons else []
    if proof.calibration_problem:
        lines.append(f"no calibration: {proof.calibration_problem}")
    return "\n".join([*lines, "", verdict_line(proof)])


def _left_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of words, all to the left."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header) - 1)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)), cells[-1]]).rstrip()

    return "\n".join([line(header), *map(line, rows)])


def count_verdicts(proof: Proof) -> dict[Verdict, int]:
    """How many checks there are of each verdict."""
    return {verdict: sum(check.verdict is verdict for check in proof.checks) for verdict in Verdict}


def verdict_line(proof: Proof) -> str:
    """The proof in one line."""
    counts = count_verdicts(proof)
    text = f"{counts[Verdict.PASS]} checks hold, {counts[Verdict.FAIL]} do not"
    text += f", {counts[Verdict.UNSEEN]} cannot be seen here ({proof.target})" if counts[Verdict.UNSEEN] else ""
    return text + (": interrupted before the end" if proof.is_interrupted else "")


def figure_rows(proof: Proof) -> list[tuple[str, ...]]:
    """Measured beside simulated: step time, peak memory and copies of every run."""
    rows = []
    is_device = proof.target != "CPU"
    for variant in proof.variants:
        peak, step, copies = _measured_figures(proof, variant)
        simulated, calibrated = variant.simulated, variant.calibrated

        def row(
            name: str,
            measured: int | None,
            value: Callable[[Simulated], int],
            form: Callable[[int], str],
            variant: Variant = variant,
            simulated: Simulated | None = simulated,
            calibrated: Simulated | None = calibrated,
        ) -> tuple[str, ...]:
            cells = [_form(measured, form)]
            for one in (simulated, calibrated):
                figure = value(one) if one is not None else None
                cells += [_form(figure, form), _difference(measured if is_device else None, figure)]
            return (variant.name, name, *cells)

        rows.append(row("step time", step, lambda s: s.step_time_ns, format_time))
        rows.append(row("peak memory", peak, lambda s: s.peak_bytes, format_bytes))
        if simulated is not None and simulated.copy_ns:
            rows.append(row("copies", copies[0], lambda s: s.copy_ns, format_time))
            rows.append(row("copies, exposed", copies[1], lambda s: s.exposed_copy_ns, format_time))
            rows.append(row("copied", copies[2], _copied, format_bytes))
    return rows


def _copied(simulated: Simulated) -> int:
    return simulated.copied_bytes


def _measured_figures(proof: Proof, variant: Variant) -> tuple[int | None, int | None, Sequence[int | None]]:
    """Peak memory, step time; copies, exposed copies, copied bytes."""
    measured = variant.measured
    if measured is None:
        return None, None, (None, None, None)
    peak = max((worker.used_peak_bytes or 0 for worker in measured.workers), default=0) or None
    overlap = measured.overlap
    copies = (overlap.copy_ns, overlap.exposed_ns, overlap.size_bytes) if overlap is not None else (None, None, None)
    return peak, typical_ns(measured, proof.is_profiled), copies


def _form(value: int | None, form: Callable[[int], str]) -> str:
    return NOTHING if value is None else form(value)


def _difference(measured: int | None, figure: int | None) -> str:
    """How far the figure is above what was measured."""
    return NOTHING if not measured or figure is None else f"{(figure - measured) * 100 / measured:+.1f} %"


def proof_to_json(proof: Proof) -> dict[str, Any]:
    """Everything as plain data; sizes in bytes, times in ns."""
    data = asdict(proof)
    data["checks"] = [{**check, "verdict": check["verdict"].value} for check in data["checks"]]
    return {"schema": SCHEMA, "version": SCHEMA_VERSION, "mindswap": __version__, "ok": proof.is_ok, **data}
