"""Convert a timeline to bars: every operator, copy and wait of a stage, with titles and colours for pictures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from mindswap.files import package_data
from mindswap.simulator.program import MemoryKind, OpKind
from mindswap.simulator.report_data import SimulationReport
from mindswap.simulator.timeline import StallCause, Timeline, find_waits


class Lane(IntEnum):
    """Lane of a bar in a picture of the streams of a stage."""

    COMPUTE = 0
    COMMUNICATION = 1
    RECEIVING = 2
    COPY_OUT = 3
    COPY_IN = 4

    @property
    def title(self) -> str:
        """Title of the lane."""
        return ("compute", "communication", "receiving", "offload (D2H)", "prefetch (H2D)")[self]


class BarKind(IntEnum):
    """Kind of a bar."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2
    COLLECTIVE = 3
    BETWEEN_STAGES = 4
    COPY_OUT = 5
    COPY_IN = 6
    WAIT_COPY_OUT = 7
    WAIT_COPY_IN = 8
    WAIT_COMMUNICATION = 9
    BUBBLE = 10
    TERM = 11

    @property
    def is_wait(self) -> bool:
        """Return whether the bar is idle time: a wait or a bubble."""
        return BarKind.WAIT_COPY_OUT <= self <= BarKind.BUBBLE


@dataclass(frozen=True)
class Style:
    """Title of one kind, and its colours on light and dark pages."""

    title: str
    light: str
    dark: str


_STYLES = package_data("report/styles.json")
BAR_STYLES = {kind: Style(*_STYLES["bars"][kind.name]) for kind in BarKind}
# In stacking order from bottom to top, above static memory.
MEMORY_STYLES = {MemoryKind[name]: Style(*style) for name, style in _STYLES["memory"].items()}
# Static memory, memory budget, and curves of dry runs drawn over the simulated memory.
STATIC, BUDGET, DRY_RUN, OTHER_DRY_RUN = (Style(*style) for style in _STYLES["others"].values())


Column = np.ndarray | int
# Fields of a bar; the bars of a stage are sorted by lane and start.
# lane, kind: `Lane`, `BarKind`; start_ns, end_ns: from the start of the step; busy_ns: total time of the joined bars;
# label: index into `Program.labels` of the first joined bar, for a wait of the awaited operator, -1 without a label;
# layer, micro_batch: -1 outside of the layers or if several were joined; count: number of joined bars;
# size_bytes: bytes of copies.
_FIELDS = ["lane", "kind", "start_ns", "end_ns", "busy_ns", "label", "layer", "micro_batch", "count", "size_bytes"]
BAR = np.dtype([(name, np.int64) for name in _FIELDS])
Bars = np.recarray

_OF_OP = {
    OpKind.FORWARD: (Lane.COMPUTE, BarKind.FORWARD),
    OpKind.BACKWARD: (Lane.COMPUTE, BarKind.BACKWARD),
    OpKind.RECOMPUTE: (Lane.COMPUTE, BarKind.RECOMPUTE),
    OpKind.COLLECTIVE: (Lane.COMMUNICATION, BarKind.COLLECTIVE),
    OpKind.SEND: (Lane.COMMUNICATION, BarKind.BETWEEN_STAGES),
    OpKind.RECEIVE: (Lane.RECEIVING, BarKind.BETWEEN_STAGES),
}
_OF_STALL = {
    StallCause.COPY_OUT: (Lane.COMPUTE, BarKind.WAIT_COPY_OUT),
    StallCause.COPY_IN: (Lane.COMPUTE, BarKind.WAIT_COPY_IN),
    StallCause.COMMUNICATION: (Lane.COMPUTE, BarKind.WAIT_COMMUNICATION),
    StallCause.PIPELINE: (Lane.COMPUTE, BarKind.BUBBLE),
}


def list_bars(timeline: Timeline, stage: int) -> Bars:
    """Return a bar for each operator, copy and wait of a stage with a duration above zero."""
    program = timeline.program
    ops, copies = program.ops, program.copies
    ops_of_stage = np.arange(program.stage_starts[stage], program.stage_starts[stage + 1])
    copies_of_stage = np.flatnonzero(program.copies_stage == stage)
    lane, kind = _translate(_OF_OP, ops.kind[ops_of_stage])
    is_communication = ops.kind[ops_of_stage] >= OpKind.COLLECTIVE
    run = ops.label[ops_of_stage], ops.layer[ops_of_stage], ops.micro_batch[ops_of_stage] // program.num_sequences
    copied = (
        copies.label[copies_of_stage],
        copies.layer[copies_of_stage],
        copies.micro_batch[copies_of_stage] // program.num_sequences,
        copies.size_bytes[copies_of_stage],
    )
    end = np.array([timeline.op_end_ns[ops_of_stage[~is_communication]].max(initial=0)])
    parts = (
        _part(lane, kind, timeline.op_start_ns[ops_of_stage], timeline.op_end_ns[ops_of_stage], *run),
        _stalls(timeline, stage),
        _part(
            Lane.COPY_OUT,
            BarKind.COPY_OUT,
            timeline.out_start_ns[copies_of_stage],
            timeline.out_end_ns[copies_of_stage],
            *copied,
        ),
        _part(
            Lane.COPY_IN,
            BarKind.COPY_IN,
            timeline.in_start_ns[copies_of_stage],
            timeline.in_end_ns[copies_of_stage],
            *copied,
        ),
        # A stage that ends before the step does has a bubble at its end.
        _part(
            lane=Lane.COMPUTE,
            kind=BarKind.BUBBLE,
            start_ns=end,
            end_ns=np.array([timeline.step_time_ns]),
            label=-1,
            layer=-1,
            micro_batch=-1,
        ),
    )
    bars = np.rec.fromarrays([np.concatenate(column) for column in zip(*parts, strict=True)], dtype=BAR)
    bars = bars[bars.end_ns > bars.start_ns]
    return bars[np.lexsort((bars.start_ns, bars.lane))]


def _stalls(timeline: Timeline, stage: int) -> list[np.ndarray]:
    """Return columns of the waits of the compute stream, labelled with the awaited operator or copy."""
    program = timeline.program
    stalled, begin_ns, end_ns, cause = find_waits(timeline, stage)
    lane, kind = _translate(_OF_STALL, cause)
    copy, wait_op = timeline.stall_copy[stalled], program.ops.wait_op[stalled]
    is_copy = (copy >= 0) & ((cause == StallCause.COPY_OUT) | (cause == StallCause.COPY_IN))
    # The arrays may be empty, so -1 ("none") gets an entry of its own at the end.
    label_of_copy = np.append(program.copies.label, -1)[np.where(is_copy, copy, -1)]
    layer_of_copy = np.append(program.copies.layer, -1)[np.where(is_copy, copy, -1)]
    return _part(
        lane=lane,
        kind=kind,
        start_ns=begin_ns,
        end_ns=end_ns,
        label=np.where(is_copy, label_of_copy, np.where(wait_op >= 0, program.ops.label[wait_op], -1)),
        layer=np.where(is_copy, layer_of_copy, program.ops.layer[stalled]),
        micro_batch=program.ops.micro_batch[stalled] // program.num_sequences,
    )


def _part(
    lane: Column,
    kind: Column,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    label: Column,
    layer: Column,
    micro_batch: Column,
    size_bytes: Column = 0,
) -> list[np.ndarray]:
    """Return the columns of `BAR` for some bars; scalars are broadcast."""
    columns = (lane, kind, start_ns, end_ns, end_ns - start_ns, label, layer, micro_batch, 1, size_bytes)
    return [np.broadcast_to(np.asarray(column, np.int64), start_ns.shape) for column in columns]


def _translate(table: Mapping[Any, tuple[Lane, BarKind]], codes: np.ndarray) -> np.ndarray:
    """Return lane and kind of each code, shape (2, num_codes); codes that are not in the table become bubbles."""
    lookup = np.repeat([[Lane.COMPUTE], [BarKind.BUBBLE]], max(table) + 1, axis=1)
    lookup[:, list(table)] = list(zip(*table.values(), strict=True))
    return lookup[:, codes]


AFTER = len(Lane)  # lane of the work after the last operator


@dataclass(frozen=True)
class NamedBar:
    """Bar with its name, for traces."""

    lane: int  # a `Lane`, or `AFTER`
    kind: BarKind
    start_ns: int
    duration_ns: int
    name: str
    layer: int = -1  # -1 outside of the layers or for several layers
    micro_batch: int = -1
    size_bytes: int = 0


def name_bars(report: SimulationReport, stage: int) -> Iterator[NamedBar]:
    """Yield every bar of a stage by lane and start, then the work after the last operator."""
    bars, labels = list_bars(report.timeline, stage), report.timeline.program.labels
    for lane, code, start_ns, end_ns, _, label, layer, micro_batch, _, size_bytes in bars.tolist():
        kind = BarKind(code)
        words = [BAR_STYLES[kind].title] if kind.is_wait or label < 0 else []
        words += [str(labels[label])] if label >= 0 else []
        yield NamedBar(
            lane=lane,
            kind=kind,
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            name=": ".join(words),
            layer=layer,
            micro_batch=micro_batch,
            size_bytes=size_bytes,
        )
    end_ns = report.timeline.step_time_ns
    for term in (term for term in report.terms if term.duration_ns):
        yield NamedBar(AFTER, BarKind.TERM, end_ns, term.duration_ns, term.name)
        end_ns += term.duration_ns


def find_kinds(report: SimulationReport, bars: Sequence[Bars]) -> list[BarKind]:
    """Return the kinds of bars that occur, for the legend."""
    present = {int(kind) for part in bars for kind in np.unique(part.kind)}
    if any(term.duration_ns for term in report.terms):
        present.add(int(BarKind.TERM))
    return [kind for kind in BarKind if kind in present]
