"""What a block consists of: its operators, its tensors, and what it reads of other blocks."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mindswap.graph.names import Label
from mindswap.simulate.program import NO_OP, OpKind

__all__ = ["BlockOp", "BlockTensor", "Read", "Role", "Source", "Uses"]


@dataclass(frozen=True)
class Role:
    """Under what a tensor is known to another block: its type, and which of those of this type it is.

    Attributes:
        is_forward: made in forward.
        is_shared: read by many blocks, not only by a neighbour of the one that makes it.
    """

    shape: tuple[int, ...]
    dtype: str
    ordinal: int
    is_forward: bool
    is_shared: bool = False


class Source(Enum):
    """Where a tensor comes from that a block reads and does not make."""

    BEFORE = "the block before it in forward order"
    BEHIND = "the block behind it in forward order"
    SHARED = "made before the layers, read by all of them"


@dataclass(frozen=True)
class BlockOp:
    """One operator with its time.

    Attributes:
        label: operator path below the layer; for gradients that of the operator they are the gradient of.
        kind: forward, backward, recompute or collective.
        duration_ns: on the device.
        wait_op: position in the same pass of an operator on the other stream that must have ended; `NO_OP` for none.
        op: name of the primitive.
        wait_once: position in `Block.once` of an operator that must have ended; `NO_OP` for none.
        is_weight: a schedule may run it apart from the rest of backward: it works on gradients of weights only.
        piece_ns: durations for each piece of a cut sequence, where they differ; `duration_ns` is their mean then.
    """

    label: Label
    kind: OpKind
    duration_ns: int
    wait_op: int = NO_OP
    op: str = ""
    wait_once: int = NO_OP
    is_weight: bool = False
    piece_ns: tuple[int, ...] = ()


class Uses(NamedTuple):
    """Positions at which a block reads a tensor; `NO_OP` where it does not.

    Attributes:
        last_forward, first_backward, last_backward: in forward and backward.
        first_input, last_input: in backward by operators that are not `BlockOp.is_weight`.
        first_weight, last_weight: by those that are.
        last_once: in `Block.once`.
    """

    last_forward: int = NO_OP
    first_backward: int = NO_OP
    last_backward: int = NO_OP
    first_input: int = NO_OP
    last_input: int = NO_OP
    first_weight: int = NO_OP
    last_weight: int = NO_OP
    last_once: int = NO_OP


@dataclass(frozen=True)
class BlockTensor:
    """A tensor that the block makes.

    Attributes:
        label: who makes it.
        size_bytes: on the device.
        is_forward: made in forward.
        is_again: made by an operator that runs again.
        made_at: position of its maker in the pass.
        uses: where the block itself reads it.
        role: set where other blocks read it.
        prefetch: `backward_prefetch` of its copies.
        num_copies: how often it is copied, once for each name that is swapped; 0 where it is not; `ONE_WAY`.
        is_held: another name of it is not swapped, so it stays on the device all the same.
        is_once: made by an operator of `Block.once`, where `made_at` counts: all micro-batches read it.
        is_gradient: of a weight.
        is_final: stays until the optimizer.
    """

    label: Label
    size_bytes: int
    is_forward: bool
    is_again: bool
    made_at: int
    uses: Uses
    role: Role | None
    prefetch: int = 0
    num_copies: int = 0
    is_held: bool = False
    is_once: bool = False
    is_gradient: bool = False
    is_final: bool = False


@dataclass(frozen=True)
class Read:
    """A tensor of another block that this one reads."""

    source: Source
    role: Role
    size_bytes: int
    uses: Uses
