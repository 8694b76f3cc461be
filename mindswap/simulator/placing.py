"""Copies and memory intervals of the tensors of a stage, by the rules of MindSpore's Ascend backend.

Sources: acl_stream_assign.cc (device memory is released `3 * backward_prefetch` positions after the offload in the
execution order, which includes copies), insert_pre_fetch_depend.cc (a prefetch starts `backward_prefetch + 1` positions
before the first user, copies not included). Both count positions of the execution order, in which a Reshape has one and
a fused kernel has one (`graph.analysis.execution_order`).

    compute    | make |  3 x prefetch ops  | ...           ... |  prefetch + 1 ops  | use |
    copies            | out ->                                 | in ->
    memory     [  OFFLOADING               )                   [  PREFETCHED              ]
                                    release                    begins with the copy
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import NO_OP, ONE_WAY, Copies, Intervals, MemoryKind, OpKind, Ops, copy_reference
from mindswap.simulator.tensor_lifetimes import StageTensors

# kDefaultDelayFactor of AddDelayedSendRecvKernel, acl_stream_assign.cc. Also in the machine code of the 2.9.0 wheel:
# libmindspore_ascend.so.2, 0x5df8c9, `lea (%rax,%rax,2),%rax` after the load of `backward_prefetch`.
RELEASE_FACTOR = 3


class StageSpan(NamedTuple):
    """Operators of one stage: positions among those of all stages."""

    stage: int
    begin: int  # first operator
    end: int  # after the last operator


class PlacedMemory(NamedTuple):
    """Copies of one stage, and intervals whose ends are operators or copies (`Intervals`)."""

    copies: Copies
    intervals: Intervals


@dataclass(frozen=True)
class TransferCosts:
    """Durations of transfers: functions of bytes that return ns."""

    copy_out_ns: Callable[[int], int]  # offload (D2H) on an idle link
    copy_in_ns: Callable[[int], int]  # prefetch (H2D) on an idle link
    send_ns: Callable[[int], int] = lambda size_bytes: 0  # to the next pipeline stage
    contended_permille: int = 1000  # see `Program`


def place_memory(
    tensors: StageTensors, ops: Ops, span: StageSpan, costs: TransferCosts, num_before: int
) -> PlacedMemory:
    """Compute the copies and memory intervals of one stage.

    Args:
        tensors: tensors of the stage, with absolute positions.
        ops: operators of all stages.
        span: operators of this stage.
        costs: durations of transfers.
        num_before: number of copies of the previous stages; intervals refer to copies by position over all stages.
    """
    is_saved = tensors.is_saved
    is_copied = (is_saved & (tensors.num_copies > 0)) | (tensors.num_copies == ONE_WAY)
    num_copies = np.abs(tensors.num_copies)
    copied = np.flatnonzero(is_copied)  # few of many
    copies = _place_copies(replace(tensors, num_copies=num_copies).rows(copied), ops, span, costs)

    last_use = np.maximum.reduce([tensors.begin, tensors.last_forward, tensors.last_backward])
    kind = np.where(is_saved, MemoryKind.KEPT, tensors.kind)
    part = tensors.live_part
    is_offloaded = is_copied & ~tensors.is_resident.astype(bool)
    # Copies of a tensor are adjacent; the last one releases its device memory.
    last_copy = np.cumsum(num_copies[copied]) - 1
    released_by = np.zeros(len(is_copied), np.int64)
    released_by[copied] = num_before + last_copy
    release_op = np.zeros(len(is_copied), np.int64)
    release_op[copied] = copies.release_op[last_copy]
    is_read_later = tensors.last_forward > release_op
    released_at = np.where(is_read_later, tensors.last_forward, copy_reference(released_by))
    tensor_of_copy = np.repeat(copied, num_copies[copied])
    is_prefetched = is_saved[tensor_of_copy]
    prefetched = tensor_of_copy[is_prefetched]
    prefetch_begin = copy_reference(num_before + np.flatnonzero(is_prefetched))
    # One interval for each tensor that stays on the device or is offloaded, and one for each prefetch.
    resident, offloaded = np.flatnonzero(~is_offloaded), np.flatnonzero(is_offloaded)
    tensor_of_interval = np.concatenate((resident, offloaded, prefetched))
    kinds = (
        kind[resident],
        np.full(len(offloaded), MemoryKind.OFFLOADING),
        np.full(len(prefetched), MemoryKind.PREFETCHED),
    )
    parts = (part[resident], part[offloaded], np.full(len(prefetched), MemoryPart.PREFETCHED_COPIES))
    intervals = Intervals(
        size_bytes=tensors.size_bytes[tensor_of_interval],
        begin=np.concatenate((tensors.begin[resident], tensors.begin[offloaded], prefetch_begin)),
        end=np.concatenate((last_use[resident], released_at[offloaded], tensors.last_backward[prefetched])),
        kind=np.concatenate(kinds).astype(np.int8),
        part=np.concatenate(parts).astype(np.int8),
        label=tensors.label[tensor_of_interval],
        layer=tensors.layer[tensor_of_interval],
        stage=np.full(len(tensor_of_interval), span.stage, np.int32),
    )
    return PlacedMemory(copies, intervals)


def _place_copies(tensors: StageTensors, ops: Ops, span: StageSpan, costs: TransferCosts) -> Copies:
    """Build the copies in the order of the tensor table, `num_copies` adjacent ones for each tensor."""
    of_copy = tensors.rows(np.repeat(np.arange(len(tensors)), tensors.num_copies))
    size_bytes, producer, user = of_copy.size_bytes, of_copy.begin, of_copy.first_backward
    is_prefetched = user != NO_OP
    ranks = execution_ranks(ops, span.begin, span.end)
    user_ranks = ranks[np.where(is_prefetched, user - span.begin, 0)]  # without a user the rank does not matter
    before = np.searchsorted(ranks, user_ranks - (of_copy.prefetch + 1), side="right") - 1
    prefetch_op = np.where(before < 0, NO_OP, np.maximum(span.begin + before, producer))
    prefetch_op = np.where(is_prefetched, np.maximum(prefetch_op, _last_before_backward(ops, span)), prefetch_op)
    # A prefetch that waits only for its offload follows the producer in the execution order.
    prefetch_after = np.where(prefetch_op == NO_OP, producer, prefetch_op)[is_prefetched]
    return Copies(
        size_bytes=size_bytes,
        out_ns=_durations(size_bytes, costs.copy_out_ns),
        in_ns=np.where(is_prefetched, _durations(size_bytes, costs.copy_in_ns), 0),
        producer_op=producer,
        release_op=_release_ops(producer, of_copy.prefetch, prefetch_after, ops, span),
        prefetch_op=prefetch_op,
        first_user_op=np.where(is_prefetched, user, span.end - 1),
        label=of_copy.label,
        layer=of_copy.layer,
        micro_batch=of_copy.micro_batch,
    )


def _last_before_backward(ops: Ops, span: StageSpan) -> int:
    """Return the operator after which backward of a step of one micro-batch begins; `NO_OP` for several.

    A copy to the device that would start before backward keeps MindSpore from inlining it, so the copy starts with it
    (docs/internals/notes.md#positions-in-the-execution-order).
    """
    is_backward = np.isin(ops.kind[span.begin : span.end], (OpKind.BACKWARD, OpKind.RECOMPUTE))
    micro_batch = ops.micro_batch[span.begin : span.end]
    if not is_backward.any() or (micro_batch != micro_batch[0]).any():
        return NO_OP
    return max(span.begin + int(np.argmax(is_backward)) - 1, span.begin)


def execution_ranks(ops: Ops, begin: int, end: int) -> np.ndarray:
    """Return the positions of the operators of a stage in the backend's execution order, without copies.

    Args:
        ops: operators of all stages.
        begin: position of the first operator of the stage.
        end: position after its last operator.

    Returns:
        int64, shape (num_ops,), ascending; operators that are fused into a later kernel have that of the one before.
    """
    if ops.positions is None:
        return np.arange(end - begin)
    return np.cumsum(ops.positions[begin:end], dtype=np.int64) - 1


def _durations(sizes: np.ndarray, duration_ns: Callable[[int], int]) -> np.ndarray:
    """Return the duration for each size, computed once per distinct size, because few are distinct."""
    unique, inverse = np.unique(sizes, return_inverse=True)
    return np.array([duration_ns(int(size)) for size in unique], np.int64)[inverse] if len(sizes) else sizes


def _release_ops(
    producer: np.ndarray, distance: np.ndarray, prefetch_after: np.ndarray, ops: Ops, span: StageSpan
) -> np.ndarray:
    """Return the operator after which the device memory of each offloaded tensor is released.

    It is `RELEASE_FACTOR * distance` positions after the offload in the execution order of operators and copies, or the
    next operator of the compute stream, or the last one of the stage. Between two operators, the offloads of the first
    precede the prefetches that wait for it.

    Args:
        producer: producer of the tensor of each offload.
        distance: `backward_prefetch` of each offload.
        prefetch_after: operator that each prefetch follows in the execution order.
        ops: operators of all stages.
        span: operators of this stage.
    """
    if not len(producer):
        return producer
    order = np.argsort(producer, kind="stable")
    prefetch_after = np.sort(prefetch_after)
    positions = np.arange(span.begin, span.end)
    num_copies_before = np.searchsorted(producer[order], positions, side="left")
    num_copies_before += np.searchsorted(prefetch_after, positions)
    ranks = execution_ranks(ops, span.begin, span.end)
    op_rank = ranks + num_copies_before  # in the execution order of operators and copies
    copy_rank = np.empty(len(producer), np.int64)
    copy_rank[order] = ranks[producer[order] - span.begin] + 1 + np.arange(len(producer))
    copy_rank += np.searchsorted(prefetch_after, producer)
    compute = np.flatnonzero(ops.kind[span.begin : span.end] <= OpKind.RECOMPUTE)
    following = np.searchsorted(op_rank[compute], copy_rank + RELEASE_FACTOR * distance, side="left")
    return span.begin + compute[np.minimum(following, len(compute) - 1)]
