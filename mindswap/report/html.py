"""HTML pages from the templates in `data/report`, and HTML for notebooks."""

from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

from mindswap.files import DATA
from mindswap.report.timeline_bars import BAR_STYLES, BUDGET, DRY_RUN, MEMORY_STYLES, OTHER_DRY_RUN, STATIC
from mindswap.simulator.report_data import StageReport
from mindswap.units import format_bytes, format_time
from mindswap.version import __version__

FILES = DATA / "report"
# Colours of the pictures, by name in the style sheet.
STYLES = {
    **{f"bar-{kind:d}": style for kind, style in BAR_STYLES.items()},
    **{f"memory-{kind:d}": style for kind, style in MEMORY_STYLES.items()},
    **{"static": STATIC, "budget": BUDGET, "real": DRY_RUN, "other-real": OTHER_DRY_RUN},
}


def render(template: str, **values: Any) -> str:
    """Render a self-contained HTML page, light and dark. Values are escaped unless they are from `html`.

    Args:
        template: file that extends `page.html`.
        values: variables of the template. Those of `page.html`: `title` (name of the configuration), `what` (kind of
            page, for the title of the tab), `badge` (source of the figures), `cards` (headline figures: name, value,
            remark, and "good" or "bad"), `remark` (text at the end).

    Returns:
        The text of the page.
    """
    import jinja2  # takes longer than most commands

    loader = jinja2.FileSystemLoader(FILES)
    pages = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= {"bytes": format_bytes, "time": format_time}

    def file(name: str) -> Any:
        return html(loader.get_source(pages, name)[0])

    return pages.get_template(template).render(values, version=__version__, styles=STYLES, file=file)


def html(text: str) -> Any:
    """Mark a text as HTML that must not be escaped."""
    from markupsafe import Markup

    return Markup(text)


def in_notebook(line: str, text: str, curve: str = "") -> str:
    """Format an object for a notebook: one line, the full text, and a curve."""
    return f"<p><b>{escape(line)}</b></p>{curve}<pre>{escape(text)}</pre>"


def memory_curve(shares: Iterable[float], live_bytes: Iterable[int], label: str) -> str:
    """Draw memory over a step as an SVG line in the colour of the text, for light and dark pages.

    Args:
        shares: times as fractions of the step, 0 to 1, ascending.
        live_bytes: memory from each time on.
        label: description of the curve.
    """
    highest: dict[int, int] = {}  # in each of 600 columns
    for share, live in zip(shares, live_bytes, strict=True):
        column = int(600 * share)
        highest[column] = max(int(live), highest.get(column, 0))
    scale = 95 / (max(highest.values(), default=0) or 1)
    points = " ".join(f"{column},{100 - scale * live:.1f}" for column, live in sorted(highest.items()))
    line = f'<polyline points="{points}" fill="none" stroke="currentColor"/>'
    return f'<svg viewBox="0 0 600 100" width="600">{line}</svg><p>{escape(label)}</p>'


def simulated_curve(stage: StageReport, workspace_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return times as fractions of the step (1 at the end of backward), and memory in bytes without workspace."""
    time_ns = stage.memory.time_ns
    live = stage.memory.by_kind_bytes.sum(axis=0) + stage.static_bytes - workspace_bytes
    return time_ns / max(int(time_ns[-1]) if len(time_ns) else 1, 1), live
