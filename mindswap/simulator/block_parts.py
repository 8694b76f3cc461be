"""What a block consists of: its operators, its tensors, and what it reads of other blocks."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mindswap.graph.memory import Label
from mindswap.simulator.program import NO_OP, OpKind


@dataclass(frozen=True)
class Role:
    """Under what a tensor is known to another block: its type, and which of those of this type it is."""

    shape: tuple[int, ...]
    dtype: str
    ordinal: int
    is_forward: bool  # made in forward
    is_shared: bool = False  # read by many blocks, not only by a neighbour of the one that makes it


class Source(Enum):
    """Where a tensor comes from that a block reads and does not make."""

    BEFORE = "the block before it in forward order"
    BEHIND = "the block behind it in forward order"
    SHARED = "made before the layers, read by all of them"


@dataclass(frozen=True)
class BlockOp:
    """One operator with its time."""

    label: Label  # operator path below the layer; for gradients that of the operator they are the gradient of
    kind: OpKind  # forward, backward, recompute or collective
    duration_ns: int  # on the device
    # position in the same pass of an operator on the other stream that must have ended; `NO_OP` for none
    wait_op: int = NO_OP
    op: str = ""  # name of the primitive
    wait_once: int = NO_OP  # position in `Block.once` of an operator that must have ended; `NO_OP` for none
    # a schedule may run it apart from the rest of backward: it works on gradients of weights only
    is_weight: bool = False
    # durations for each piece of a cut sequence, where they differ; `duration_ns` is their mean then
    piece_ns: tuple[int, ...] = ()


class Uses(NamedTuple):
    """Positions at which a block reads a tensor; `NO_OP` where it does not."""

    last_forward: int = NO_OP
    first_backward: int = NO_OP
    last_backward: int = NO_OP
    first_input: int = NO_OP  # in backward by operators that are not `BlockOp.is_weight`
    last_input: int = NO_OP
    first_weight: int = NO_OP  # in backward by those that are
    last_weight: int = NO_OP
    last_once: int = NO_OP  # in `Block.once`


@dataclass(frozen=True)
class BlockTensor:
    """A tensor that the block makes."""

    label: Label  # who makes it
    size_bytes: int  # on the device
    is_forward: bool  # made in forward
    is_again: bool  # made by an operator that runs again
    made_at: int  # position of its maker in the pass
    uses: Uses  # where the block itself reads it
    role: Role | None  # set where other blocks read it
    prefetch: int = 0  # `backward_prefetch` of its copies
    num_copies: int = 0  # how often it is copied, once for each name that is swapped; 0 where it is not; `ONE_WAY`
    is_held: bool = False  # another name of it is not swapped, so it stays on the device all the same
    is_once: bool = False  # made by an operator of `Block.once`, where `made_at` counts: all micro-batches read it
    is_gradient: bool = False  # of a weight
    is_final: bool = False  # stays until the optimizer
    is_early: bool = False  # there from the begin of the pass on


@dataclass(frozen=True)
class Read:
    """A tensor of another block that this one reads."""

    source: Source
    role: Role
    size_bytes: int
    uses: Uses
