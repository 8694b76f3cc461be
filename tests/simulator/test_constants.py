"""What micro-batches make of constants alone: the step of `steps.py` with a causal mask and a table of its own.

The mask of the layers is `Less(ids, spread)`, and `spread`, of 8 KiB, is a copy of a constant of as much. Each layer
multiplies by `cos` too, of 2 KiB, which backward reads.
"""

from dataclasses import replace

import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.graph.model import TensorType
from mindswap.policy.model import Policy
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import interval_times
from mindswap.simulator.program import OpKind
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import KIB, node
from tests.simulator.cost.builders import device
from tests.simulator.steps import SETTINGS, captured, placed

KEEP_ALL = Policy(True)


def model(**settings):
    step = captured(4)
    forward = []
    for each in step.graph.forward:
        if each.name == "mask":
            forward += [
                node("spread", "ExpandDims", "triangle zero", 8 * KIB, layer=None, cell_path="mask"),
                node("cos", "Cos", "positions", 2 * KIB, layer=None, cell_path="table"),
            ]
            each = placed("mask", "Less", "ids spread", None, "mask")
        if each.op == "Mul":
            each = replace(each, inputs=(*each.inputs, "cos"))
        forward.append(each)
    backward = [
        replace(each, inputs=(*each.inputs, "cos_b")) if each.op == "MulGrad" else each for each in step.graph.backward
    ]
    saved = (*step.graph.saved, replace(step.graph.saved[0], forward_name="cos", backward_name="cos_b"))
    types = {
        "triangle": TensorType((8 * KIB,), "int8", 8 * KIB),
        "positions": TensorType((KIB,), "int16", 2 * KIB),
        "ids": TensorType((1,), "int32", 4),
    }
    graph = replace(
        step.graph, forward=tuple(forward), backward=tuple(backward), saved=saved, types=types, inputs=("ids",)
    )
    return StepModel(replace(step, graph=graph), CostTable(device()), replace(SETTINGS, **settings))


def constant_kib(own):
    return [round(stage.constant_bytes / KIB) for stage in own.static]


def num_tables(own):
    return int((own.program(KEEP_ALL).intervals.size_bytes == 2 * KIB).sum())


def test_one_micro_batch_makes_them_as_anything_else():
    own = model()
    assert constant_kib(own) == [10]  # the constants themselves
    assert own.layout.forward_bytes == 0
    assert num_tables(own) > 0


@pytest.mark.parametrize("num_stages", [1, 2])
def test_several_micro_batches_make_them_once_on_each_stage(num_stages):
    """The table stays for the whole step, the mask until the last forward of a stage has ended."""
    own = model(num_micro_batches=3, pipeline=Pipeline(num_stages))
    assert constant_kib(own) == [10 + 2] * num_stages
    timeline = run_program(own.program(KEEP_ALL))
    program = timeline.program
    intervals, ops = program.intervals, program.ops
    begin_ns, end_ns = interval_times(timeline)
    for stage in range(num_stages):
        mine = (intervals.stage == stage) & (intervals.size_bytes == 8 * KIB)
        assert [str(program.labels[label]) for label in intervals.label[mine]] == ["made of constants"]
        first, behind = program.stage_starts[stage : stage + 2]
        forward = [at for at in range(first, behind) if ops.kind[at] == 0]
        assert intervals.begin[mine].tolist() == [first]
        assert begin_ns[mine] <= timeline.op_start_ns[forward[0]]
        assert end_ns[mine] == [timeline.op_end_ns[forward[-1]]]
    assert num_tables(own) == 0


def test_each_virtual_chunk_has_its_own_constants():
    """Two chunks on each of two stages: two constants, two tables, and two masks from first to last forward of each."""
    own = model(num_micro_batches=4, pipeline=Pipeline(2, 2))
    assert constant_kib(own) == [2 * (10 + 2)] * 2
    program = own.program(KEEP_ALL)
    intervals, ops = program.intervals, program.ops
    for stage in (0, 1):
        is_mask = (intervals.stage == stage) & (intervals.size_bytes == 8 * KIB)
        assert is_mask.sum() == 2
        for begin, end in zip(intervals.begin[is_mask], intervals.end[is_mask], strict=True):
            # A chunk is two layers; the one with the head ends with an operator outside the layers.
            assert {ops.micro_batch[begin], ops.micro_batch[end]} == {0, 3}
            assert ops.kind[end] == OpKind.FORWARD
