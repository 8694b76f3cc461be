"""What a figure of a device is: what it measures, in which units it may be written. `hardware` has them all."""

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from mindswap.units import BANDWIDTH_UNITS, FLOPS_UNITS, RATE_UNITS, SIZE_UNITS, TIME_UNITS, parse_quantity


class FigureKind(Enum):
    """What a figure measures."""

    SIZE = "size"
    BANDWIDTH = "bandwidth"
    TIME = "time"
    FLOPS = "flops"
    RATE = "rate"
    FRACTION = "fraction"
    COUNT = "count"


# Units of each kind, none for bare numbers, and what somebody may write.
UNITS_OF: dict[FigureKind, tuple[dict[str, int], str]] = {
    FigureKind.SIZE: (SIZE_UNITS, "54GiB"),
    FigureKind.BANDWIDTH: (BANDWIDTH_UNITS, "20GB/s"),
    FigureKind.TIME: (TIME_UNITS, "20us"),
    FigureKind.FLOPS: (FLOPS_UNITS, "313TFLOPS"),
    FigureKind.RATE: (RATE_UNITS, "180Gelements/s"),
    FigureKind.FRACTION: ({}, "0.7"),
    FigureKind.COUNT: ({}, "8"),
}


@dataclass(frozen=True)
class Figure:
    """One figure of a device."""

    name: str  # without unit; the option and the key in `mindswap:` have this name
    kind: FigureKind  # what it measures
    meaning: str  # for help texts
    may_be_zero: bool = False  # 0 says that there is no such cost or limit
    # in its smallest unit, for files that do not have the figure; None where every file must
    default: int | None = None


def unit_keys(figure: Figure) -> dict[str, int]:
    """Keys that a device file may use for a figure -> the size of their unit: `d2h_gb_per_s`, ..."""
    units, _ = UNITS_OF[figure.kind]
    if not units:
        return {figure.name: 1000 if figure.kind is FigureKind.FRACTION else 1}
    return {f"{figure.name}_{unit.lower().replace('/', '_per_')}": size for unit, size in units.items()}


def parse_option(figure: Figure, text: str) -> int:
    """The value of an option: bytes, bytes/s, ns, FLOPS, elements/s, thousandths or a count.

    Raises:
        ValueError: if it does not fit; the text says what may be written.
    """
    units, example = UNITS_OF[figure.kind]
    if units:
        value = parse_quantity(text, units, example)
    else:
        try:
            value = to_integer(figure, Decimal(text), unit_keys(figure)[figure.name])
        except ArithmeticError:
            raise ValueError(f"{text!r}: write a number such as {example}") from None
    return checked(figure, value)


def to_integer(figure: Figure, number: Decimal, unit: int) -> int:
    """A number of a unit as an integer.

    Raises:
        ValueError: if it is not finite, or a count that is not whole.
    """
    if not number.is_finite() or (figure.kind is FigureKind.COUNT and number != int(number)):
        raise ValueError(f"{number} is no {'whole number' if figure.kind is FigureKind.COUNT else 'number'}")
    return int(number * unit)


def checked(figure: Figure, value: int) -> int:
    """The value itself.

    Raises:
        ValueError: if it is out of range.
    """
    if value < 0 or (value == 0 and not figure.may_be_zero):
        raise ValueError("must be more than 0" if not figure.may_be_zero else "must not be negative")
    if figure.kind is FigureKind.FRACTION and value > 1000:
        raise ValueError("must be at most 1")
    return value
