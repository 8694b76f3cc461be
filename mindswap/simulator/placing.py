"""Copies and memory intervals of the tensors of a stage, by the rules of MindSpore's Ascend backend.

Sources: acl_stream_assign.cc (device memory is released `3 * backward_prefetch` places after the offload in the
execution order, which includes copies), insert_pre_fetch_depend.cc (a prefetch starts `backward_prefetch + 1` operators
before the first user, copies not included).

    compute    | make |  3 x prefetch ops  | ...           ... |  prefetch + 1 ops  | use |
    copies            | out ->                                 | in ->
    memory     [  OFFLOADING               )                   [  PREFETCHED              ]
                                    release                    begins with the copy
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from mindswap.simulator.program import NO_OP, ONE_WAY, Copies, Intervals, MemoryKind, OpKind, Ops

# kDefaultDelayFactor of AddDelayedSendRecvKernel, acl_stream_assign.cc. Also in the machine code of the 2.9.0 wheel:
# libmindspore_ascend.so.2, 0x5df8c9, `lea (%rax,%rax,2),%rax` after the load of `backward_prefetch`.
RELEASE_FACTOR = 3

Columns = TypeVar("Columns", Copies, Intervals)


@dataclass(frozen=True)
class TransferCosts:
    """Durations of transfers: functions of bytes that return ns."""

    copy_out_ns: Callable[[int], int]  # offload (D2H) on an idle link
    copy_in_ns: Callable[[int], int]  # prefetch (H2D) on an idle link
    send_ns: Callable[[int], int] = lambda size_bytes: 0  # to the next pipeline stage
    contended_permille: int = 1000  # see `Program`


def place_memory(
    tensors: Mapping[str, np.ndarray], ops: Ops, first: int, end: int, stage: int, costs: TransferCosts, num_before: int
) -> tuple[Copies, Intervals]:
    """Compute the copies and memory intervals of one stage.

    Args:
        tensors: columns of `stage_pass.TENSOR_COLUMNS`, shape (num_tensors,).
        ops: operators of all stages.
        first: position of the first operator of this stage.
        end: position after its last operator.
        stage: index of the stage.
        costs: durations of transfers.
        num_before: number of copies of the previous stages; intervals refer to copies by position over all stages.

    Returns:
        Copies, and intervals whose begin or end is a position of an operator, or `~position` of a copy.
    """
    is_saved = tensors["is_forward"].astype(bool) & (tensors["first_backward"] != NO_OP)
    is_copied = (is_saved & (tensors["num_copies"] > 0)) | (tensors["num_copies"] == ONE_WAY)
    tensors = {**tensors, "num_copies": np.abs(tensors["num_copies"])}
    copied = np.flatnonzero(is_copied)  # few of many
    copies = _place_copies({key: column[copied] for key, column in tensors.items()}, ops, first, end, costs)

    last_use = np.maximum.reduce([tensors["begin"], tensors["last_forward"], tensors["last_backward"]])
    kind = np.where(is_saved, MemoryKind.KEPT, tensors["kind"])
    leaves = is_copied & ~tensors["is_resident"].astype(bool)
    # Copies of a tensor are adjacent; the last one releases its device memory.
    copy_ends = num_before + np.cumsum(tensors["num_copies"][copied]) - 1
    let_go_by = np.zeros(len(is_copied), np.int64)
    let_go_by[copied] = copy_ends
    release = np.zeros(len(is_copied), np.int64)
    release[copied] = copies.release_op[copy_ends - num_before]
    is_read_later = tensors["last_forward"] > release
    until = np.where(is_read_later, tensors["last_forward"], ~let_go_by)
    times = np.repeat(copied, tensors["num_copies"][copied])
    returns = is_saved[times]
    back, arrivals = times[returns], ~(num_before + np.flatnonzero(returns))
    # One interval for each tensor that stays on the device or is offloaded, and one for each prefetch.
    stay, leave = np.flatnonzero(~leaves), np.flatnonzero(leaves)
    which = np.concatenate((stay, leave, back))
    kinds = (kind[stay], np.full(len(leave), MemoryKind.OFFLOADING), np.full(len(back), MemoryKind.PREFETCHED))
    return copies, Intervals(
        size_bytes=tensors["size_bytes"][which],
        begin=np.concatenate((tensors["begin"][stay], tensors["begin"][leave], arrivals)),
        end=np.concatenate((last_use[stay], until[leave], tensors["last_backward"][back])),
        kind=np.concatenate(kinds).astype(np.int8),
        label=tensors["label"][which],
        layer=tensors["layer"][which],
        stage=np.full(len(which), stage, np.int32),
    )


def _place_copies(tensors: Mapping[str, np.ndarray], ops: Ops, first: int, end: int, costs: TransferCosts) -> Copies:
    """Build the copies in the order of the tensor table, `num_copies` adjacent ones for each tensor."""
    times = np.repeat(np.arange(len(tensors["size_bytes"])), tensors["num_copies"])
    size, producer = tensors["size_bytes"][times], tensors["begin"][times]
    distance, user = tensors["prefetch"][times], tensors["first_backward"][times]
    returns = user != NO_OP
    prefetch_op = user - (distance + 1)
    prefetch_op = np.where(prefetch_op < first, NO_OP, np.maximum(prefetch_op, producer))
    # A prefetch that waits only for its offload follows the producer in the execution order.
    ins = np.where(prefetch_op == NO_OP, producer, prefetch_op)[returns]
    return Copies(
        size_bytes=size,
        out_ns=_durations(size, costs.copy_out_ns),
        in_ns=np.where(returns, _durations(size, costs.copy_in_ns), 0),
        producer_op=producer,
        release_op=_release_ops(producer, distance, ins, ops, first, end),
        prefetch_op=prefetch_op,
        first_user_op=np.where(returns, user, end - 1),
        label=tensors["label"][times],
        layer=tensors["layer"][times],
        micro_batch=tensors["micro_batch"][times],
    )


def _durations(sizes: np.ndarray, duration_ns: Callable[[int], int]) -> np.ndarray:
    """Return the duration for each size, computed once per distinct size, because few are distinct."""
    unique, inverse = np.unique(sizes, return_inverse=True)
    return np.array([duration_ns(int(size)) for size in unique], np.int64)[inverse] if len(sizes) else sizes


def _release_ops(
    producer: np.ndarray, distance: np.ndarray, ins: np.ndarray, ops: Ops, first: int, end: int
) -> np.ndarray:
    """Return the operator after which the device memory of each offloaded tensor is released.

    It is `RELEASE_FACTOR * distance` places after the offload in the execution order of operators and copies, or the
    next operator of the compute stream, or the last one of the stage. Between two operators, the offloads of the first
    precede the prefetches that wait for it.

    Args:
        producer: producer of the tensor of each offload.
        distance: `backward_prefetch` of each offload.
        ins: operators that the prefetches follow.
        ops: as in `place_memory`.
        first: as in `place_memory`.
        end: as in `place_memory`.
    """
    if not len(producer):
        return producer
    order = np.argsort(producer, kind="stable")
    num_ops = end - first
    ins = np.sort(ins)
    positions = np.arange(first, end)
    copies_before = np.searchsorted(producer[order], positions, side="left") + np.searchsorted(ins, positions)
    place_of_op = np.arange(num_ops) + copies_before
    place_of_copy = np.empty(len(producer), np.int64)
    place_of_copy[order] = producer[order] - first + 1 + np.arange(len(producer))
    place_of_copy += np.searchsorted(ins, producer)
    is_compute = ops.kind[first:end] <= OpKind.RECOMPUTE
    compute = np.flatnonzero(is_compute)
    slot = np.searchsorted(place_of_op[compute], place_of_copy + RELEASE_FACTOR * distance, side="left")
    return first + compute[np.minimum(slot, len(compute) - 1)]


def join(parts: Sequence[Columns]) -> Columns:
    """Concatenate tables of the same type."""
    names = [column.name for column in fields(parts[0])]
    return type(parts[0])(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
