"""What of a policy the interface of `hyper_parallel` expresses; a layer has a cell with two cells, and an operator."""

import pytest

from mindswap.errors import ApplyError
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.hyper_parallel import UpstreamCalls, upstream_calls
from mindswap.pynative.schedule import Unit

TREE = CellNode(
    "",
    "Layer",
    children=(
        CellNode(
            "mlp", "Mlp", children=(CellNode("w1", "Dense"), CellNode("w2", "Dense"), CellNode("silu", "SiLU", True))
        ),
        CellNode("norm", "Norm"),
        CellNode("add", "Add", is_primitive=True),
    ),
)


def calls(unit=Unit.LAYERS, **settings):
    """Of four such layers."""
    policy = Policy(**settings)
    return upstream_calls([resolve_layer(policy, index, TREE) for index in range(4)], unit)


def test_whole_layers():
    assert calls(layer_swap=[LayerSwap(Layers(0, 1), 2)]) == UpstreamCalls(
        wraps=((0, ()), (1, ())), pairs=((0, 2), (1, 3))
    )


def test_cells_of_a_layer_are_wrapped_one_by_one_and_paired_once():
    found = calls(op_swap=[OpSwap("norm", Layers(1), 1), OpSwap(r"mlp\.w.", Layers(1), 1)])
    assert found == UpstreamCalls(wraps=((1, ("mlp", "w1")), (1, ("mlp", "w2")), (1, ("norm",))), pairs=((1, 2),))


def test_a_cell_inside_of_one_that_moves_has_no_wrapper():
    found = calls(op_swap=[OpSwap("mlp", Layers(0), 1), OpSwap(r"mlp\.w1", Layers(0), 1)])
    assert found.wraps == ((0, ("mlp",)),)
    found = calls(layer_swap=[LayerSwap(Layers(0), 1)], op_swap=[OpSwap("mlp", Layers(0), 1)])
    assert found.wraps == ((0, ()),)


def test_what_is_recomputed_does_not_move():
    found = calls(layer_swap=[LayerSwap(Layers(0, 1), 1)], layer_recompute=Layers(1))
    assert found == UpstreamCalls(wraps=((0, ()),), pairs=((0, 1),))
    swaps = [OpSwap("mlp", Layers(0), 1), OpSwap("norm", Layers(0), 1)]
    assert calls(op_swap=swaps, select_recompute=[OpRecompute("mlp", ALL_LAYERS)]).wraps == ((0, ("norm",)),)


def test_nothing_named_is_no_call():
    assert calls(layer_recompute=ALL_LAYERS) == UpstreamCalls((), ())
    assert calls(unit=Unit.OPERATORS, layer_recompute=ALL_LAYERS) == UpstreamCalls((), ())


def test_another_distance_for_layers_whose_partners_differ():
    """0 is fetched by 1, and 1 by 3."""
    found = calls(layer_swap=[LayerSwap(Layers(0), 1), LayerSwap(Layers(1), 2)])
    assert found.pairs == ((0, 1), (1, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"op_swap": [OpSwap("mlp", Layers(0), 20)], "unit": Unit.OPERATORS},
            r"distances \[20\] count operators.*\n.*unit=Unit\.LAYERS",
        ),
        (
            {"op_swap": [OpSwap("add", Layers(0, 1), 1)]},
            r"layers \[0, 1\]: add is a single operator.*\n.*name the full layer, or",
        ),
        (
            {"op_swap": [OpSwap(r"mlp\.silu", Layers(2), 1)]},
            r"layers \[2\]: mlp.silu is a single operator.*\n.*name the cell mlp, or",
        ),
        (
            {"op_swap": [OpSwap("mlp", Layers(0), 1), OpSwap("norm", Layers(0), 2)]},
            r"layer 0: distances \[1, 2\].*together",
        ),
        (
            {"layer_swap": [LayerSwap(Layers(1, 2), 2)]},
            r"layer 2: no layer 4 .*at distance 2\n    allowed: layers up to 1",
        ),
        (
            {"layer_swap": [LayerSwap(Layers(0), 2), LayerSwap(Layers(1), 1)]},
            r"layers \[0, 1\] would all be fetched by layer 2",
        ),
    ],
)
def test_what_cannot_be_expressed_is_named(settings, message):
    with pytest.raises(ApplyError, match=message):
        calls(**settings)


def test_all_problems_at_once():
    with pytest.raises(ApplyError) as caught:
        calls(op_swap=[OpSwap("add", Layers(0), 1), OpSwap("mlp", Layers(3), 1)])
    assert str(caught.value).count("    fix:") + str(caught.value).count("    allowed:") == 2
