"""What a device file says, as data: each figure with its kind. Readers, options and messages share this table."""

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


FIGURES = {
    figure.name: figure
    for figure in (
        Figure("matrix_float16", FigureKind.FLOPS, "peak of the matrix units"),
        Figure("matrix_bfloat16", FigureKind.FLOPS, "peak of the matrix units"),
        Figure("matrix_float32", FigureKind.FLOPS, "peak of the matrix units"),
        Figure("vector_float16", FigureKind.FLOPS, "peak of the vector units"),
        Figure("vector_bfloat16", FigureKind.FLOPS, "peak of the vector units"),
        Figure("vector_float32", FigureKind.FLOPS, "peak of the vector units"),
        Figure("compute_fraction", FigureKind.FRACTION, "share of the peak that matrix products reach"),
        Figure("weight_gradient_fraction", FigureKind.FRACTION, "the same of products with a transposed first operand"),
        Figure(
            "num_matrix_cores",
            FigureKind.COUNT,
            "cores that share the output tiles of a product; 0 for any share",
            True,
        ),
        Figure("attention_fraction", FigureKind.FRACTION, "share of the peak that flash attention reaches"),
        Figure("attention_grad_fraction", FigureKind.FRACTION, "the same of its backward kernel"),
        Figure("memory_bandwidth", FigureKind.BANDWIDTH, "device memory"),
        Figure("memory_bandwidth_fraction", FigureKind.FRACTION, "share of the memory bandwidth that kernels reach"),
        Figure("cache_size", FigureKind.SIZE, "cache that all cores share; 0 for none", True),
        Figure(
            "cache_bandwidth", FigureKind.BANDWIDTH, "what kernels reach that move no more than the cache holds", True
        ),
        Figure("norm_rate", FigureKind.RATE, "RmsNorm and LayerNorm, if compute is the limit; 0 for memory only", True),
        Figure("norm_grad_rate", FigureKind.RATE, "their backward kernels", True),
        Figure("softmax_rate", FigureKind.RATE, "softmax, forward and backward", True),
        Figure("activation_rate", FigureKind.RATE, "SiLU and GeLU", True),
        Figure("activation_grad_rate", FigureKind.RATE, "their backward kernels", True),
        Figure("matrix_op_latency", FigureKind.TIME, "fixed cost of a matrix operator", True),
        Figure("vector_op_latency", FigureKind.TIME, "fixed cost of any other operator", True),
        Figure("communication_op_latency", FigureKind.TIME, "fixed cost of a collective", True),
        Figure("device_memory", FigureKind.SIZE, "memory of the card"),
        Figure("usable_memory", FigureKind.SIZE, "what MindSpore can take of it"),
        Figure("margin", FigureKind.FRACTION, "share of the usable memory that a plan leaves free by itself", True, 50),
        Figure("hccl_buffer", FigureKind.SIZE, "HCCL_BUFFSIZE; each communicator has two, outside the pool", True),
        Figure("kernel_workspace", FigureKind.SIZE, "what a kernel of the matrix units takes beside its tensors", True),
        Figure("pool_alignment", FigureKind.SIZE, "the memory of a tensor is a multiple of it"),
        Figure("d2h", FigureKind.BANDWIDTH, "copies from device to host, one card"),
        Figure("d2h_latency", FigureKind.TIME, "fixed part of a copy to the host", True),
        Figure("h2d", FigureKind.BANDWIDTH, "copies from host to device, one card"),
        Figure("h2d_latency", FigureKind.TIME, "fixed part of a copy from the host", True),
        Figure("contended_fraction", FigureKind.FRACTION, "rate of a copy while the other direction copies too"),
        Figure("num_cards_per_node", FigureKind.COUNT, "cards that share host memory"),
        Figure("host_memory", FigureKind.SIZE, "memory of a node"),
        Figure(
            "host_bandwidth", FigureKind.BANDWIDTH, "all cards of a node in one direction; 0 for no common limit", True
        ),
        Figure("intranode_bandwidth", FigureKind.BANDWIDTH, "one card to the others of its node"),
        Figure("intranode_latency", FigureKind.TIME, "one step of a collective within a node", True),
        Figure("num_mesh_cards", FigureKind.COUNT, "cards with a link between each two; 0 for a switch", True),
        Figure("internode_bandwidth", FigureKind.BANDWIDTH, "one card to other nodes"),
        Figure("internode_latency", FigureKind.TIME, "one step of a collective between nodes", True),
        Figure("collective_fraction", FigureKind.FRACTION, "share of intranode_bandwidth that collectives reach"),
        Figure("internode_fraction", FigureKind.FRACTION, "share of internode_bandwidth that collectives reach"),
    )
}
# Names of options and of keys in `mindswap:`; `memory` is the budget, the usable part.
OPTIONS = {"memory": FIGURES["usable_memory"], **FIGURES}


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
