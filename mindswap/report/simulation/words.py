"""Words of the simulation reports, the same in every output."""

from collections.abc import Sequence
from enum import Enum

from mindswap.policy.words import name_indices
from mindswap.report.simulation.style import MEMORY_STYLES
from mindswap.simulator.summary_model import Cause, Holder, Moment, SimulationReport
from mindswap.simulator.timeline import StallCause
from mindswap.units import format_bytes, format_time

MAX_PIECES = 4  # of a list of layers, in words


class Head(Enum):
    """The figures that everybody asks for first, with their names."""

    STEP_TIME = "step time"
    TOKENS = "tokens/s per card"
    MFU = "MFU"
    PEAK = "peak memory"
    MOMENT = "peak is at"
    EXPOSED = "exposed copy time"
    HOST = "host memory"


def describe_place(layers: Sequence[int]) -> str:
    """`layers 0-3`, `outside the layers`, `layer 1 and outside the layers`; -1 stands for outside.

    A list of many pieces is only counted: `29 layers of 0-79`.
    """
    inside = [layer for layer in layers if layer >= 0]
    parts = [name_indices("layer", inside)] if inside else []
    if parts and parts[0].count(",") >= MAX_PIECES:
        parts = [f"{len(inside)} layers of {inside[0]}-{inside[-1]}"]
    if len(inside) < len(layers):
        parts.append("outside the layers")
    return " and ".join(parts)


def describe_moment(moment: Moment | None) -> str:
    """`backward of layer 3, micro-batch 0: ffn Mul`."""
    if moment is None:
        return "no operator"
    return f"{moment.phase}, {describe_place([moment.layer])}, micro-batch {moment.micro_batch}: {moment.label}"


def describe_holder(holder: Holder) -> str:
    """`attention.wq MatMul, layers 0-31, kept for backward`."""
    return f"{holder.label}, {describe_place(holder.layers)}, {MEMORY_STYLES[holder.kind].title}"


def describe_cause(cause: Cause) -> str:
    """`copy in of ffn Mul, layers 3-5`."""
    direction = "out" if cause.cause == StallCause.COPY_OUT else "in"
    return f"copy {direction} of {cause.label}, {describe_place(cause.layers)}"


def describe_budget(report: SimulationReport) -> str:
    """`fits in 54.0 GiB with 6.9 GiB to spare`; empty without a budget."""
    if report.budget_bytes is None:
        return ""
    budget, rest = format_bytes(report.budget_bytes), report.budget_bytes - report.peak_bytes
    if rest >= 0:
        return f"fits in {budget} with {format_bytes(rest)} to spare"
    return f"does NOT fit: {format_bytes(-rest)} more than {budget}"


def format_share(part: int, whole: int) -> str:
    """`3.1 %`; `-` where there is nothing."""
    return f"{100 * part / whole:.1f} %" if part and whole else "-"


def device_line(report: SimulationReport) -> str:
    """The device and its main figures in one line, for captions."""
    main = (f"{figure.name} {figure.value}" for figure in report.figures if figure.is_main)
    return f"{report.device_title}: " + ", ".join(main)


def headline(report: SimulationReport) -> tuple[tuple[Head, str, str], ...]:
    """The figures that everybody asks for first: (what, value, remark)."""
    stage = report.peak_stage
    which = f"stage {stage.stage}, " if len(report.stages) > 1 else ""
    when = format_time(stage.moment.time_ns) if stage.moment else "-"
    exposed = report.exposed_copy_ns
    share = f"{format_share(exposed, report.step_time_ns)} of the step" if exposed else ""
    host = format_bytes(max(stage.host_bytes for stage in report.stages))
    terms = [f"{format_time(term.duration_ns)} {term.name}" for term in report.terms if term.duration_ns]
    return (
        (Head.STEP_TIME, format_time(report.step_time_ns), f"of which {', '.join(terms)}" if terms else ""),
        (Head.TOKENS, f"{report.tokens_per_s:.0f}", f"{report.num_cards} cards" * (report.num_cards > 1)),
        (Head.MFU, f"{report.mfu:.1%}".replace("%", " %"), f"of {report.peak_flops / 1e12:.1f} TFLOPS per card"),
        (Head.PEAK, format_bytes(stage.peak_bytes), describe_budget(report)),
        (Head.MOMENT, when, which + describe_moment(stage.moment)),
        (Head.EXPOSED, format_time(exposed), share),
        (Head.HOST, host, f"pinned per card; {format_bytes(report.host_bytes_per_node)} per node"),
    )
