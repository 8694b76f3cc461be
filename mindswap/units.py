"""Bytes as people read them. Inside mindswap sizes are integer bytes."""

from collections.abc import Iterable

__all__ = ["common_unit", "format_bytes"]

# Unit -> bytes, smallest first.
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def common_unit(sizes_bytes: Iterable[int]) -> str:
    """One unit for numbers that are to be compared: the largest that shows them with one digit in 100 or better.

    `MiB` up to 100 GiB, because 1154 and 1114 MiB would both be 1.1 GiB.
    """
    largest = max(sizes_bytes, default=0)
    fitting = [unit for unit, size in UNITS.items() if largest >= 100 * size]
    return fitting[-1] if fitting else "B"


def format_bytes(size_bytes: int, unit: str | None = None) -> str:
    """Binary units with one decimal: `86.0 MiB`, `512 B`; a size below 0.05 of a given unit in its own unit.

    Args:
        size_bytes: what to show.
        unit: one of `UNITS`; None takes the one that fits.
    """
    if unit is None or 0 < size_bytes < 0.05 * UNITS[unit]:
        unit = next(unit for unit in reversed(UNITS) if size_bytes >= UNITS[unit] or unit == "B")
    return f"{size_bytes} B" if unit == "B" else f"{size_bytes / UNITS[unit]:.1f} {unit}"
