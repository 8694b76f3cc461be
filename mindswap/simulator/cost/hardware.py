"""A device as data. All that is known of a figure stands at the field of `Device` that it is."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from decimal import Decimal
from enum import Enum
from typing import Any

from mindswap.units import BANDWIDTH_UNITS, FLOPS_UNITS, RATE_UNITS, SIZE_UNITS, TIME_UNITS, ceil_div, parse_quantity


class FigureKind(Enum):
    """Quantity that a figure measures."""

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


SET_BY_USER = "set by the user"  # source of a figure that an option or a configuration replaces
DTYPES = ("float16", "bfloat16", "float32")
FRAGMENTS_PERMILLE = 90  # what a pool that maps no pages loses: median over the dry runs of benchmarks/dryrun
_K = FigureKind


@dataclass(frozen=True)
class Link:
    """One direction of the way between device and host, as one card sees it."""

    bandwidth_bytes_per_s: int  # of large copies
    latency_ns: int  # fixed part of a copy


@dataclass(frozen=True)
class Network:
    """Network between cards, as one card sees it."""

    bandwidth_bytes_per_s: int  # of one card, one direction, to all others together
    latency_ns: int  # of one step of a collective
    efficiency_permille: int  # share of the bandwidth that collectives reach, in thousandths
    # cards with a link of their own between each two (full mesh): a group of n of them has n - 1 of the
    # `num_mesh_cards` - 1 links of a card; 0 for a switch, where a group has all
    num_mesh_cards: int = 0


@dataclass(frozen=True)
class _Part:
    """How a field of a device and its figures hang together."""

    figures: tuple[Figure, ...]
    made_of: Callable[[Sequence[int]], Any]  # the field, of the values of its figures
    values_of: Callable[[Any], Iterable[int]]  # and back; what no figure says comes last


def _part(*part: Any) -> Any:
    return field(metadata={"part": _Part(*part)})


def _figure(name: str, kind: FigureKind, meaning: str, may_be_zero: bool = False, default: int | None = None) -> Any:
    """A field that is one figure."""
    figure = Figure(name, kind, meaning, may_be_zero, default)
    return _part((figure,), lambda values: values[0], lambda value: (value,))


def _figures(by_key: Mapping[str, Figure]) -> Any:
    """A field that has a figure under each key."""
    figures = tuple(by_key.values())
    return _part(figures, lambda values: dict(zip(by_key, values, strict=True)), lambda value: map(value.get, by_key))


def _way(kind: type[Link | Network], *figures: Figure) -> Any:
    """A field whose own fields are figures, in order."""
    return _part(figures, lambda values: kind(*values), astuple)


@dataclass(frozen=True)
class Device:
    """One card and its place in a node."""

    name: str  # key of the file
    title: str  # as people call it
    sources: Mapping[str, str]  # where each figure is from, by its name
    # floating point operations per second, by dtype
    peak_flops: Mapping[str, int] = _figures(
        {dtype: Figure(f"matrix_{dtype}", _K.FLOPS, "peak of the matrix units") for dtype in DTYPES}
    )
    vector_flops: Mapping[str, int] = _figures(
        {dtype: Figure(f"vector_{dtype}", _K.FLOPS, "peak of the vector units") for dtype in DTYPES}
    )
    compute_permille: int = _figure("compute_fraction", _K.FRACTION, "share of the peak that matrix products reach")
    weight_gradient_permille: int = _figure(
        "weight_gradient_fraction", _K.FRACTION, "the same of products with a transposed first operand"
    )
    # the tiles go over the cores in whole rounds
    num_matrix_cores: int = _figure(
        "num_matrix_cores", _K.COUNT, "cores that share the output tiles of a product; 0 for any share", True
    )
    attention_permille: int = _figure(
        "attention_fraction", _K.FRACTION, "share of the peak that flash attention reaches"
    )
    attention_grad_permille: int = _figure("attention_grad_fraction", _K.FRACTION, "the same of its backward kernel")
    memory_bandwidth_bytes_per_s: int = _figure("memory_bandwidth", _K.BANDWIDTH, "device memory")
    memory_permille: int = _figure(
        "memory_bandwidth_fraction", _K.FRACTION, "share of the memory bandwidth that kernels reach"
    )
    cache_bytes: int = _figure("cache_size", _K.SIZE, "cache that all cores share; 0 for none", True)
    cache_bandwidth_bytes_per_s: int = _figure(
        "cache_bandwidth", _K.BANDWIDTH, "what kernels reach that move no more than the cache holds", True
    )
    # elements per second of kernels that the vector units bound, by kind (`graph.ops`); 0 where only memory bounds them
    vector_rates: Mapping[str, int] = _figures(
        {
            kind: Figure(f"{kind}_rate", _K.RATE, meaning, True)
            for kind, meaning in (
                ("norm", "RmsNorm and LayerNorm, if compute is the limit; 0 for memory only"),
                ("norm_grad", "their backward kernels"),
                ("softmax", "softmax, forward and backward"),
                ("activation", "SiLU and GeLU"),
                ("activation_grad", "their backward kernels"),
            )
        }
    )
    # fixed cost of an operator, by kind
    op_latency_ns: Mapping[str, int] = _figures(
        {
            kind: Figure(f"{kind}_op_latency", _K.TIME, f"fixed cost of {what}", True)
            for kind, what in (
                ("matrix", "a matrix operator"),
                ("vector", "any other operator"),
                ("communication", "a collective"),
            )
        }
    )
    memory_bytes: int = _figure("device_memory", _K.SIZE, "memory of the card")
    usable_memory_bytes: int = _figure("usable_memory", _K.SIZE, "what MindSpore can take of it")
    margin_permille: int = _figure(
        "margin", _K.FRACTION, "share of the usable memory that a plan leaves free by itself", True, 50
    )
    fragments_permille: int = _figure(
        "fragments", _K.FRACTION, "what the pool loses in fragments; 0 where it maps pages", True, FRAGMENTS_PERMILLE
    )
    hccl_buffer_bytes: int = _figure(
        "hccl_buffer", _K.SIZE, "HCCL_BUFFSIZE; each communicator has two, outside the pool", True
    )
    kernel_workspace_bytes: int = _figure(
        "kernel_workspace", _K.SIZE, "what a kernel of the matrix units takes beside its tensors", True
    )
    pool_alignment_bytes: int = _figure("pool_alignment", _K.SIZE, "the memory of a tensor is a multiple of it")
    # to the host (D2H), and back (H2D)
    offload: Link = _way(
        Link,
        Figure("d2h", _K.BANDWIDTH, "copies from device to host, one card"),
        Figure("d2h_latency", _K.TIME, "fixed part of a copy to the host", True),
    )
    prefetch: Link = _way(
        Link,
        Figure("h2d", _K.BANDWIDTH, "copies from host to device, one card"),
        Figure("h2d_latency", _K.TIME, "fixed part of a copy from the host", True),
    )
    contended_permille: int = _figure(
        "contended_fraction", _K.FRACTION, "rate of a copy while the other direction copies too"
    )
    num_cards_per_node: int = _figure("num_cards_per_node", _K.COUNT, "cards that share host memory")
    host_memory_bytes: int = _figure("host_memory", _K.SIZE, "memory of a node")
    host_bandwidth_bytes_per_s: int = _figure(
        "host_bandwidth", _K.BANDWIDTH, "all cards of a node in one direction; 0 for no common limit", True
    )
    # between cards of a node, and of different nodes
    intranode: Network = _way(
        Network,
        Figure("intranode_bandwidth", _K.BANDWIDTH, "one card to the others of its node"),
        Figure("intranode_latency", _K.TIME, "one step of a collective within a node", True),
        Figure("collective_fraction", _K.FRACTION, "share of intranode_bandwidth that collectives reach"),
        Figure("num_mesh_cards", _K.COUNT, "cards with a link between each two; 0 for a switch", True),
    )
    internode: Network = _way(
        Network,
        Figure("internode_bandwidth", _K.BANDWIDTH, "one card to other nodes"),
        Figure("internode_latency", _K.TIME, "one step of a collective between nodes", True),
        Figure("internode_fraction", _K.FRACTION, "share of internode_bandwidth that collectives reach"),
    )

    @property
    def leaves_fragments(self) -> bool:
        """Its memory pool maps no pages."""
        return self.fragments_permille > 0


def with_fragments(device: Device, size_bytes: int) -> int:
    """Bytes that the pool takes for so much that is used: `without_fragments` gives no less than that again."""
    return ceil_div(size_bytes * (1000 + device.fragments_permille), 1000)


def without_fragments(device: Device, size_bytes: int) -> int:
    """Bytes of so much memory that can be used."""
    return size_bytes * 1000 // (1000 + device.fragments_permille)


_PARTS: dict[str, _Part] = {each.name: each.metadata["part"] for each in fields(Device) if each.metadata}
FIGURES = {figure.name: figure for part in _PARTS.values() for figure in part.figures}
# Names of options and of keys in `mindswap:`; `memory` is the budget, the usable part.
OPTIONS = {"memory": FIGURES["usable_memory"], **FIGURES}


def with_figures(device: Device, values: Mapping[str, int], sources: Mapping[str, str]) -> Device:
    """The device with other figures, by their names in `FIGURES`."""
    return make_device(device.name, device.title, {**figure_values(device), **values}, {**device.sources, **sources})


def make_device(name: str, title: str, value: Mapping[str, int], sources: Mapping[str, str]) -> Device:
    """A device of figures by their names in `FIGURES`."""
    made = {key: part.made_of([value[figure.name] for figure in part.figures]) for key, part in _PARTS.items()}
    return Device(name, title, sources, **made)


def figure_values(device: Device) -> dict[str, int]:
    """Every figure of a device by its name in `FIGURES`, each in its smallest unit."""
    return {
        figure.name: value
        for key, part in _PARTS.items()
        for figure, value in zip(part.figures, part.values_of(getattr(device, key)), strict=False)
    }
