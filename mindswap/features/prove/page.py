"""Report of a proof as text, JSON and a self-contained HTML page."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from mindswap.features.prove.proof import Proof, Verdict
from mindswap.report.device_figures import format_figure
from mindswap.report.html import render
from mindswap.report.tables import NOTHING, format_table, shown
from mindswap.units import format_count, format_difference, format_time
from mindswap.version import __version__

# A proof as text, and as JSON.

FIGURE_HEADER = ("run", "figure", "measured", "simulated", "difference", "calibrated", "difference")


def format_proof(proof: Proof) -> str:
    """Format checks, figures and a summary line."""
    checks = [(c.variant, c.name, c.verdict.value, c.seen) for c in proof.checks]
    lines = [format_table(("run", "check", "verdict", "seen"), checks, is_words=True)]
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


def count_verdicts(proof: Proof) -> dict[Verdict, int]:
    """Return the number of checks of each verdict."""
    return {verdict: sum(check.verdict is verdict for check in proof.checks) for verdict in Verdict}


def verdict_line(proof: Proof) -> str:
    """Format the summary line."""
    counts = count_verdicts(proof)
    text = f"{counts[Verdict.PASS]} checks hold, {counts[Verdict.FAIL]} do not"
    text += f", {counts[Verdict.UNSEEN]} cannot be checked here ({proof.target})" if counts[Verdict.UNSEEN] else ""
    return text + (": interrupted before the end" if proof.is_interrupted else "")


def figure_rows(proof: Proof) -> list[tuple[str, ...]]:
    """Return the rows for `FIGURE_HEADER`: measured and simulated step time, peak memory and copies of every run."""
    rows = []
    for variant in proof.variants:
        for figure in variant.figures:
            measured = figure.measured
            cells = [shown(measured, figure.form)]
            for simulated in (figure.simulated, figure.calibrated):
                difference = NOTHING
                if measured and simulated is not None and proof.target != "CPU":
                    difference = format_difference(simulated, measured)
                cells += [shown(simulated, figure.form), difference]
            rows.append((variant.name, figure.name, *cells))
    return rows


def proof_to_json(proof: Proof) -> dict[str, Any]:
    """Return the proof as JSON data; sizes in bytes, times in ns."""
    data = asdict(proof)
    data["checks"] = [{**check, "verdict": check["verdict"].value} for check in data["checks"]]
    return {"mindswap": __version__, **data}


def format_proof_html(proof: Proof) -> str:
    """Format the page; texts from the user's files and logs are escaped."""
    # Columns without any figure are omitted; on a CPU the charts show simulated figures only.
    columns = slice(None) if any(variant.calibrated is not None for variant in proof.variants) else slice(0, 5)
    return render(
        "proof.html",
        title=Path(proof.config).name,
        what="measured and simulated",
        badge=f"measured on {proof.target}",
        cards=list(_cards(proof)),
        remark="Figures called simulated were not measured.",
        proof=proof,
        workers=format_count(proof.num_workers, "worker"),
        figures=(FIGURE_HEADER[columns], [row[columns] for row in figure_rows(proof)]),
        losses=_losses(proof),
        figure=format_figure,
    )


class _Card(NamedTuple):
    """Headline figure of the page."""

    name: str
    value: str
    remark: str
    judgement: str = ""  # `good`, `bad` or ""


def _cards(proof: Proof) -> Iterable[_Card]:
    counts = count_verdicts(proof)
    judgement = "bad" if counts[Verdict.FAIL] or proof.is_interrupted else "good"
    num_passed = f"{counts[Verdict.PASS]} of {len(proof.checks)}"
    yield _Card("checks that hold", num_passed, verdict_line(proof), judgement)
    for variant in proof.variants:
        step, remark = variant.figures[0], variant.skipped
        value = format_time(step.measured) if step.measured is not None else "not timed"
        if step.simulated is not None:
            place_text = " on the device" if proof.target == "CPU" else ""
            remark = f"{format_time(step.simulated)} simulated{place_text}"
        yield _Card(f"{variant.name}: step on {proof.target}", value, f"{remark}; {variant.title}")
    yield _Card("the whole proof took", format_time(round(proof.wall_s * 1e9)), "")


def _losses(proof: Proof) -> dict[str, list[Any]]:
    """Return the names of the runs, and rows of step number, loss in the first run, and losses in all runs."""
    losses = {
        variant.name: {step.number: step.loss for step in variant.measured.workers[-1].steps}
        for variant in proof.variants
        if variant.measured is not None and variant.measured.workers and variant.measured.workers[-1].steps
    }
    values = {
        n: [run_losses.get(n) for run_losses in losses.values()] for n in sorted(set[int]().union(*losses.values()))
    }
    return {"runs": list(losses), "rows": [(number, row[0], row) for number, row in values.items()]} if losses else {}
