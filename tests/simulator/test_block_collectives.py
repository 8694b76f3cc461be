"""Collectives in the blocks of the step of `steps.py`, and where blocks meet."""

from dataclasses import replace

from mindswap.graph.memory import OperatorNames
from mindswap.graph.ops import is_kernel
from mindswap.graph.sharding.collectives import Collective
from mindswap.simulator.blocks import cut_blocks
from mindswap.simulator.build import build_program
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import NO_OP, OpKind
from tests.graph.builders import KIB
from tests.simulator.steps import TREE, hand_graph

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
