"""A device as data; each device parameter (figure) is defined by one line of `data/hardware/figures.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from mindswap.files import package_data
from mindswap.units import BANDWIDTH_UNITS, FLOPS_UNITS, RATE_UNITS, SIZE_UNITS, TIME_UNITS, ceil_div, parse_quantity

NO_UNITS: dict[str, int] = {}


class FigureKind(Enum):
    """Quantity that a figure measures.

    Attributes:
        units: unit -> size in the smallest unit; empty for bare numbers.
        example: a value as a user may write it.
        written: units in which a calibration is written; the first one that represents a value exactly is used.
    """

    SIZE = (SIZE_UNITS, "54GiB", ("gib", "b"))
    BANDWIDTH = (BANDWIDTH_UNITS, "20GB/s", ("gb_per_s",))
    TIME = (TIME_UNITS, "20us", ("us",))
    FLOPS = (FLOPS_UNITS, "313TFLOPS", ("tflops",))
    RATE = (RATE_UNITS, "180Gelements/s", ("gelements_per_s", "elements_per_s"))
    FRACTION = (NO_UNITS, "0.7", ("",))
    COUNT = (NO_UNITS, "8", ("",))

    def __init__(self, units: dict[str, int], example: str, written: tuple[str, ...]):
        self.units, self.example, self.written = units, example, written


@dataclass(frozen=True)
class Figure:
    """One figure of a device: a line of `data/hardware/figures.json`."""

    name: str  # without unit; the option and the key in `mindswap:` have this name
    field: str  # field of `Device`, with a dot and the inner field if it is nested
    kind: FigureKind  # quantity and units
    meaning: str  # for help texts
    words: str  # for reports
    may_be_zero: bool = False  # 0 is allowed and means no such cost or limit
    # in its smallest unit, for files without the figure; None if every file must have it
    default: int | None = None
    is_main: bool = False  # it is one of the most influential ones
    is_common: bool = False  # `--help` lists its option
    zero: str = ""  # text of reports for the value 0; "" for the number


def unit_keys(figure: Figure) -> dict[str, int]:
    """Return the keys that a device file may use for a figure, with the size of their unit: `d2h_gb_per_s`, ..."""
    if not figure.kind.units:
        return {figure.name: 1000 if figure.kind is FigureKind.FRACTION else 1}
    return {f"{figure.name}_{unit.lower().replace('/', '_per_')}": size for unit, size in figure.kind.units.items()}


def parse_option(figure: Figure, text: str) -> int:
    """Parse the value of an option to an integer: bytes, bytes/s, ns, FLOPS, elements/s, thousandths or a count.

    Raises:
        ValueError: if it is invalid; the text says what is allowed.
    """
    if figure.kind.units:
        value = parse_quantity(text, figure.kind.units, figure.kind.example)
    else:
        try:
            value = to_integer(figure, Decimal(text), unit_keys(figure)[figure.name])
        except ArithmeticError:
            raise ValueError(f"{text!r}: write a number such as {figure.kind.example}") from None
    return checked(figure, value)


def to_integer(figure: Figure, number: Decimal, unit: int) -> int:
    """Convert a number in a unit to an integer in the smallest unit.

    Raises:
        ValueError: if it is not finite, or a count that is no integer.
    """
    if not number.is_finite() or (figure.kind is FigureKind.COUNT and number != int(number)):
        raise ValueError(f"{number} is no {'whole number' if figure.kind is FigureKind.COUNT else 'number'}")
    return int(number * unit)


def checked(figure: Figure, value: int) -> int:
    """Return the value if it is valid for the figure.

    Raises:
        ValueError: if it is out of range.
    """
    if value < 0 or (value == 0 and not figure.may_be_zero):
        raise ValueError("must be more than 0" if not figure.may_be_zero else "must not be negative")
    if figure.kind is FigureKind.FRACTION and value > 1000:
        raise ValueError("must be at most 1")
    return value


SET_BY_USER = "set by the user"  # source of a figure that an option or a configuration replaces


@dataclass(frozen=True)
class Link:
    """One direction of the link between device and host, for one card."""

    bandwidth_bytes_per_s: int  # of large copies
    latency_ns: int  # fixed part of a copy


@dataclass(frozen=True)
class Network:
    """Network between cards, for one card."""

    bandwidth_bytes_per_s: int  # of one card, one direction, to all others together
    latency_ns: int  # of one step of a collective
    efficiency_permille: int  # fraction of the bandwidth that collectives reach, in thousandths
    # cards of a full mesh, in which each pair has a separate link: a group of n cards uses n - 1 of the
    # `num_mesh_cards` - 1 links of a card; 0 for a switch, where any group has the full bandwidth
    num_mesh_cards: int = 0


# Fields of a device whose own fields are figures.
_WAYS: Mapping[str, type[Link | Network]] = {
    "offload": Link,
    "prefetch": Link,
    "intranode": Network,
    "internode": Network,
}


@dataclass(frozen=True)
class Device:
    """One card and its place in a node."""

    name: str  # key of the file
    title: str  # product name
    sources: Mapping[str, str]  # name of a figure -> origin of its value
    # floating point operations per second, by dtype
    peak_flops: Mapping[str, int]
    vector_flops: Mapping[str, int]
    compute_permille: int
    weight_gradient_permille: int
    num_matrix_cores: int  # output tiles are distributed over the cores in full rounds
    attention_permille: int
    attention_grad_permille: int
    memory_bandwidth_bytes_per_s: int
    memory_permille: int
    cache_bytes: int
    cache_bandwidth_bytes_per_s: int
    # elements per second of kernels bound by the vector units, by kind (`graph.ops`); 0 if they are memory bound
    vector_rates: Mapping[str, int]
    op_latency_ns: Mapping[str, int]  # fixed cost of an operator, by kind
    launch_ns: int  # host time to launch a kernel; 0 if the host is always ahead of the device
    memory_bytes: int
    usable_memory_bytes: int
    margin_permille: int
    fragments_permille: int
    hccl_buffer_bytes: int
    kernel_workspace_bytes: int
    pool_alignment_bytes: int
    offload: Link  # D2H link
    prefetch: Link  # H2D link
    contended_permille: int
    num_cards_per_node: int
    host_memory_bytes: int
    host_bandwidth_bytes_per_s: int
    intranode: Network  # between cards of the same node
    internode: Network  # between cards of different nodes

    @property
    def leaves_fragments(self) -> bool:
        """Return whether the device's memory pool can fragment (no virtual memory mapping)."""
        return self.fragments_permille > 0


def with_fragments(device: Device, size_bytes: int) -> int:
    """Return the bytes that the pool takes for so many used bytes; `without_fragments` of it is at least that many."""
    return ceil_div(size_bytes * (1000 + device.fragments_permille), 1000)


def without_fragments(device: Device, size_bytes: int) -> int:
    """Return the usable bytes of so many bytes of the pool."""
    return size_bytes * 1000 // (1000 + device.fragments_permille)


_ROWS: list[dict[str, Any]] = package_data("hardware/figures.json")
FIGURES = {row["name"]: Figure(**row | {"kind": FigureKind[row["kind"].upper()]}) for row in _ROWS}
FRAGMENTS_PERMILLE = FIGURES["fragments"].default or 0  # median over the dry runs of benchmarks/dryrun
# Names of options and of keys in `mindswap:`; `memory` is the budget, the usable part.
OPTIONS = {"memory": FIGURES["usable_memory"], **FIGURES}


def with_figures(device: Device, values: Mapping[str, int], sources: Mapping[str, str]) -> Device:
    """Return the device with other figures, by their names in `FIGURES`."""
    return make_device(device.name, device.title, {**figure_values(device), **values}, {**device.sources, **sources})


def make_device(name: str, title: str, value: Mapping[str, int], sources: Mapping[str, str]) -> Device:
    """Build a device from figures, by their names in `FIGURES`."""
    parts: dict[str, Any] = {}
    for figure in FIGURES.values():
        field, _, key = figure.field.partition(".")
        if key:
            parts.setdefault(field, {})[key] = value[figure.name]
        else:
            parts[field] = value[figure.name]
    parts |= {field: kind(**parts[field]) for field, kind in _WAYS.items()}
    return Device(name, title, sources, **parts)


def figure_values(device: Device) -> dict[str, int]:
    """Return every figure of a device by its name in `FIGURES`, each in its smallest unit."""
    values = {}
    for figure in FIGURES.values():
        field, _, key = figure.field.partition(".")
        member = getattr(device, field)
        values[figure.name] = member if not key else member[key] if isinstance(member, dict) else getattr(member, key)
    return values
