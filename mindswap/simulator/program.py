"""Program of the simulator: operators of one step in issue order, copies, and memory intervals. Pure data.

Flat arrays, because a step of a pipeline has hundreds of thousands of operators. `simulator.program_builder` builds
them from captured layers; tests write them by hand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TypeVar

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.simulator.memory_parts import MemoryPart

NO_OP = -1  # "no operator" in an array of operator positions
ONE_WAY = -1  # number of copies of a tensor that is offloaded once and never prefetched


def copy_reference(copies: np.ndarray) -> np.ndarray:
    """Encode positions of copies for `Intervals`: negative, to tell them from positions of operators."""
    return ~copies


def copy_position(references: np.ndarray) -> np.ndarray:
    """Decode `copy_reference`; 0 where a value is the position of an operator."""
    return ~np.minimum(references, -1)


class OpKind(IntEnum):
    """Kind of an operator; the first three run on the compute stream, RECEIVE on the receiving stream.

    Collectives and sends share the communication stream. A receive does not block them, because a stage that waits for
    its neighbour must be able to send to it.
    """

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2  # forward operator that is recomputed in backward
    COLLECTIVE = 3  # tensor parallel communication
    SEND = 4  # sends a boundary tensor (activation or gradient) to another pipeline stage
    RECEIVE = 5  # waits for the boundary tensor of another stage

    @property
    def is_communication(self) -> bool:
        """Return whether the operator runs outside the compute stream."""
        return self >= OpKind.COLLECTIVE


class MemoryKind(IntEnum):
    """Purpose of activation memory on the device."""

    KEPT = 0  # saved for backward
    OFFLOADING = 1  # from production until the release after the offload
    PREFETCHED = 2  # from the start of the prefetch until the last use
    TRANSIENT = 3  # live within forward, or within backward
    RECOMPUTED = 4  # recomputed in backward
    GRADIENT = 5  # gradient of a weight


T = TypeVar("T", bound="Table")


class Table:
    """Base of tables: all fields are arrays of the same length, or None if a table has no such column."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def rows(self: T, selection: np.ndarray) -> T:
        """Return a table of the selected rows.

        Args:
            selection: boolean mask or positions.
        """
        columns = {name: None if column is None else column[selection] for name, column in vars(self).items()}
        return type(self)(**columns)


def join(tables: Sequence[T]) -> T:
    """Concatenate tables of the same type."""
    columns = {
        column.name: [getattr(table, column.name) for table in tables]
        for column in fields(tables[0])  # type: ignore[arg-type]
    }
    # A table may lack an optional column.
    return type(tables[0])(
        **{
            name: None if any(part is None for part in parts) else np.concatenate(parts)
            for name, parts in columns.items()
        }
    )


@dataclass(frozen=True, eq=False)
class Ops(Table):
    """Operators of all pipeline stages; those of a stage are consecutive, in issue order.

    All arrays have shape (num_ops,).
    """

    duration_ns: np.ndarray  # int64, at least 0
    kind: np.ndarray  # int8, `OpKind`
    # int64, position of the operator to wait for, `NO_OP` for none: an earlier one of the same stage, or any of another
    # stage. The order within a stream is implied
    wait_op: np.ndarray
    layer: np.ndarray  # int32, layer of the model; -1 outside the layers
    micro_batch: np.ndarray  # int32, micro-step: with split sequences the number of the piece over all micro-batches
    label: np.ndarray  # int32, index into `Program.labels`
    # int32, positions in the backend's order of execution up to the operator and after the previous one, which
    # `backward_prefetch` counts; None for one each
    positions: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Copies(Table):
    """Offloads of tensors with their prefetches; all arrays have shape (num_copies,).

    A stage has one stream for each direction. It executes offloads in the order of `producer_op` and prefetches in the
    order of `first_user_op`; ties are ordered by position in this table. A copy without prefetch has `in_ns` 0 and the
    last operator of the stage as its user.
    """

    size_bytes: np.ndarray  # int64
    out_ns: np.ndarray  # int64, duration of the offload on an idle link
    in_ns: np.ndarray  # int64, duration of the prefetch on an idle link
    producer_op: np.ndarray  # int64, the offload may start when it has ended
    # int64, at or after `producer_op`. No later compute operator starts before the offload has ended; the device memory
    # is free when both have ended. Operators of the communication stream do not wait
    release_op: np.ndarray
    # int64, the prefetch may start when it has ended; `NO_OP` if the prefetch waits for the offload only
    # (`backward_prefetch` exceeds the distance to the first user). May precede `producer_op`
    prefetch_op: np.ndarray
    first_user_op: np.ndarray  # int64, waits for the prefetch
    label: np.ndarray  # int32, index into `Program.labels`
    layer: np.ndarray  # int32
    micro_batch: np.ndarray  # int32


@dataclass(frozen=True, eq=False)
class Intervals(Table):
    """Lifetimes of activation memory; all arrays have shape (num_intervals,).

    Memory that is freed at a time is available to allocations at the same time. An interval must not end before it
    begins: if its ends depend on different streams, a dependency must order them.
    """

    size_bytes: np.ndarray  # int64
    # int64; an operator: allocated when it starts; a copy (`copy_reference`): when its prefetch starts
    begin: np.ndarray
    # int64; an operator: freed when it has ended; a copy (`copy_reference`): when its device memory is released
    end: np.ndarray
    kind: np.ndarray  # int8, `MemoryKind`
    part: np.ndarray  # int8, `MemoryPart`
    label: np.ndarray  # int32, index into `Program.labels`: the producer
    layer: np.ndarray  # int32, -1 outside the layers
    stage: np.ndarray  # int32


@dataclass(frozen=True, eq=False)
class Program:
    """One training step of all simulated pipeline stages."""

    stage_starts: np.ndarray  # first operator of each stage, and the number of operators last: shape (num_stages + 1,)
    ops: Ops
    copies: Copies
    intervals: Intervals
    labels: Sequence[Label]  # labels by number
    # rate of a copy while the other direction of the same stage is copying, in thousandths of the rate on an idle link
    contended_permille: int = 1000
    num_sequences: int = 1  # pieces that each sequence is split into
    # for each stage, the parts of its interval of the optimizer (`MemoryPart.OPTIMIZER_TEMPORARIES`), which begins when
    # other memory is freed: bytes that are added and, negative, freed; empty if a stage has none
    closing_parts: tuple[Mapping[MemoryPart, int], ...] = ()
    copies_stage: np.ndarray = field(init=False)  # derived: stage of each copy

    def __post_init__(self) -> None:
        stage = np.searchsorted(self.stage_starts, self.copies.producer_op, side="right") - 1
        object.__setattr__(self, "copies_stage", stage.astype(np.int64))

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.stage_starts) - 1
