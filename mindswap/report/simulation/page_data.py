"""What the script of the HTML report draws: bars and memory of every stage as short columns of integers."""

from typing import Any

import numpy as np

from mindswap.report.simulation.bars import Bars, find_kinds
from mindswap.report.simulation.detail import fit_bars, sample_memory
from mindswap.report.simulation.style import BAR_STYLES, MEMORY_STYLES, BarKind, Lane
from mindswap.report.simulation.words import describe_moment
from mindswap.simulator.summary_model import SimulationReport, StageReport
from mindswap.units import format_bytes

MAX_BARS = 20_000  # all stages; about 40 bytes each
MAX_POINTS = 8_000  # of memory, all stages
MIN_POINTS = 500  # of memory, each stage
MEMORY_BITS = 18  # of the peak; the unit is a power of two, as most sizes are multiples of one


def page_data(report: SimulationReport) -> dict[str, Any]:
    """Plain data; times in ns, memory in units of `memory_unit_bytes`, starts as differences to the one before."""
    bars = fit_bars(report.timeline, [stage.stage for stage in report.stages], MAX_BARS)
    labels = sorted({int(label) for part in bars for label in np.unique(part.label) if label >= 0})
    # -1, no label, is the last entry.
    number = np.full(len(report.timeline.program.labels) + 1, -1)
    number[labels] = np.arange(len(labels))
    unit_bytes = 1 << max(0, report.peak_bytes.bit_length() - MEMORY_BITS)
    num_points = max(MIN_POINTS, MAX_POINTS // len(report.stages))
    return {
        "step_ns": report.step_time_ns,
        "timeline_ns": report.timeline.step_time_ns,
        "terms": [[term.name, term.duration_ns] for term in report.terms if term.duration_ns],
        "budget_bytes": report.budget_bytes,
        "memory_unit_bytes": unit_bytes,
        "peak_stage": report.peak_stage.stage,
        "lanes": [lane.title for lane in Lane],
        "bar_titles": [BAR_STYLES[kind].title for kind in BarKind],
        "bar_kinds": [int(kind) for kind in find_kinds(report, bars)],
        "first_wait": int(BarKind.WAIT_COPY_OUT),
        "bubble": int(BarKind.BUBBLE),
        "memory_kinds": [[int(kind), style.title] for kind, style in MEMORY_STYLES.items()],
        "labels": [str(report.timeline.program.labels[label]) for label in labels],
        "stages": [
            _stage_data(report, stage, part, number, unit_bytes, num_points)
            for stage, part in zip(report.stages, bars, strict=True)
        ],
    }


def _stage_data(
    report: SimulationReport, stage: StageReport, bars: Bars, number: np.ndarray, unit_bytes: int, num_points: int
) -> dict[str, Any]:
    time_ns, by_kind = sample_memory(stage.memory, report.step_time_ns, num_points)
    duration_ns = bars.end_ns - bars.start_ns
    return {
        "stage": stage.stage,
        "static_bytes": stage.static_bytes,
        "peak_ns": stage.memory.peak_ns,
        "peak_bytes": stage.peak_bytes,
        "peak_words": f"peak {format_bytes(stage.peak_bytes)}",
        "peak_moment": describe_moment(stage.moment),
        "bars": {
            "lane": bars.lane.tolist(),
            "kind": bars.kind.tolist(),
            "start": np.diff(bars.start_ns, prepend=0).tolist(),
            "duration": duration_ns.tolist(),
            "idle": (duration_ns - bars.busy_ns).tolist(),
            "label": number[bars.label].tolist(),
            "layer": bars.layer.tolist(),
            "micro_batch": bars.micro_batch.tolist(),
            "count": bars.count.tolist(),
            "size": bars.size_bytes.tolist(),
        },
        "memory": {
            "time": np.diff(time_ns, prepend=0).tolist(),
            "kinds": [(by_kind[kind] // unit_bytes).tolist() for kind in MEMORY_STYLES],
        },
    }
