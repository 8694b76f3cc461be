"""Parts that all pictures share. Needs matplotlib, which the extra `mindswap[plot]` brings."""

from pathlib import Path
from typing import TYPE_CHECKING

from mindswap.errors import DataError
from mindswap.files import rewritten

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def load_figure_class() -> "type[Figure]":
    """`matplotlib.figure.Figure`; loaded only when a picture is asked for.

    Raises:
        DataError: if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("--plot needs matplotlib\n    fix: pip install 'mindswap[plot]'") from None
    return Figure


def save_figure(figure: "Figure", path: Path, dpi: int = 110) -> None:
    """Writes a picture; the ending of the path says the format. A .png carries its words, so that they can be compared.

    Raises:
        DataError: if the format is unknown or the file cannot be written.
    """
    words = {"Description": _words(figure), "Software": None} if path.suffix == ".png" else None
    try:
        with rewritten(path) as written:
            figure.savefig(written, dpi=dpi, metadata=words)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write {path}: {error}") from None


def _words(figure: "Figure") -> str:
    """Titles, names and figures of a picture, without the numbers at its axes."""
    from matplotlib.text import Text

    ticks = {id(text) for axis in figure.axes for text in (*axis.get_xticklabels(), *axis.get_yticklabels())}
    found = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and id(text) not in ticks]
    return "\n".join(text for text in found if text)
