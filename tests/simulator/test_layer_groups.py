"""Layers that do not keep their outputs: what backward runs and holds, by hand on the step of `steps.py`."""

import numpy as np
import pytest

from benchmarks.reference.program_check import check_program
from mindswap.config.pipeline_layout import Pipeline
from mindswap.errors import SimulationError
from mindswap.policy.model import ALL_LAYERS, Layers, OpSwap, Policy
from mindswap.simulator.layer_groups import LayerGroups
from mindswap.simulator.program import MemoryKind, OpKind, Program
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.timeline import backward_by_segment_ns
from tests.graph.builders import KIB
from tests.simulator.steps import model

MODEL = model(6)


def groups(*layers: int, recompute: Layers = ALL_LAYERS, **more) -> Policy:
    return Policy(True, layer_recompute=recompute, output_recompute=Layers(layers), **more)


def ops_of(program: Program, *kinds: OpKind) -> list[str]:
    at = np.flatnonzero(np.isin(program.ops.kind, kinds))
    return [f"{program.labels[program.ops.label[op]]} {program.ops.layer[op]}" for op in at.tolist()]


def test_a_group_runs_again_before_backward_of_its_last_layer():
    program = MODEL.program(groups(0, 1, 3, 4))
    check_program(program)
    again = ops_of(program, OpKind.RECOMPUTE)
    # Of the last layer of a group what backward reads, of the others also their output.
    of_group = ["matmul {0}", "gelu {0}", "mul {0}", "add {0}"]
    inner = [f"{'mlp.' if op[0] in 'mg' and op[1] != 'u' else ''}{op}" for op in of_group]
    expected = []
    for first in (3, 0):
        expected += [op.format(layer) for layer in (first, first + 1) for op in inner]
        expected += [op.format(first + 2) for op in inner[:2]]
    assert sorted(again) == sorted(expected)
    backward = ops_of(program, OpKind.BACKWARD, OpKind.RECOMPUTE)
    first_gradient = next(at for at, op in enumerate(backward) if op in again)
    # All of layers 3 to 5 runs again before the first gradient of layer 5 but for what later gradients read.
    assert set(backward[first_gradient : first_gradient + 10]) == set(expected[:10])


def test_what_groups_keep():
    def kept(policy: Policy) -> int:
        intervals = MODEL.program(policy).intervals
        return int(intervals.size_bytes[intervals.kind == MemoryKind.KEPT].sum())

    # The embedding and the mask, and the outputs of six layers; then of the last layers of two groups.
    assert kept(groups()) == 8 * KIB
    assert kept(groups(0, 1, 3, 4)) == 4 * KIB
    # Without recompute of a layer its output is kept, whatever the list says: then a layer is a group of its own.
    assert kept(groups(0, 1, 3, 4, recompute=Layers((0, 1, 2)))) == kept(groups(0, 1, recompute=Layers((0, 1, 2))))


def test_a_layer_that_keeps_its_output_is_simulated_as_without_groups():
    alone, grouped = MODEL.program(groups()), MODEL.program(groups(0))
    assert ops_of(alone, OpKind.FORWARD) == ops_of(grouped, OpKind.FORWARD)
    num_segments = 8
    alone_ns, grouped_ns = (
        backward_by_segment_ns(MODEL.simulate(policy).timeline, 0, num_segments) for policy in (groups(), groups(0))
    )
    # Layer 0 also computes `mul` and `add` a second time.
    assert alone_ns[2:] == grouped_ns[2:] and alone_ns[1] < grouped_ns[1]


def test_groups_of_stages_and_micro_batches():
    stages = model(8, pipeline=Pipeline(num_stages=2), num_micro_batches=4)
    simulated = stages.simulate(groups(0, 2, 4, 6))
    check_program(simulated.timeline.program)
    assert ops_of(simulated.timeline.program, OpKind.RECOMPUTE).count("add 0") == 4  # once for each micro-batch
    assert len(simulated.activation_bytes) == 2


def test_a_layer_of_a_group_may_swap_what_is_not_recomputed():
    # Only the layer without recompute has something to swap.
    policy = groups(0, 1, recompute=Layers((0, 1, 2)), op_swap=(OpSwap(r"mlp\.gelu", ALL_LAYERS, 2),))
    assert set(MODEL.program(policy).copies.layer.tolist()) == {3, 4, 5}


@pytest.mark.parametrize(
    ("step", "policy", "words"),
    [
        (
            MODEL,
            groups(2, 5),
            "layer, 5, is read after the layers\n    allowed: layers 0 to 4\n    fix:     take 5 out",
        ),
        (
            model(8, pipeline=Pipeline(num_stages=2), num_micro_batches=4),
            groups(2, 3),
            "layer 3 is the last of a chunk of stage 0, whose output is sent\n.*\n    fix:     take 3 out",
        ),
    ],
)
def test_outputs_that_something_else_than_a_layer_reads(step: StepModel, policy: Policy, words: str):
    with pytest.raises(SimulationError, match=words):
        step.simulate(policy)


def test_blocks_of_groups_are_read_once_where_the_step_swaps_anyway(monkeypatch):
    """Without copies they are read a second time only as of a step that does not swap."""
    num_reads, read = [], LayerGroups.read_blocks
    monkeypatch.setattr(LayerGroups, "read_blocks", lambda *args: num_reads.append(args[-1]) or read(*args))
    single = model(6, num_micro_batches=1)
    single.with_swap().program(groups(0, 1))
    assert num_reads == [True]
    num_reads.clear()
    single.program(groups(0, 1, op_swap=(OpSwap("nothing", ALL_LAYERS, 2),)))
    assert num_reads == [True, False]
