"""A proof as one HTML file without requests, in the style of the page of a simulated step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from mindswap.report.calibration import format_figure
from mindswap.report.html_parts import card, list_items, page, section, table
from mindswap.report.tables import format_table
from mindswap.training.proof.model import Proof, Verdict, peak_bytes, typical_ns
from mindswap.units import format_bytes, format_count, format_time
from mindswap.version import __version__

# A proof as text, and as JSON.

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
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = (zip(row, widths, strict=True) for row in (header, *rows))
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in lines)


def count_verdicts(proof: Proof) -> dict[Verdict, int]:
    """Number of checks of each verdict."""
    return {verdict: sum(check.verdict is verdict for check in proof.checks) for verdict in Verdict}


def verdict_line(proof: Proof) -> str:
    """The proof in one line."""
    counts = count_verdicts(proof)
    text = f"{counts[Verdict.PASS]} checks hold, {counts[Verdict.FAIL]} do not"
    text += f", {counts[Verdict.UNSEEN]} cannot be seen here ({proof.target})" if counts[Verdict.UNSEEN] else ""
    return text + (": interrupted before the end" if proof.is_interrupted else "")


def figure_rows(proof: Proof) -> list[tuple[str, ...]]:
    """Measured beside simulated: step time, peak memory and copies of every run; the cells of `FIGURE_HEADER`."""
    rows = []
    for variant in proof.variants:
        copies = variant.measured.overlap if variant.measured is not None else None
        # Name, what was measured, where the simulation has it, how it is written.
        figures: list[tuple[str, int | None, str, Callable[[int], str]]] = [
            ("step time", typical_ns(variant.measured, proof.is_profiled), "step_time_ns", format_time),
            ("peak memory", peak_bytes(variant.measured), "peak_bytes", format_bytes),
        ]
        if variant.simulated is not None and variant.simulated.copy_ns:
            figures += [
                ("copies", copies.copy_ns if copies else None, "copy_ns", format_time),
                ("copies, exposed", copies.exposed_ns if copies else None, "exposed_copy_ns", format_time),
                ("copied", copies.size_bytes if copies else None, "copied_bytes", format_bytes),
            ]
        for name, measured, attribute, form in figures:
            cells = [NOTHING if measured is None else form(measured)]
            for simulated in (variant.simulated, variant.calibrated):
                figure: int | None = getattr(simulated, attribute, None)
                difference = NOTHING
                if measured and figure is not None and proof.target != "CPU":
                    difference = f"{(figure - measured) * 100 / measured:+.1f} %"
                cells += [NOTHING if figure is None else form(figure), difference]
            rows.append((variant.name, name, *cells))
    return rows


def proof_to_json(proof: Proof) -> dict[str, Any]:
    """Everything as plain data; sizes in bytes, times in ns."""
    data = asdict(proof)
    data["checks"] = [{**check, "verdict": check["verdict"].value} for check in data["checks"]]
    return {"mindswap": __version__, **data}


MARKS = {Verdict.PASS: "pass", Verdict.FAIL: "fail", Verdict.UNSEEN: "unseen"}
CPU_HINT = (
    "The runs were on a CPU: their times are shown and compared with nothing, and there is no device memory. "
    "The simulated figures are of the device named above."
)
DEVICE_HINT = (
    "Step time: the middle of the steps of the slowest worker, without the first and the profiled one. Peak "
    "memory: without fragments, the highest of all workers. Copies: of the profiled step of rank 0. The "
    "difference is that of the simulation to what was measured; calibrated: simulated with the figures of the "
    "profile."
)
FIT_HEADER = ("figure", "in the device file", "from the profile", "fitted to, or why it stays")
SENT = (
    ("report.json, report.html", "this report; the JSON has the schema mindswap.prove"),
    ("off.yaml, yaml.yaml, plan.yaml", "what ran, made from your configuration: look for paths and names in them"),
    ("device.yaml, calibration.json", "the figures that the profile gives, where there is one"),
    ("*/logs", "lines about swap, memory, steps and errors; not the whole logs"),
    ("*/profile", "tables and the trace of one step of rank 0"),
)


def format_proof_html(proof: Proof) -> str:
    """The page as text; whatever is from the user's files and logs is escaped."""
    hints = [
        f'<p class="hint">{escape(text)}</p>'
        for text in (
            CPU_HINT if proof.target == "CPU" else DEVICE_HINT,
            "Of the last worker, as it computed them, with every digit. The checks compare all workers.",
        )
    ]
    sent = [(f"<code>{escape(name)}</code>", escape(what)) for name, what in SENT]
    body = [
        section("Checks", _check_table(proof)),
        section("Measured beside simulated", hints[0], _charts(proof), _figure_table(proof)),
        section("Losses", hints[1], _loss_table(proof)),
        section("What would explain the difference", _calibration(proof)),
        section("What ran", _runs(proof)),
        section(
            "What to send back",
            "<p>Send <code>send_back.tar.gz</code>. It has no weights and no data:</p>",
            table(("file", "what it is"), sent, (1,)),
        ),
    ]
    remark = "Whatever is called simulated was not measured."
    title, badge = Path(proof.config).name, f"measured on {proof.target}"
    return page(title, "measured and simulated", badge, _lead(proof), _cards(proof), body, remark)


def _lead(proof: Proof) -> str:
    runs = ", ".join(variant.name for variant in proof.variants)
    workers = format_count(proof.num_workers, "worker")
    return (
        f"Runs {runs}: {proof.num_steps} steps each, {proof.num_layers} layers, {workers}, on {proof.target}. "
        f"Simulated device: {proof.device}."
    )


def _cards(proof: Proof) -> Iterable[str]:
    counts = count_verdicts(proof)
    judged = "bad" if counts[Verdict.FAIL] or proof.is_interrupted else "good"
    yield card("checks that hold", f"{counts[Verdict.PASS]} of {len(proof.checks)}", verdict_line(proof), judged)
    for variant in proof.variants:
        step = typical_ns(variant.measured, proof.is_profiled)
        value = format_time(step) if step is not None else "not timed"
        simulated = variant.simulated
        beside = variant.skipped
        if simulated is not None:
            where = " on the device" if proof.target == "CPU" else ""
            beside = f"{format_time(simulated.step_time_ns)} simulated{where}"
        yield card(f"{variant.name}: step on {proof.target}", value, f"{beside}; {variant.title}")
    yield card("the whole proof took", format_time(round(proof.wall_s * 1e9)), "")


def _check_table(proof: Proof) -> str:
    rows = []
    last = None
    for check in proof.checks:
        mark = f'<span class="verdict {MARKS[check.verdict]}">{check.verdict.value}</span>'
        seen = escape(check.seen) + (f"<small>{escape(check.reason)}</small>" if check.reason else "")
        name = f"<b>{escape(check.variant)}</b>" if check.variant != last else ""
        rows.append((name, escape(check.name), mark, escape(check.expected), seen))
        last = check.variant
    return table(("run", "check", "verdict", "expected", "seen"), rows, text_columns=(1, 2, 3, 4))


def _figure_table(proof: Proof) -> str:
    has_calibration = any(variant.calibrated is not None for variant in proof.variants)
    columns = slice(None) if has_calibration else slice(0, 5)
    rows = [tuple(map(escape, row[columns])) for row in figure_rows(proof)]
    return table(FIGURE_HEADER[columns], rows, text_columns=(1,))


def _charts(proof: Proof) -> str:
    """Step time and peak memory as bars, measured above simulated; on a CPU only what is simulated."""
    times, sizes = [], []
    for variant in proof.variants:
        measured, simulated = variant.measured if proof.target != "CPU" else None, variant.simulated
        step_ns = typical_ns(measured, proof.is_profiled)
        times.append((variant.name, step_ns, simulated.step_time_ns if simulated else None))
        sizes.append((variant.name, peak_bytes(measured), simulated.peak_bytes if simulated else None))
    return (
        '<div class="charts">'
        f"<div><h3>Step time</h3>{_bars(times, format_time)}</div>"
        f"<div><h3>Peak memory</h3>{_bars(sizes, format_bytes)}</div></div>"
    )


def _bars(rows: Sequence[tuple[str, int | None, int | None]], form: Callable[[int], str]) -> str:
    """For each run, what was measured above what was simulated; all bars in one scale."""
    largest = max((value or 0 for _, *values in rows for value in values), default=0)
    parts = []
    for run, measured, simulated in rows:
        bars = ""
        for name, value, colour in (("measured", measured, "accent"), ("simulated", simulated, "static")):
            if value is not None:
                width = f"{100 * value / max(1, largest):.1f}%"
                bars += (
                    f'<span class="what">{escape(run)}, {name}</span>'
                    f'<i style="width:{width};background:var(--{colour})"></i><span>{escape(form(value))}</span>'
                )
        parts.append(f'<div class="pair">{bars}</div>')
    return "".join(parts)


def _loss_table(proof: Proof) -> str:
    losses = {
        variant.name: {step.number: step.loss for step in variant.measured.workers[-1].steps}
        for variant in proof.variants
        if variant.measured is not None and variant.measured.workers and variant.measured.workers[-1].steps
    }
    if not losses:
        return "<p>No run reported a loss.</p>"
    rows = []
    for number in sorted({number for own in losses.values() for number in own}):
        first, *_ = (own.get(number) for own in losses.values())
        cells = [str(number)]
        for own in losses.values():
            loss = own.get(number)
            text = "-" if loss is None else escape(repr(loss))
            cells.append(text if loss == first else f'<b style="color:var(--bad)">{text}</b>')
        rows.append(cells)
    return table(("step", *losses), rows)


def _calibration(proof: Proof) -> str:
    reason = proof.calibration_problem or ("" if proof.calibration else "the runs did not come that far")
    text = f"<p>Nothing was simulated again: {escape(reason)}.</p>" if reason else ""
    if not proof.calibration:
        return text
    rows = [
        (
            escape(fit.name),
            format_figure(fit.name, fit.before),
            "stays" if fit.after is None else format_figure(fit.name, fit.after),
            escape(fit.basis),
        )
        for fit in proof.calibration
    ]
    return f"{text}{table(FIT_HEADER, rows, text_columns=(3,))}<ul>{list_items(proof.calibration_notes)}</ul>"


def _runs(proof: Proof) -> str:
    machine = "".join(
        f"<tr><td>{escape(name)}</td><td class='text'><pre style='margin:0'>{escape(text)}</pre></td></tr>"
        for name, text in proof.environment.items()
    )
    return (
        f"<ul>{list_items(proof.notes)}</ul>"
        f"<h3>Different from {escape(Path(proof.config).name)}</h3><ul>{list_items(proof.changes)}</ul>"
        f"<h3>The machine</h3><div class='scroll'><table><tbody>{machine}</tbody></table></div>"
    )
