"""Parts of a block: its operators, its tensors, and what it reads of other blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from mindswap.graph.memory import Label
from mindswap.graph.model import TensorType
from mindswap.graph.sharding.overlap import RING, RingKernel, Round
from mindswap.graph.work import Work
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
    is_early_later: bool = False  # likewise in every micro-batch but the first


@dataclass(frozen=True)
class Read:
    """A tensor of another block that this one reads."""

    source: Source
    role: Role
    size_bytes: int
    uses: Uses


# Ring attention as operators of a block: an exchange goes on while attention of what has come is computed.


def ring_ops(
    op: BlockOp, rounds: Sequence[Round], begin: int, time_ns: Callable[[Work, str], int], exchange_ns: int
) -> list[BlockOp]:
    """The operators that stand for one attention.

        compute   concat | attention 0 | split, concat | attention 1 ... | split | attention n - 1, join
        links            | exchange 0        |         | exchange 1 ...    |

    Args:
        op: the attention as one operator.
        rounds: from `list_rounds`.
        begin: position of the first of them.
        time_ns: time of a kernel of the given work and primitive.
        exchange_ns: time of one exchange.
    """
    ops: list[BlockOp] = []
    wait_op = op.wait_op

    def compute(duration_ns: int, wait: int) -> None:
        ops.append(replace(op, duration_ns=duration_ns, wait_op=wait))

    for one in rounds:
        if one.before:
            compute(_kernels_ns(one.before, time_ns), wait_op)
            wait_op = NO_OP
        for _ in range(one.num_exchanges):
            ops.append(BlockOp(f"{op.label} {RING}", OpKind.COLLECTIVE, exchange_ns, begin + len(ops) - 1, RING))
        attention_ns = time_ns(Work(one.flops, 0, 0), op.op)
        compute(attention_ns + _kernels_ns(one.after, time_ns), wait_op)
        # The next round begins with what this exchange brings.
        sent = [at for at, entry in enumerate(ops) if entry.kind is OpKind.COLLECTIVE]
        wait_op = begin + sent[-1] if sent else NO_OP
    return ops


def ring_buffers(operands: Sequence[TensorType], is_forward: bool) -> int:
    """Bytes that are there while it runs, beside operands and results.

    Forward: keys and values that are used and those that come, and the result of a round. Backward: the same for their
    gradients, and the gradient of queries of a round.
    """
    query, pair = operands[0].size_bytes, operands[1].size_bytes + operands[2].size_bytes
    return (2 if is_forward else 4) * pair + query


def _kernels_ns(kernels: Sequence[RingKernel], time_ns: Callable[[Work, str], int]) -> int:
    return sum(time_ns(Work(0, kernel.moved_bytes, 0), kernel.op) for kernel in kernels)
