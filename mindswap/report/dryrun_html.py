"""A dry run as one HTML file that opens offline: the real curve of every rank over the simulated one."""

from collections.abc import Sequence
from html import escape

import numpy as np

from mindswap.report.dryrun import NOT_A_CARD, describe_place, dry_run_cards, part_rows, peak_rows
from mindswap.report.html_parts import card, colours, list_items, read_part, table
from mindswap.simulator.summary_model import StageReport
from mindswap.training.dryrun.read import DryRun
from mindswap.training.dryrun.stages import DryRunReport, StageRun
from mindswap.units import format_bytes

WIDTH, HEIGHT, MARGIN = 960, 260, 60
MAX_POINTS = 600


def format_dry_run_html(report: DryRunReport, other: DryRunReport | None = None) -> str:
    """The page as text; whatever is from the user's files is escaped."""
    cards = "".join(card(*each) for each in dry_run_cards(report))
    parts = [f"<h1>{escape(report.title)}: dry run on the Ascend backend</h1>", f'<div class="cards">{cards}</div>']
    parts += [f"<section><h2>Peaks</h2>{_html_table(*peak_rows(report, other))}</section>"]
    for stage in report.stages:
        match = next((each for each in (other.stages if other else ()) if each.run.rank == stage.run.rank), None)
        parts.append(
            f"<section><h2>Rank {stage.run.rank}, stage {stage.stage}</h2>"
            f"<p>Peak: {escape(describe_place(stage.place))}</p>"
            f"{_picture(report, stage, match)}{_html_table(*part_rows(report, stage, match))}</section>"
        )
    parts.append(f"<section><h2>Notes</h2><ul>{list_items((*report.notes, NOT_A_CARD))}</ul></section>")
    body = "\n".join(parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(report.title)}</title>'
        f"<style>{colours()}{read_part('style.css')}</style></head><body><main>{body}</main></body></html>\n"
    )


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(header, [tuple(map(escape, row)) for row in rows])


def real_curve(run: DryRun) -> tuple[np.ndarray, np.ndarray]:
    """Place in the step by operators, 0 at its start and 1 at the end of backward, and live bytes."""
    points = np.array(run.curve, dtype=np.int64).reshape(-1, 2)
    begin = min((tick for tick, name in run.operators.items() if "/" in name and "/data-" not in name), default=0)
    points = points[points[:, 0] >= begin]
    end = max((tick for tick, name in run.operators.items() if name.startswith("Gradients/")), default=begin)
    span = max(end - begin, 1)
    return (points[:, 0] - begin) / span, points[:, 1]


def simulated_curve(stage: StageReport, workspace_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Place in the step by time, 1 at the end of backward, and bytes without workspace."""
    time_ns = stage.memory.time_ns
    live = stage.memory.by_kind_bytes.sum(axis=0) + stage.static_bytes - workspace_bytes
    return time_ns / max(int(time_ns[-1]) if len(time_ns) else 1, 1), live


def _picture(report: DryRunReport, stage: StageRun, other: StageRun | None) -> str:
    """Curves as SVG; of the longest model that was run."""
    curves = [("dry run", "var(--memory-0)", *real_curve(stage.run))]
    if other is not None:
        curves.append(("the other dry run", "var(--memory-4)", *real_curve(other.run)))
    if report.simulated and stage.num_layers in stage.runs:
        simulated = simulated_curve(report.simulated[stage.stage], report.workspace_bytes(stage))
        curves.append(("simulated", "var(--budget)", *simulated))
    highest = max(int(live.max()) for *_, live in curves if len(live))
    furthest = max(float(shares.max()) for _, _, shares, _ in curves if len(shares))
    lines, names = [], []
    for position, (name, colour, shares, live) in enumerate(curves):
        line = " ".join(
            f"{MARGIN + x / furthest * (WIDTH - MARGIN):.1f},{y:.1f}" for x, y in _thin(shares, live, highest)
        )
        lines.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        at = MARGIN + 10 + 180 * position
        names.append(f'<text x="{at}" y="{HEIGHT + 16}" fill="{colour}">{name}</text>')
    names.append(f'<text x="0" y="12" fill="currentColor">{format_bytes(highest)}</text>')
    view = f'viewBox="0 0 {WIDTH} {HEIGHT + 24}" width="100%" style="max-width:{WIDTH}px" font-size="12"'
    note = (
        "From left to right: operators in the order of launch, the optimizer at the end; of the simulated step: time."
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view}>{"".join(lines + names)}</svg><p>{note}</p>'


def _thin(shares: np.ndarray, live: np.ndarray, highest: int) -> list[tuple[float, float]]:
    """The highest point of each of a number of pieces, so that no peak is lost."""
    pieces = np.array_split(np.arange(len(live)), min(MAX_POINTS, max(len(live), 1)))
    kept = [int(piece[np.argmax(live[piece])]) for piece in pieces if len(piece)]
    return [(float(shares[i]), HEIGHT - float(live[i]) / max(highest, 1) * (HEIGHT - 10)) for i in kept]
