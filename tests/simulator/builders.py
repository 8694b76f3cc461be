"""Programs in one line, and timelines as plain lists to compare with.

    program_of("F10 F10 B20", copies=[Copy(producer=0, release=0, prefetch=1, user=2, out_ns=5, in_ns=5)])

A stage is a text of operators: a letter for the kind, the duration in ns, and `@n` if it waits for operator n
(counted over all stages). `F` forward, `B` backward, `R` recompute, `C` collective, `S` send, `V` receive.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mindswap.graph.model import Graph
from mindswap.simulator.layer_block import Block
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.partition import BlockBuilder
from mindswap.simulator.program import NO_OP, Copies, Intervals, MemoryKind, OpKind, Ops, Program
from mindswap.simulator.timeline import Timeline

KINDS = {
    "F": OpKind.FORWARD,
    "B": OpKind.BACKWARD,
    "R": OpKind.RECOMPUTE,
    "C": OpKind.COLLECTIVE,
    "S": OpKind.SEND,
    "V": OpKind.RECEIVE,
}


class Op(NamedTuple):
    """One operator."""

    duration_ns: int
    kind: OpKind = OpKind.FORWARD
    wait: int = NO_OP


class Copy(NamedTuple):
    """One tensor that goes out and comes back."""

    producer: int
    release: int
    prefetch: int
    user: int
    out_ns: int = 0
    in_ns: int = 0
    size_bytes: int = 0


class Span(NamedTuple):
    """Memory: `begin` and `end` as in `Intervals`."""

    size_bytes: int
    begin: int
    end: int
    kind: MemoryKind = MemoryKind.KEPT
    stage: int = 0
    part: MemoryPart = MemoryPart.SAVED_ACTIVATIONS


def ops_of(text: str) -> list[Op]:
    """`"F10 C5@0"` -> operators."""
    found = [re.fullmatch(r"([FBRCSV])(\d+)(?:@(\d+))?", word) for word in text.split()]
    return [Op(int(match[2]), KINDS[match[1]], int(match[3] or NO_OP)) for match in found if match]


def program_of(
    *stages: str | Sequence[Op],
    copies: Sequence[Copy] = (),
    spans: Sequence[Span] = (),
    contended_permille: int = 1000,
) -> Program:
    """A program with one stage per text; operator i has label i, its letter and position."""
    parts = [ops_of(stage) if isinstance(stage, str) else list(stage) for stage in stages]
    ops = [op for part in parts for op in part]
    zeros = np.zeros(len(ops), np.int32)
    copies_zeros = np.zeros(len(copies), np.int32)
    return Program(
        stage_starts=np.cumsum([0, *map(len, parts)]),
        ops=Ops(
            duration_ns=column(ops, "duration_ns"),
            kind=column(ops, "kind").astype(np.int8),
            wait_op=column(ops, "wait"),
            layer=zeros,
            micro_batch=zeros,
            label=np.arange(len(ops), dtype=np.int32),
        ),
        copies=Copies(
            size_bytes=column(copies, "size_bytes"),
            out_ns=column(copies, "out_ns"),
            in_ns=column(copies, "in_ns"),
            producer_op=column(copies, "producer"),
            release_op=column(copies, "release"),
            prefetch_op=column(copies, "prefetch"),
            first_user_op=column(copies, "user"),
            label=column(copies, "producer").astype(np.int32),
            layer=copies_zeros,
            micro_batch=copies_zeros,
        ),
        intervals=Intervals(
            size_bytes=column(spans, "size_bytes"),
            begin=column(spans, "begin"),
            end=column(spans, "end"),
            kind=column(spans, "kind").astype(np.int8),
            part=column(spans, "part").astype(np.int8),
            label=np.zeros(len(spans), np.int32),
            layer=np.zeros(len(spans), np.int32),
            stage=column(spans, "stage").astype(np.int32),
        ),
        labels=[f"{op.kind.name.lower()} {position}" for position, op in enumerate(ops)],
        contended_permille=contended_permille,
    )


def column(rows: Sequence[NamedTuple], name: str) -> np.ndarray:
    """One field of all rows: int64."""
    return np.array([getattr(row, name) for row in rows], np.int64)


def op_times(timeline: Timeline) -> list[tuple[int, int]]:
    """(start, end) of each operator."""
    return pairs(timeline.op_start_ns, timeline.op_end_ns)


def out_times(timeline: Timeline) -> list[tuple[int, int]]:
    """(start, end) of each copy out."""
    return pairs(timeline.out_start_ns, timeline.out_end_ns)


def in_times(timeline: Timeline) -> list[tuple[int, int]]:
    """(start, end) of each copy in."""
    return pairs(timeline.in_start_ns, timeline.in_end_ns)


def stalls(timeline: Timeline) -> dict[int, tuple[int, int, int]]:
    """Operator -> (stall_ns, stall_cause, stall_copy) of those that had to wait."""
    rows = zip(timeline.stall_ns.tolist(), timeline.stall_cause.tolist(), timeline.stall_copy.tolist(), strict=True)
    return {op: row for op, row in enumerate(rows) if row != (0, 0, -1)}


def pairs(first: np.ndarray, second: np.ndarray) -> list[tuple[int, int]]:
    """Two arrays as a list of pairs."""
    return list(zip(first.tolist(), second.tolist(), strict=True))


class StepBlocks(NamedTuple):
    """A whole step: before the layers, the compiled layers, behind the layers (head and loss)."""

    prologue: Block
    layers: tuple[Block, ...]
    epilogue: Block


def cut_blocks(graph: Graph, *costs: Any, **options: Any) -> StepBlocks:
    """All blocks of a compiled step; arguments as of `BlockBuilder`."""
    maker = BlockBuilder(graph, *costs, **options)
    prologue, *layers, epilogue = (maker.block(segment) for segment in range(-1, maker.step.num_layers + 1))
    return StepBlocks(prologue, tuple(layers), epilogue)
