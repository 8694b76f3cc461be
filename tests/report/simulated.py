"""Simulated steps that fit on a page, for the tests of reports and pictures.

`small_report`, in ms: forward 0 runs 0-2, its 64 MiB go out 2-5. The compute stream waits for that after
operator 0, so forward 1 runs 5-7 and backward 2 runs 7-11. Then the copy in runs 11-16; backward 3 needs it and
runs 16-20. The optimizer takes 5 more. The 64 MiB are there 0-5 and 11-20; 32 MiB of layer 1 are there 5-11.

`pipeline_report`, in ms: stage 0 has forward 0-10, sends 10-11, receives 43-44, backward 44-64. Stage 1 receives
11-12, forward 12-22, backward 22-42, sends 42-43.
"""

from dataclasses import replace

import numpy as np

from mindswap.simulator.cost.static_memory import StaticMemory
from mindswap.simulator.engine import run_program
from mindswap.simulator.program import MemoryKind, OpKind, Program
from mindswap.simulator.report_data import DeviceFigure, SimulationReport
from mindswap.simulator.summary import find_causes, host_bytes_per_node, measure_layers, measure_stages
from mindswap.simulator.timeline import StepTerm
from tests.simulator.builders import Copy, Op, Span, program_of

MS = 10**6
MIB, GIB = 2**20, 2**30
FIGURES = (
    DeviceFigure("offload (D2H)", "20.0 GB/s", "measured"),
    DeviceFigure("cards in a node", "8", "assumed", is_main=False),
)


def small_program() -> Program:
    program = program_of(
        f"F{2 * MS} F{2 * MS} B{4 * MS} B{4 * MS}",
        copies=[Copy(0, 0, 2, 3, out_ns=3 * MS, in_ns=5 * MS, size_bytes=64 * MIB)],
        spans=[
            Span(64 * MIB, 0, ~0, MemoryKind.OFFLOADING),
            Span(32 * MIB, 1, 2, MemoryKind.KEPT),
            Span(64 * MIB, ~0, 3, MemoryKind.PREFETCHED),
        ],
    )
    return replace(
        program,
        ops=replace(program.ops, layer=np.array([0, 1, 1, 0], np.int32)),
        intervals=replace(program.intervals, layer=np.array([0, 1, 0], np.int32), label=np.array([0, 1, 0], np.int32)),
        labels=["ffn Mul", "head MatMul", "head MatMulGrad", "ffn MulGrad"],
    )


def report_of(program: Program, **changes) -> SimulationReport:
    """The report of a program, with one GiB of each static part."""
    timeline = run_program(program)
    stages = measure_stages(timeline, [StaticMemory(GIB, GIB, GIB, GIB)] * program.num_stages)
    settings = {
        "title": "small.yaml",
        "device_title": "Atlas 800T A2",
        "figures": FIGURES,
        "terms": (),
        "num_tokens": 4096,
        "num_cards": program.num_stages,
        "model_flops": 10**12,
        "peak_flops": 10**14,
        "actual_peaks_bytes": tuple(stage.peak_bytes for stage in stages),
        "budget_bytes": None,
        "host_bytes_per_node": host_bytes_per_node([stage.host_bytes for stage in stages], program.num_stages, 8),
        "notes": (),
    }
    return SimulationReport(
        timeline=timeline,
        stages=stages,
        layers=measure_layers(timeline),
        causes=find_causes(timeline),
        **{**settings, **changes},
    )


def small_report(**changes) -> SimulationReport:
    settings = {
        "budget_bytes": 5 * GIB,
        "terms": (StepTerm("optimizer", 5 * MS), StepTerm("gradients of data parallel", 0)),
        "notes": ("layer 1 was not compiled",),
    }
    return report_of(small_program(), **{**settings, **changes})


def pipeline_report(**changes) -> SimulationReport:
    program = program_of(
        f"F{10 * MS} S{MS}@0 V{MS}@7 B{20 * MS}@2",
        f"V{MS}@1 F{10 * MS}@4 B{20 * MS} S{MS}@6",
        spans=[Span(8 * MIB, 0, 3), Span(2 * MIB, 5, 6, stage=1)],
    )
    return report_of(program, **changes)


def large_program(num_stages: int, num_micro_batches: int, num_layers: int, num_ops: int) -> Program:
    """Stages that do not wait for each other; layers of equal operators, three copies and memory each."""
    stages, copies, spans, layers, micro_batches = [], [], [], [], []
    per_pass = num_layers * num_ops
    for stage in range(num_stages):
        ops = []
        for micro_batch in range(num_micro_batches):
            first = (stage * num_micro_batches + micro_batch) * 2 * per_pass
            last = first + 2 * per_pass - 1
            for position in range(per_pass):
                ops.append(Op(50_000 + 7919 * position % 90_000))
                layers.append(stage * num_layers + position // num_ops)
            for position in range(per_pass):
                ops.append(Op(90_000 + 7919 * position % 170_000, OpKind.BACKWARD))
                layers.append(stage * num_layers + num_layers - 1 - position // num_ops)
            for position in range(0, per_pass, max(1, num_ops // 3)):
                copy = len(copies)
                producer, user = first + position, last - position
                times = {"out_ns": 400_000, "in_ns": 350_000, "size_bytes": 8 * MIB}
                copies.append(Copy(producer, min(producer + 3, user - 1), max(user - 4, producer), user, **times))
                spans.append(Span(8 * MIB, producer, ~copy, MemoryKind.OFFLOADING, stage))
                spans.append(Span(8 * MIB, ~copy, user, MemoryKind.PREFETCHED, stage))
                spans.append(Span(3 * MIB, producer, user, MemoryKind.KEPT, stage))
            micro_batches += [micro_batch] * 2 * per_pass
        stages.append(ops)
    program = program_of(*stages, copies=copies, spans=spans)
    layer, micro_batch = np.array(layers, np.int32), np.array(micro_batches, np.int32)
    producer = program.copies.producer_op
    return replace(
        program,
        ops=replace(program.ops, layer=layer, micro_batch=micro_batch, label=program.ops.label % num_ops),
        copies=replace(
            program.copies,
            layer=layer[producer],
            micro_batch=micro_batch[producer],
            label=program.copies.label % num_ops,
        ),
        labels=[f"cell.{number} MatMul" for number in range(num_ops)],
    )
