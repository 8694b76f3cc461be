"""Parse and format sizes, rates and times. Inside mindswap they are integer bytes, bytes/s and ns."""

import re
from collections.abc import Iterable
from decimal import Decimal

# Unit -> bytes, smallest first.
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE_UNITS = {**UNITS, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BANDWIDTH_UNITS = {f"{unit}/s": size for unit, size in SIZE_UNITS.items()}
NS_PER_S = 10**9
TIME_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": NS_PER_S}
FLOPS_UNITS = {"GFLOPS": 10**9, "TFLOPS": 10**12}
RATE_UNITS = {"elements/s": 1, "Melements/s": 10**6, "Gelements/s": 10**9}
DECIMAL_RATES = ("TB/s", "GB/s", "MB/s", "KB/s", "B/s")
_QUANTITY = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?)\s*(?P<unit>[A-Za-z/]+)\s*", re.ASCII)


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


def common_unit(sizes_bytes: Iterable[int]) -> str:
    """Return a common unit for sizes that are compared: the largest unit in which the largest size is at least 100.

    `MiB` up to 100 GiB, because 1154 and 1114 MiB would both be 1.1 GiB.
    """
    largest = max(sizes_bytes, default=0)
    fitting = [unit for unit, size in UNITS.items() if largest >= 100 * size]
    return fitting[-1] if fitting else "B"


def format_bytes(size_bytes: int, unit: str | None = None) -> str:
    """Format a size in binary units with one decimal: `86.0 MiB`, `512 B`.

    Args:
        size_bytes: the size.
        unit: one of `UNITS`, ignored if the size is below 0.05 of it; None selects the largest unit that is not larger
            than the size.
    """
    if unit is None or 0 < size_bytes < 0.05 * UNITS[unit]:
        unit = next(unit for unit in reversed(UNITS) if size_bytes >= UNITS[unit] or unit == "B")
    return f"{size_bytes} B" if unit == "B" else f"{size_bytes / UNITS[unit]:.1f} {unit}"


def format_signed(size_bytes: int) -> str:
    """Format a difference of sizes: `+86.0 MiB`, `-512 B`."""
    return ("-" if size_bytes < 0 else "+") + format_bytes(abs(size_bytes))


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 worker`, `3 workers`, `0 workers`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def format_bandwidth(bytes_per_s: int) -> str:
    """Format a bandwidth in decimal units, as vendors do: `23.0 GB/s`, `1.8 TB/s`."""
    unit = next(unit for unit in DECIMAL_RATES if bytes_per_s >= BANDWIDTH_UNITS[unit] or unit == "B/s")
    return f"{bytes_per_s / BANDWIDTH_UNITS[unit]:.1f} {unit}"


def format_time(time_ns: int) -> str:
    """Format a time with at least three digits in the largest unit that fits: `1.52 s`, `24.3 ms`, `430 us`, `0 ns`."""
    unit = next(unit for unit in reversed(TIME_UNITS) if abs(time_ns) >= TIME_UNITS[unit] or unit == "ns")
    value = time_ns / TIME_UNITS[unit]
    decimals = 0 if unit == "ns" or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f} {unit}"


def format_difference(value: int, reference: int) -> str:
    """Format the difference relative to the reference: `+4.2 %`."""
    return f"{100 * (value - reference) / max(reference, 1):+.1f} %"


def parse_bytes(text: str) -> int:
    """Parse a size: `54GiB`, `1.5 TB`, `512 B`.

    Raises:
        ValueError: if it is not a size; the message has the allowed units.
    """
    return parse_quantity(text, SIZE_UNITS, "54GiB")


def parse_quantity(text: str, units: dict[str, int], example: str) -> int:
    """Parse a number with a unit.

    Args:
        text: the number and its unit.
        units: unit -> its size in the smallest unit.
        example: example of a valid text, for the message.

    Returns:
        The quantity in the smallest unit, rounded down.

    Raises:
        ValueError: if the text is not a number with one of the units.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match["unit"] not in units:  # case counts: Gb/s are bits
        raise ValueError(f"{text!r}: write a number with its unit, such as {example}; units are {', '.join(units)}")
    return int(Decimal(match["number"]) * units[match["unit"]])
