"""State of the engine: a program as structured arrays, and the progress of each stage and stream.

Structured arrays, because compiled functions pass few arguments much faster than dozens of arrays.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache

from mindswap.simulator.program import NO_OP, OpKind, Program
from mindswap.simulator.timeline import StallCause

# Compilation of the simulator's loops.

Compiled = TypeVar("Compiled", bound=Callable[..., Any])

# No loop allocates, so reference counts of array arguments are not needed; updating them at every call of a small
# function would take most of the time. `_nrt=False` also turns an allocation into a compile error.
OPTIONS: dict[str, Any] = {"_nrt": False, "forceinline": True}


class _Kept(FunctionCache):
    """On-disk cache of machine code that recompiles if an entry cannot be read.

    An earlier version of mindswap leaves its cache next to the package, where pip does not remove it. Numba unpickles
    the entry before it checks the age, and the entry may refer to classes that no longer exist.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # Numba's public method first imports everything that compilation may need, including SciPy.
        direct = getattr(self, "_load_overload", super().load_overload)
        for load in (direct, super().load_overload):
            with contextlib.suppress(Exception):  # reading a pickle may raise anything
                return load(sig, target_context)
        self.flush()  # type: ignore[no-untyped-call]
        return None


def compiled(function: Compiled) -> Compiled:
    """Compile a function at its first call, with a cache on disk if possible.

    The cache is next to the package or, if that is read-only, in the user's home. Numba raises if neither can be
    written; then the function is compiled without a cache.
    """
    dispatcher = numba.njit(**OPTIONS)(function)
    with contextlib.suppress(RuntimeError):
        dispatcher._cache = _Kept(function)  # type: ignore[no-untyped-call]
    return cast(Compiled, dispatcher)


NEVER = np.iinfo(np.int64).max  # time of an event that has not happened
COMPUTE, COMMUNICATION, RECEIVING = 0, 1, 2  # streams of operators
NUM_OP_STREAMS = 3
OUT, IN = 0, 1  # streams of copies
NO_COPY = -1

OP = np.dtype(
    [
        ("duration_ns", np.int64),
        ("wait_op", np.int64),
        ("next_op", np.int64),  # the next operator of the same stream, or the end of the stage
        # Number of copies, in the order of the copy stream, that must have ended before the operator starts. They end
        # in order, so only the last one is compared.
        ("outs_needed", np.int64),
        ("ins_needed", np.int64),
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("stall_ns", np.int64),
        ("stall_copy", np.int64),
        ("stall_cause", np.int8),
        ("wait_cause", np.int8),  # `StallCause` of a wait for `wait_op`
        ("is_awaited", np.bool_),  # an operator of another stage waits for this one
    ],
    align=True,
)
COPY = np.dtype(
    [
        ("copy", np.int64),  # position in `Copies`
        ("duration_ns", np.int64),  # on an idle link
        ("after_op", np.int64),
        ("after_out", np.int64),  # of a prefetch: index of the tensor's offload; `NO_COPY` for an offload
        ("start_ns", np.int64),
        ("end_ns", np.int64),
    ]
)
STAGE = np.dtype([("end", np.int64), ("clock_ns", np.int64), ("wake_ns", np.int64)])
STREAM = np.dtype([("next_op", np.int64), ("free_ns", np.int64)])
LINK = np.dtype(
    [("next_copy", np.int64), ("end", np.int64), ("work_left", np.int64), ("is_copying", np.bool_)], align=True
)


class EngineState(NamedTuple):
    """State of a simulated step at one time."""

    ops: np.ndarray  # `OP`, shape (num_ops,); times are `NEVER` until the operator has started
    # `COPY`, shape (2, num_copies): offloads and prefetches in execution order, consecutive for each stage; times are
    # `NEVER` until the copy has started, or ended
    copies: np.ndarray
    # `STAGE`, shape (num_stages,): position after its last operator, time up to which it is simulated, time of its next
    # event
    stages: np.ndarray
    streams: np.ndarray  # `STREAM`, shape (num_stages, NUM_OP_STREAMS): next operator, end time of the previous one
    # `LINK`, shape (num_stages, 2): current or next copy, position after the last copy of the stage, remaining work of
    # the current copy
    links: np.ndarray


def initial_state(program: Program) -> EngineState:
    """Build the state before the first event."""
    starts = np.asarray(program.stage_starts, np.int64)
    num_stages = program.num_stages
    copies = _copies_in_order(program)
    stages = np.zeros(num_stages, STAGE)
    stages["end"] = starts[1:]
    streams = np.zeros((num_stages, NUM_OP_STREAMS), STREAM)
    links = np.zeros((num_stages, 2), LINK)
    # The operators of a stage are consecutive, so its copies are too, in both directions.
    copies_begin = np.searchsorted(copies["after_op"][OUT], starts)
    links["next_copy"] = copies_begin[:-1, None]
    links["end"] = copies_begin[1:, None]
    return EngineState(_operators(program, starts, copies, streams), copies, stages, streams, links)


def _copies_in_order(program: Program) -> np.ndarray:
    """Build `EngineState.copies`."""
    copies = program.copies
    records = np.zeros((2, len(copies)), COPY)
    by_producer = np.argsort(copies.producer_op, kind="stable")
    by_user = np.argsort(copies.first_user_op, kind="stable")
    place_among_outs = np.empty(len(copies), np.int64)
    place_among_outs[by_producer] = np.arange(len(copies))
    out, back = records[OUT], records[IN]
    out["copy"], back["copy"] = by_producer, by_user
    out["duration_ns"], back["duration_ns"] = copies.out_ns[by_producer], copies.in_ns[by_user]
    out["after_op"], back["after_op"] = copies.producer_op[by_producer], copies.prefetch_op[by_user]
    out["after_out"], back["after_out"] = NO_COPY, place_among_outs[by_user]
    records["start_ns"] = records["end_ns"] = NEVER
    return records


def _operators(program: Program, starts: np.ndarray, copies: np.ndarray, streams: np.ndarray) -> np.ndarray:
    """Build `EngineState.ops`, and set the first operator of each stream."""
    ops = np.zeros(len(program.ops), OP)
    ops["duration_ns"] = program.ops.duration_ns
    ops["wait_op"] = program.ops.wait_op
    ops["start_ns"] = ops["end_ns"] = NEVER
    ops["stall_copy"] = NO_COPY
    kind = program.ops.kind
    stream = np.where(kind == OpKind.RECEIVE, RECEIVING, kind >= OpKind.COLLECTIVE).astype(np.int8)

    waiting = np.flatnonzero(program.ops.wait_op != NO_OP)
    awaited = program.ops.wait_op[waiting]
    is_remote = np.searchsorted(starts, waiting, side="right") != np.searchsorted(starts, awaited, side="right")
    is_pipeline = is_remote | (program.ops.kind[awaited] == OpKind.RECEIVE)
    by_stream = np.where(stream[awaited] == COMPUTE, int(StallCause.COMPUTE), int(StallCause.COMMUNICATION))
    ops["wait_cause"][waiting] = np.where(is_pipeline, int(StallCause.PIPELINE), by_stream)
    ops["is_awaited"][awaited[is_remote]] = True

    release_op = np.ascontiguousarray(program.copies.release_op, np.int64)
    first_user_op = np.ascontiguousarray(program.copies.first_user_op, np.int64)
    _link_operators(ops, stream, starts, streams, copies, release_op, first_user_op)
    return ops


@compiled
def _link_operators(
    ops: np.ndarray,
    stream: np.ndarray,
    starts: np.ndarray,
    streams: np.ndarray,
    copies: np.ndarray,
    release_op: np.ndarray,
    first_user_op: np.ndarray,
) -> None:
    """Fill `next_op`, `outs_needed` and `ins_needed`."""
    for place in range(copies.shape[1]):
        ops[release_op[copies[OUT, place].copy]].outs_needed = place + 1
        ops[first_user_op[copies[IN, place].copy]].ins_needed = place + 1
    for stage in range(len(streams)):
        needed = 0  # a release after an operator delays all later compute operators
        for op in range(starts[stage], starts[stage + 1]):
            released = ops[op].outs_needed
            ops[op].outs_needed = needed if stream[op] == COMPUTE else 0
            needed = max(needed, released)
        streams[stage].next_op[:] = starts[stage + 1]
        for op in range(starts[stage + 1] - 1, starts[stage] - 1, -1):
            ops[op].next_op = streams[stage, stream[op]].next_op
            streams[stage, stream[op]].next_op = op
