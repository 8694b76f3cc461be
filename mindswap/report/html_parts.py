"""Parts that the HTML pages share."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from mindswap.report.simulation.bars import BAR_STYLES, BUDGET, DRY_RUN, MEMORY_STYLES, OTHER_DRY_RUN, STATIC, Style
from mindswap.version import __version__

FILES = Path(__file__).parents[1] / "data" / "report"


def read_part(name: str) -> str:
    """A file of `data/report`."""
    return (FILES / name).read_text(encoding="utf-8")


def page(
    title: str,
    what: str,
    badge: str,
    lead: str,
    cards: Iterable[str],
    body: Iterable[str],
    remark: str,
    scripts: str = "",
) -> str:
    """One HTML file without requests, light and dark.

    Args:
        title: what it is about, as the user named it.
        what: the page, in the title of its tab.
        badge: where the figures are from.
        lead: the sentence below the title.
        cards: HTML of the figures that everybody asks for first.
        body: HTML of the sections.
        remark: the last words.
        scripts: HTML of script elements.
    """
    return Template(read_part("page.html")).substitute(
        title=escape(title),
        what=what,
        badge=escape(badge),
        lead=escape(lead),
        cards="\n".join(cards),
        body="\n".join(body),
        remark=remark,
        scripts=scripts,
        scripts_allowed="; script-src 'unsafe-inline'" if scripts else "",
        version=escape(__version__),
        colours=_colours(),
        style=read_part("style.css"),
    )


def section(heading: str, *parts: str) -> str:
    """HTML under a heading."""
    return "\n".join(["<section>", f"<h2>{escape(heading)}</h2>", *filter(None, parts), "</section>"])


def _colours() -> str:
    """The colours of the pictures as variables of the style sheet."""
    styles: list[tuple[str, Style]] = [(f"bar-{kind:d}", style) for kind, style in BAR_STYLES.items()]
    styles += [(f"memory-{kind:d}", style) for kind, style in MEMORY_STYLES.items()]
    styles += [("static", STATIC), ("budget", BUDGET), ("real", DRY_RUN), ("other-real", OTHER_DRY_RUN)]
    light = "".join(f"--{name}:{style.light};" for name, style in styles)
    dark = "".join(f"--{name}:{style.dark};" for name, style in styles)
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def card(name: str, value: str, remark: str, judged: str = "") -> str:
    """A figure with its name above and a remark below it, which is `judged` "good", "bad" or not at all."""
    return (
        f'<div class="card"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="{f"remark {judged}".strip()}">{escape(remark)}</div></div>'
    )


def in_notebook(line: str, text: str, curve: str = "") -> str:
    """An object in a notebook: its line, what `print` shows, and a curve."""
    return f"<p><b>{escape(line)}</b></p>{curve}<pre>{escape(text)}</pre>"


def memory_curve(shares: Iterable[float], live_bytes: Iterable[int], label: str) -> str:
    """Memory over a step as a line in the colour of the text, so that it is seen in light and dark.

    Args:
        shares: of the step, 0 to 1, ascending.
        live_bytes: from each of them on.
        label: what is drawn.
    """
    highest: dict[int, int] = {}  # in each of 600 columns
    for share, live in zip(shares, live_bytes, strict=True):
        column = int(600 * share)
        highest[column] = max(int(live), highest.get(column, 0))
    scale = 95 / (max(highest.values(), default=0) or 1)
    points = " ".join(f"{column},{100 - scale * live:.1f}" for column, live in sorted(highest.items()))
    line = f'<polyline points="{points}" fill="none" stroke="currentColor"/>'
    return f'<svg viewBox="0 0 600 100" width="600">{line}</svg><p>{escape(label)}</p>'


def list_items(texts: Iterable[str]) -> str:
    """Texts as the items of a list."""
    return "".join(f"<li>{escape(text)}</li>" for text in texts)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Sequence[int] = ()) -> str:
    """A table; cells are HTML already."""

    def line(tag: str, cells: Sequence[str]) -> str:
        marks = (' class="text"' if column in text_columns else "" for column in range(len(cells)))
        return "".join(f"<{tag}{mark}>{cell}</{tag}>" for cell, mark in zip(cells, marks, strict=True))

    body = "\n".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    head = line("th", [escape(cell) for cell in header])
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
