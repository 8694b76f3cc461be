"""Figures of a simulated step; the times of the small one are worked out in `simulated.py`."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from mindswap.simulator.cost.static_memory import StaticMemory
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import MemoryKind
from mindswap.simulator.report_data import Cause, LayerRow, Moment, PeakContributor
from mindswap.simulator.summary import (
    group_layer_rows,
    host_bytes_per_node,
    measure_layers,
    measure_stages,
    peak_host_bytes,
)
from mindswap.simulator.timeline import StallCause
from tests.report.simulated import GIB, MIB, MS, large_program, pipeline_report, report_of, small_report
from tests.simulator.builders import Span, program_of


def test_the_step_and_what_it_yields():
    report = small_report()
    assert report.step_time_ns == 25 * MS  # 20 of operators, 5 of the optimizer
    assert report.tokens_per_s == 4096 / 0.025
    assert report.mfu == 0.4  # 1e12 of the 2.5e12 that 1e14 per second do in 25 ms
    assert report.peak_bytes == 4 * GIB + 64 * MIB
    assert report.fits is True
    assert small_report(budget_bytes=4 * GIB + 64 * MIB).fits is True
    assert small_report(budget_bytes=4 * GIB).fits is False
    assert small_report(budget_bytes=None).fits is None


def test_a_step_without_time_yields_nothing():
    report = small_report()
    none = replace(report, timeline=SimpleNamespace(step_time_ns=0), terms=())
    assert (none.step_time_ns, none.tokens_per_s, none.mfu) == (0, 0, 0)
    assert replace(report, peak_flops=0).mfu == 0


def test_tokens_are_per_card_and_flops_of_all_cards():
    report = small_report(num_cards=8)
    assert report.tokens_per_s == 4096 / 0.025 / 8
    assert report.mfu == 0.05


def test_the_time_of_a_stage_is_compute_and_waiting():
    (stage,) = small_report().stages
    assert (stage.compute_ns, stage.copy_out_ns, stage.copy_in_ns) == (12 * MS, 3 * MS, 5 * MS)
    assert (stage.communication_ns, stage.bubble_ns, stage.recompute_ns) == (0, 0, 0)
    assert stage.swapped_bytes == 64 * MIB
    assert (stage.offload_busy_ns, stage.prefetch_busy_ns) == (3 * MS, 5 * MS)


def test_host_memory_is_taken_from_copy_out_to_the_end_of_copy_in():
    assert small_report().stages[0].host_bytes == 64 * MIB


def test_host_memory_that_is_given_back_is_taken_again_at_the_same_moment():
    """Copies one after the other: each begins as the one before is back, so one is on the host at a time."""
    timeline = run_program(large_program(num_stages=1, num_micro_batches=1, num_layers=4, num_ops=6))
    begin = 10 * np.arange(len(timeline.program.copies))
    timeline = replace(timeline, out_start_ns=begin, in_end_ns=begin + 10)
    assert len(begin) > 2
    assert peak_host_bytes(timeline, np.arange(len(begin))) == 8 * MIB
    assert peak_host_bytes(replace(timeline, in_end_ns=begin + 11), np.arange(len(begin))) == 16 * MIB


def test_the_peak_has_a_moment_and_holders():
    (stage,) = small_report().stages
    assert stage.moment == Moment(0, "forward", 0, 0, "ffn Mul")
    assert stage.holders == (
        PeakContributor("ffn Mul", MemoryKind.OFFLOADING, MemoryPart.SAVED_ACTIVATIONS, 64 * MIB, 1, (0,)),
    )


def test_parts_at_the_peak_add_up_to_it():
    (stage,) = small_report().stages
    assert list(stage.parts) == list(MemoryPart)
    assert sum(stage.parts.values()) == stage.peak_bytes
    assert stage.parts[MemoryPart.SAVED_ACTIVATIONS] == 64 * MIB
    assert stage.parts[MemoryPart.OPTIMIZER_STATES] == stage.static_parts[MemoryPart.OPTIMIZER_STATES] > 0


def test_memory_of_the_optimizer_replaces_what_is_freed_as_it_begins():
    # 30 of gradients and 20 of activations are freed, and 40 scaled gradients and 25 temporaries take their place.
    gradient, activation = MemoryPart.GRADIENTS, MemoryPart.ACTIVATION_GRADIENTS
    spans = [
        Span(30, 0, 1, MemoryKind.GRADIENT, part=gradient),
        Span(20, 0, 1, part=activation),
        Span(15, 1, 1, MemoryKind.GRADIENT, part=MemoryPart.OPTIMIZER_TEMPORARIES),
    ]
    closing = {gradient: 40 - 30, activation: -20, MemoryPart.OPTIMIZER_TEMPORARIES: 25}
    program = replace(program_of("F5 B5", spans=spans), closing_parts=(closing,))
    (stage,) = measure_stages(run_program(program), [StaticMemory(0, 0, 0, 0)])
    assert {part: size for part, size in stage.parts.items() if size} == {
        gradient: 40, MemoryPart.OPTIMIZER_TEMPORARIES: 25
    }  # fmt: skip
    assert sum(stage.parts.values()) == stage.peak_bytes


def test_causes_of_waiting_are_sorted_by_time():
    assert small_report().causes == (
        Cause("ffn Mul", StallCause.COPY_IN, (0,), 5 * MS),
        Cause("ffn Mul", StallCause.COPY_OUT, (0,), 3 * MS),
    )


def test_one_row_per_layer():
    assert small_report().layers == (
        LayerRow(0, 0, 0, 64 * MIB, 0, 1, 2 * MS, 4 * MS, 0, 8 * MS),
        LayerRow(1, 0, 32 * MIB, 0, 0, 0, 2 * MS, 4 * MS, 0, 0),
    )


def test_what_never_comes_back_is_not_swapped():
    step = small_report().timeline
    copies = replace(step.program.copies, in_ns=np.zeros_like(step.program.copies.in_ns))
    first, _ = measure_layers(replace(step, program=replace(step.program, copies=copies)))
    assert (first.swapped_bytes, first.num_copies, first.out_only_bytes) == (0, 0, 64 * MIB)


def test_a_stage_that_waits_for_another_has_a_bubble():
    first, second = pipeline_report().stages
    # 64 ms each; 30 ms of operators. Sends and receives run beside compute, waiting for them is no compute.
    assert (first.compute_ns, first.bubble_ns, first.communication_ns) == (30 * MS, 34 * MS, 0)
    assert (second.compute_ns, second.bubble_ns, second.communication_ns) == (30 * MS, 34 * MS, 0)


def test_the_peak_is_of_the_stage_that_needs_most():
    report = pipeline_report()
    assert report.peak_stage.stage == 0
    assert report.peak_bytes == 4 * GIB + 8 * MIB


def test_layers_of_all_micro_batches_and_stages():
    report = report_of(large_program(num_stages=2, num_micro_batches=3, num_layers=4, num_ops=6))
    assert [(row.layer, row.stage) for row in report.layers] == [(layer, layer // 4) for layer in range(8)]
    assert {row.num_copies for row in report.layers} == {3}  # of one micro-batch
    assert sum(row.exposed_ns for row in report.layers) == sum(cause.exposed_ns for cause in report.causes) > 0
    assert sum(stage.exposed_copy_ns for stage in report.stages) == sum(row.exposed_ns for row in report.layers)
    for stage in report.stages:
        waits = stage.copy_out_ns + stage.copy_in_ns + stage.communication_ns + stage.bubble_ns
        assert stage.compute_ns + waits == report.timeline.step_time_ns


def test_what_is_outside_the_layers_has_a_row_per_stage():
    program = program_of(
        "F3 F10 B20", "F5 F7 B1", spans=[Span(8, 1, 2), Span(9, 4, 5, stage=1), Span(4, 2, 2, MemoryKind.RECOMPUTED)]
    )
    program = replace(
        program,
        ops=replace(program.ops, layer=np.array([-1, 0, 0, 1, -1, 1], np.int32)),
        intervals=replace(program.intervals, layer=np.array([0, -1, 0], np.int32)),
    )
    rows = [
        (row.layer, row.stage, row.kept_bytes, row.recomputed_bytes, row.forward_ns, row.backward_ns)
        for row in measure_layers(run_program(program))
    ]
    assert rows == [(0, 0, 8, 4, 10, 20), (1, 1, 0, 0, 5, 1), (-1, 0, 0, 0, 3, 0), (-1, 1, 9, 0, 7, 0)]


def test_equal_layers_are_one_group_with_the_mean_of_their_waiting():
    rows = [
        LayerRow(0, 0, 5, 0, 0, 0, 1, 2, 0, 10),
        LayerRow(1, 0, 5, 0, 0, 0, 1, 2, 0, 20),
        LayerRow(2, 1, 7, 0, 0, 0, 1, 2, 0, 40),
        LayerRow(-1, 0, 5, 0, 0, 0, 1, 2, 0, 0),
        LayerRow(-1, 1, 5, 0, 0, 0, 1, 2, 0, 0),
    ]
    assert [(name, row.exposed_ns) for name, row in group_layer_rows(rows)] == [
        ("layers 0-1", 15),
        ("layer 2", 40),
        ("outside the layers, stage 0", 0),
        ("outside the layers, stage 1", 0),
    ]
    assert [name for name, _ in group_layer_rows(rows[:1] + rows[3:4])] == ["layer 0", "outside the layers"]


def test_host_memory_of_a_node_is_that_of_its_cards():
    # Stages 0 and 1 have 4 cards each, a node has 8: 4 * 3 + 4 * 1.
    assert host_bytes_per_node([3, 1], num_cards=8, num_cards_per_node=8) == 16
    # 8 cards each: the first node is all stage 0.
    assert host_bytes_per_node([3, 1], num_cards=16, num_cards_per_node=8) == 24
    assert host_bytes_per_node([3], num_cards=2, num_cards_per_node=8) == 6
    # One card per stage, nodes of two: 1 + 1, 5 + 5.
    assert host_bytes_per_node([1, 1, 5, 5], num_cards=4, num_cards_per_node=2) == 10
