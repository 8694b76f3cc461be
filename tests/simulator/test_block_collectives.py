"""Collectives in the blocks of the step of `steps.py`, and where blocks meet."""

from dataclasses import replace

import numpy as np

from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.saved_tensors import Names, OperatorNames
from mindswap.graph.ops import is_kernel
from mindswap.policy.model import Policy
from mindswap.simulator.engine import run_program
from mindswap.simulator.layer_block import CopySetting, make_arrays
from mindswap.simulator.memory import interval_times
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import NO_OP, ONE_WAY, OpKind
from mindswap.simulator.program_builder import build_program
from tests.graph.builders import KIB
from tests.simulator.builders import cut_blocks
from tests.simulator.steps import TREE, hand_graph, model

GRAPH = hand_graph()
NAMES = OperatorNames([TREE] * 3, GRAPH)

# The first gradient of layer 1.
FIRST = next(node.name for node in GRAPH.backward if node.layer_index == 1 and is_kernel(node.op))


def cut(**collectives):
    """Every operator takes 10 ns, every collective 77 ns."""
    return cut_blocks(
        GRAPH, lambda node, work: 10, NAMES, {name: (one,) for name, one in collectives.items()}, lambda one: 77
    )


def ops(block_ops):
    return [(str(op.label), op.kind, op.duration_ns, op.wait_op) for op in block_ops]


def test_a_collective_behind_its_operator():
    """gelu reads what the collective gives; the rest follows."""
    assert ops(cut(matmul1=Collective("AllReduce", KIB, 8)).layers[1].forward) == [
        ("mlp.matmul", OpKind.FORWARD, 10, NO_OP),
        ("mlp.matmul AllReduce", OpKind.COLLECTIVE, 77, 0),
        ("mlp.gelu", OpKind.FORWARD, 10, 1),
        ("mul", OpKind.FORWARD, 10, NO_OP),
        ("add", OpKind.FORWARD, 10, NO_OP),
    ]


def test_a_collective_before_its_operator():
    block = cut(**{FIRST: Collective("AllReduce", KIB, 8, is_before=True)}).layers[1]
    assert ops(block.backward)[:3] == [
        ("mul AllReduce", OpKind.COLLECTIVE, 77, NO_OP),
        ("mul", OpKind.BACKWARD, 10, 0),
        ("mlp.gelu", OpKind.BACKWARD, 10, NO_OP),
    ]


def partial_sums(collective):
    block = cut(matmul1=collective).layers[1]
    return [
        (tensor.size_bytes, tensor.producer_op_index, tensor.uses.last_forward, tensor.uses.first_backward)
        for tensor in block.tensors
        if str(tensor.label) == "mlp.matmul partial sum"
    ]


def test_an_operator_is_reduced_into_another_tensor():
    """The partial sum is live until gelu waits: one as large as the result is added from the collective on."""
    assert partial_sums(Collective("AllReduce", KIB, 8)) == [(KIB, 1, 1, NO_OP)]
    assert partial_sums(Collective("ReduceScatter", 8 * KIB, 8)) == [(8 * KIB, 0, 1, NO_OP)]


def test_other_collectives_read_what_is_counted_already():
    assert partial_sums(Collective("AllGather", 8 * KIB, 8)) == []
    assert partial_sums(Collective("AllReduce", KIB, 8, is_before=True)) == []


def test_a_partial_sum_is_freed_when_an_operator_waits_for_its_collective():
    blocks = cut(matmul1=Collective("AllReduce", KIB, 8))
    costs = TransferCosts(lambda size: size, lambda size: size, lambda size: 100)
    timeline = run_program(build_program([blocks.prologue, *blocks.layers, blocks.epilogue], costs))
    begin_ns, end_ns = interval_times(timeline)
    labels = [timeline.program.labels[label] for label in timeline.program.intervals.label]
    (partial,) = [i for i, label in enumerate(labels) if str(label) == "mlp.matmul partial sum"]
    (sent,) = np.flatnonzero(timeline.program.ops.kind == OpKind.COLLECTIVE)
    assert begin_ns[partial] == timeline.op_end_ns[sent - 1]
    assert end_ns[partial] == timeline.op_start_ns[sent + 1] == timeline.op_end_ns[sent]


def test_a_collective_waits_for_the_maker_of_the_first_operand_only():
    """`add` reads gelu, which is there before mul ends."""
    forward = tuple(replace(n, inputs=("gelu1", "mul1")) if n.name == "add1" else n for n in GRAPH.forward)
    step = replace(GRAPH, forward=forward)
    gather = {"add1": (Collective("AllGather", KIB, 8, is_before=True),)}
    block = cut_blocks(step, lambda node, work: 10, NAMES, gather, lambda one: 77).layers[1]
    assert ops(block.forward)[1:] == [
        ("mlp.gelu", OpKind.FORWARD, 10, NO_OP),
        ("mul", OpKind.FORWARD, 10, NO_OP),
        ("add AllGather", OpKind.COLLECTIVE, 77, 1),
        ("add", OpKind.FORWARD, 10, 3),
    ]


def test_a_collective_that_begins_a_layer_waits_for_the_layer_behind_it():
    blocks = cut(**{FIRST: Collective("AllReduce", KIB, 8, is_before=True)})
    costs = TransferCosts(lambda size: size, lambda size: size, lambda size: 100)
    program = build_program([blocks.prologue, *blocks.layers, blocks.epilogue], costs)
    (position,) = [i for i, kind in enumerate(program.ops.kind) if kind == OpKind.COLLECTIVE]
    assert program.ops.wait_op[position] == position - 1
    assert [int(program.ops.layer[i]) for i in (position - 1, position)] == [2, 1]


def test_without_times_communication_has_its_place():
    block = cut_blocks(GRAPH, lambda node, work: 10, NAMES, {"matmul1": (Collective("AllReduce", KIB, 8),)}).layers[1]
    assert [op.duration_ns for op in block.forward if op.kind is OpKind.COLLECTIVE] == [0]


# A block says the same in its tensors and in its arrays, also with swaps that are added to it.


def same_as_its_parts(block) -> bool:
    made = make_arrays(block.forward, block.backward, block.per_step_operators, block.tensors)
    names = ("forward", "backward", "per_step_operators", "local_tensors", "shared")
    parts = [(getattr(made, name), getattr(block.arrays, name)) for name in names]
    return (made.boundary_tensors, made.labels) == (block.arrays.boundary_tensors, block.arrays.labels) and all(
        all(np.array_equal(column, vars(other)[name]) for name, column in vars(own).items()) for own, other in parts
    )


def test_copies_are_in_tensors_and_arrays():
    plain = model().layer_block(Policy(), 1)
    # `mlp.gelu` is the block's own; `add` is what it hands to the layer behind it.
    block = plain.with_copies(
        {Names.of("mlp.gelu"): CopySetting(3, 1, False), Names.of("add"): CopySetting(5, 2, True)}
    )
    copied = {str(t.label): (t.prefetch, t.num_copies, t.is_resident) for t in block.tensors if t.num_copies}
    assert copied == {"mlp.gelu": (3, 1, False), "add": (5, 2, True)}
    assert same_as_its_parts(block)
    assert not any(tensor.num_copies for tensor in plain.tensors)
    assert not plain.arrays.local_tensors.num_copies.any()


def test_other_distances_for_the_copies_that_a_block_has():
    copies = {Names.of("mlp.gelu"): CopySetting(2, 1, False), Names.of("add"): CopySetting(1, ONE_WAY, False)}
    block = model().layer_block(Policy(), 1).with_copies(copies).with_distances({1: 7, 2: 9})
    copied = {str(t.label): (t.prefetch, t.num_copies) for t in block.tensors if t.num_copies}
    assert copied == {"mlp.gelu": (9, 1), "add": (7, ONE_WAY)}
    assert same_as_its_parts(block)


def test_a_block_made_from_another_has_arrays_of_its_own():
    block = model().layer_block(Policy(), 1)
    longer = replace(block, backward=(replace(block.backward[0], duration_ns=7), *block.backward[1:]))
    assert longer.arrays.backward.duration_ns[0] == 7
    assert same_as_its_parts(longer)
