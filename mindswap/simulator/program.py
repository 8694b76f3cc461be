"""Program of the simulator: the operators of one step in issue order, their copies, their memory. Pure data.

Flat arrays, because a step of a pipeline has hundreds of thousands of operators. `simulator.program_builder` makes
them from captured layers; tests make them by hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label

NO_OP = -1  # "no operator" in an array of operator positions
ONE_WAY = -1  # number of copies of a tensor that is copied out once and never comes back


class OpKind(IntEnum):
    """Kind of an operator; the first three run on the compute stream, RECEIVE on one of its own.

    Collectives and sends share the communication stream. A receive does not hold them up: a stage that waits for
    its neighbour must be able to send to it.
    """

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2  # a forward operator that backward runs again
    COLLECTIVE = 3  # tensor parallel communication
    SEND = 4  # hands an activation or a gradient to another pipeline stage
    RECEIVE = 5  # waits for it

    @property
    def is_communication(self) -> bool:
        """Does not run on the compute stream."""
        return self >= OpKind.COLLECTIVE


class MemoryKind(IntEnum):
    """Purpose of a piece of activation memory, while it is on the device."""

    KEPT = 0  # waits for backward
    OFFLOADING = 1  # made, to be copied out; ends when it is released
    PREFETCHED = 2  # copied in, from the start of the copy to its last use
    TRANSIENT = 3  # lives within forward, or within backward
    RECOMPUTED = 4  # made again in backward
    GRADIENT = 5  # of a weight


T = TypeVar("T", bound="Table")


class Table:
    """Columns of the same length."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def rows(self: T, which: np.ndarray) -> T:
        """Some of its rows."""
        return type(self)(**{name: column[which] for name, column in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Ops(Table):
    """Operators of all pipeline stages; those of a stage are consecutive, in the order in which it issues them.

    All arrays have shape (num_ops,).
    """

    duration_ns: np.ndarray  # int64, at least 0
    kind: np.ndarray  # int8, `OpKind`
    # int64, position of an operator that must have ended first, `NO_OP` for none: an earlier one of the same stage, or
    # any of another. The order within a stream goes without saying
    wait_op: np.ndarray
    layer: np.ndarray  # int32, layer of the model; -1 outside the layers
    micro_batch: np.ndarray  # int32; where sequences are cut, the number of the piece, over all micro-batches
    label: np.ndarray  # int32, index into `Program.labels`


@dataclass(frozen=True, eq=False)
class Copies(Table):
    """Tensors that leave the device and come back, once each; shape (num_copies,).

    What never comes back has no time for it, and the last operator of the stage as its user.

    Copies out of a stage run one after another in the order of `producer_op`, copies in in the order of
    `first_user_op` (ties by position here). A stage has one stream for each direction.
    """

    size_bytes: np.ndarray  # int64
    out_ns: np.ndarray  # int64, to the host on an otherwise idle link
    in_ns: np.ndarray  # int64, and back
    producer_op: np.ndarray  # int64, the copy out may start when it has ended
    # int64, not before `producer_op`. No compute operator after it starts before the copy out has ended; the memory is
    # free when both have ended. Operators of the communication stream do not wait
    release_op: np.ndarray
    # int64, the copy in may start when it has ended; `NO_OP` where nothing holds it back but the copy out
    # (backward_prefetch larger than the way to the first user). May come before `producer_op`
    prefetch_op: np.ndarray
    first_user_op: np.ndarray  # int64, waits for the copy in
    label: np.ndarray  # int32, index into `Program.labels`
    layer: np.ndarray  # int32
    micro_batch: np.ndarray  # int32


@dataclass(frozen=True, eq=False)
class Intervals(Table):
    """Times during which activation memory is taken; shape (num_intervals,).

    What ends at a moment makes room for what begins at it. An interval must not end before it begins: where
    they are on different streams, something must wait.
    """

    size_bytes: np.ndarray  # int64
    # int64; an operator position: taken when the operator starts; `~c` (negative): taken when copy c starts to come in
    begin: np.ndarray
    # int64; an operator position: free when the operator has ended; `~c`: free when copy c is released in forward
    end: np.ndarray
    kind: np.ndarray  # int8, `MemoryKind`
    label: np.ndarray  # int32, index into `Program.labels`: who made it
    layer: np.ndarray  # int32, -1 outside the layers
    stage: np.ndarray  # int32


@dataclass(frozen=True, eq=False)
class Program:
    """One training step of all simulated pipeline stages."""

    stage_starts: np.ndarray  # first operator of each stage, and the number of operators last: shape (num_stages + 1,)
    ops: Ops
    copies: Copies
    intervals: Intervals
    labels: Sequence[Label]  # names that `label` arrays point to
    # rate of a copy while the other direction of the same stage copies too, in thousandths of its rate alone
    contended_permille: int = 1000
    num_sequences: int = 1  # pieces that each sequence is cut into
    copies_stage: np.ndarray = field(init=False)  # derived: stage of each copy

    def __post_init__(self) -> None:
        stage = np.searchsorted(self.stage_starts, self.copies.producer_op, side="right") - 1
        object.__setattr__(self, "copies_stage", stage.astype(np.int64))

    @property
    def num_stages(self) -> int:
        """Return the number of pipeline stages."""
        return len(self.stage_starts) - 1
