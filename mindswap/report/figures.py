"""What all pictures share. Needs matplotlib, which the extra `mindswap[plot]` brings."""

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
    """Writes a picture; the ending of the path says the format.

    Raises:
        DataError: if the format is unknown or the file cannot be written.
    """
    try:
        with rewritten(path) as written:
            figure.savefig(written, dpi=dpi)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write {path}: {error}") from None
