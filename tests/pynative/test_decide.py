"""Which storages a policy names."""

from dataclasses import replace

from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpSwap, Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.schedule import Distance, Unit, decide
from tests.pynative.builders import chain

TREE = CellNode("", "Layer", children=(CellNode("cell", "Cell", children=(CellNode("op1", "Op", is_primitive=True),)),))


def decisions(unit=Unit.OPERATORS, trace=None, **settings):
    """What a policy makes of the chain, whose storages are made by `cell.op1`."""
    policy = Policy(is_swap_enabled=True, **settings)
    return decide(trace or chain(), [resolve_layer(policy, index, TREE) for index in range(3)], unit)


def test_an_operator_by_its_path():
    swap = OpSwap(r"cell\.op1", Layers((0, 2)), 7)
    assert decisions(op_swap=(swap,)) == {0: Distance(7), 2: Distance(7)}


def test_a_cell_names_all_below_it():
    assert decisions(op_swap=(OpSwap("cell", Layers((1,)), 3),)) == {1: Distance(3)}


def test_another_operator_names_nothing():
    tree = CellNode("", "Layer", children=(CellNode("other", "Op", is_primitive=True),))
    policy = Policy(is_swap_enabled=True, op_swap=(OpSwap("other", ALL_LAYERS, 3),))
    assert decide(chain(), [resolve_layer(policy, index, tree) for index in range(3)]) == {}


def test_an_operator_overrides_its_layer():
    found = decisions(
        layer_swap=(LayerSwap(ALL_LAYERS, 1),), op_swap=(OpSwap("cell", Layers((1,)), 5),), unit=Unit.LAYERS
    )
    assert found == {0: Distance(1, Unit.LAYERS), 1: Distance(5, Unit.LAYERS), 2: Distance(1, Unit.LAYERS)}


def test_what_no_operator_made_goes_with_the_one_that_saves_it():
    """The saver is `cell.op2`, which only the cell names."""
    trace = chain()
    trace = replace(trace, storages=tuple(replace(storage, maker=None) for storage in trace.storages))
    assert decisions(trace=trace, op_swap=(OpSwap(r"cell\.op1", ALL_LAYERS, 2),)) == {}
    assert len(decisions(trace=trace, op_swap=(OpSwap("cell", ALL_LAYERS, 2),))) == 3


def test_one_of_two_names_that_cannot_be_told_apart_is_not_enough():
    trace = chain()
    operators = tuple(replace(op, path=("cell", "op1"), also=("op9",)) for op in trace.operators)
    trace = replace(trace, operators=operators)
    assert decisions(trace=trace, op_swap=(OpSwap(r"cell\.op1", ALL_LAYERS, 2),)) == {}
    assert len(decisions(trace=trace, op_swap=(OpSwap("cell", ALL_LAYERS, 2),))) == 3
