"""Layers of operators whose scope does not tell."""

from dataclasses import replace

from mindswap.graph.layer_paths import assign_layer_indices, find_weight_gradients
from tests.graph.builders import graph, node


def scoped(name, op, inputs, layer):
    return replace(node(name, op, inputs, layer=layer), scope=f"Default/{layer}-Layer/{op}-{name}")


def layers(step):
    return {n.name: n.layer_index for n in step.forward}


def test_a_cast_without_scope_belongs_to_the_layer_that_reads_it():
    forward = [
        node("weight", "Load", "w", layer=None),
        scoped("add", "Add", "weight", 0),
        node("cast", "Cast", "add", layer=0),
        scoped("norm", "RmsNorm", "cast", 1),
    ]
    assert layers(assign_layer_indices(graph(forward, []))) == {"weight": None, "add": 0, "cast": 1, "norm": 1}


def test_one_that_several_layers_read_stays():
    forward = [scoped("add", "Add", "weight", 0), node("cast", "Cast", "add", layer=0)]
    forward += [scoped("near", "Mul", "cast", 0), scoped("far", "Mul", "cast", 1)]
    forward.insert(0, node("weight", "Load", "w", layer=0))
    assert layers(assign_layer_indices(graph(forward, [])))["cast"] == 0


def test_a_table_that_all_layers_read_belongs_to_none():
    forward = [
        scoped("angle", "Muls", "positions", 0),
        scoped("cos", "Cos", "angle", 0),
        scoped("mask", "Less", "positions", 0),
        scoped("words", "Cast", "positions", 0),
        scoped("gathered", "Gather", "words", None),
        node("embedding", "Load", "w", layer=None),
        scoped("first", "Mul", "embedding cos mask gathered", 0),
        scoped("second", "Mul", "first cos", 1),
    ]
    again = replace(node("cos_again", "Cos", "angle_b", layer=0, is_duplicate=True), origin="cos")
    gradient = replace(node("cos_grad", "Sin", "angle_b", layer=0), origin="cos")
    other = node("mask_again", "Less", "angle_b", layer=0, is_duplicate=True)
    step = assign_layer_indices(graph(forward, [again, gradient, replace(other, origin="mask")], saved="angle"))
    # angle is needed for cos only; the mask is read in its own layer, and what no layer reads stays as well.
    assert layers(step) == {
        "angle": None, "cos": None, "mask": 0, "words": 0, "gathered": None, "embedding": None, "first": 0, "second": 1
    }  # fmt: skip
    assert [each.layer_index for each in step.backward] == [None, 0, 0]


def test_what_a_weight_goes_into_stays_in_its_layer():
    forward = [
        node("weight", "Load", "w", layer=0),
        scoped("first", "Mul", "ids weight", 0),
        scoped("second", "Mul", "first", 1),
    ]
    assert layers(assign_layer_indices(graph(forward, []))) == {"weight": 0, "first": 0, "second": 1}


def test_no_layer_reads_what_a_later_one_makes():
    """Reshapes of a function that all layers call have the scope of layer 0, and so has their gradient."""
    forward = [
        node("weight", "Load", "w", layer=None),
        scoped("one", "Mul", "weight", 1),
        scoped("turned", "AllToAll", "one", 0),
        scoped("attention", "FlashAttentionScore", "turned", 1),
    ]
    gradient = replace(node("back", "Reshape", "grad turned_b", layer=0), origin="turned")
    nowhere = replace(node("sum", "AddN", "grad", layer=None), origin="turned")
    step = assign_layer_indices(graph(forward, [gradient, nowhere], saved="turned"))
    assert layers(step) == {"weight": None, "one": 1, "turned": 1, "attention": 1}
    assert [each.layer_index for each in step.backward] == [1, None]


# Which products of backward give gradients of weights.


def test_products_that_end_in_gradients_of_weights():
    """dx goes on to a norm, whose gradient of its weight is a sum; dw goes out behind a cast, again behind none."""
    backward = [
        node("turned", "Transpose", "grad x_b"),
        node("dw", "MatMul", "turned x_b"),
        node("cast", "Cast", "dw"),
        node("dx", "MatMul", "grad w_b"),
        node("norm", "RmsNormGrad", "dx"),
        node("again", "MatMul", "x_b w_b", is_duplicate=True),
        node("dv", "MatMul", "again norm"),
        node("out", "MakeTuple", "cast norm dv", 0),
    ]
    step = graph([node("x", "Add"), node("w", "Load")], backward, saved="x w")
    assert find_weight_gradients(step) == {"dw", "cast", "dv"}


def test_a_product_that_is_read_elsewhere_is_none():
    backward = [
        node("dw", "MatMul", "grad x_b"),
        node("other", "Add", "dw"),
        node("out", "MakeTuple", "dw other", 0),
    ]
    step = graph([node("x", "Add")], backward, saved="x")
    assert find_weight_gradients(step) == frozenset()
    # Without the tuple that backward hands out, nothing is known of gradients.
    assert find_weight_gradients(replace(step, backward=step.backward[:1])) == frozenset()
    assert find_weight_gradients(replace(step, backward=())) == frozenset()
