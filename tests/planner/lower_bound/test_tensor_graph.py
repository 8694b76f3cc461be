"""Tensors and readers of a layer, as the lower bound sees them."""

from dataclasses import replace

from mindswap.graph.model import Node
from mindswap.planner.evaluate import evaluate
from mindswap.planner.lower_bound import collect_bound_inputs, min_step_ns
from mindswap.planner.lower_bound.tensor_graph import (
    build_tensor_graphs,
)
from mindswap.planner.problem import Allow
from mindswap.policy.cell_tree import CellNode, exact_pattern
from mindswap.policy.model import Layers, OpRecompute, Policy
from mindswap.simulator.step_model import StepModel
from tests.planner.lower_bound.builders import PLENTY, changed, changed_view, problem
from tests.planner.models import MB, small_model
from tests.planner.test_candidates import model_with_a_function


def test_the_flow_of_a_layer_of_four_operators():
    """exp -> mul -> relu -> tanh of 1 MB each: 2, 3, 2 and 2 us; mul reads exp twice, and tanh is what the layer gives.

    Backward needs all but what mul makes. The next layer, or the loss, reads tanh.
    """
    for tensor_graph in build_tensor_graphs(small_model(2)):
        assert (tensor_graph.sizes_bytes, tensor_graph.producers) == ((MB,) * 4, (0, 1, 2, 3))
        assert (tensor_graph.saved, tensor_graph.outputs, tensor_graph.gathered) == ({0, 2, 3}, {3}, set())
        assert tensor_graph.reads == ((1, 0), (2, 1), (3, 2))
        assert (tensor_graph.recompute_ns, tensor_graph.communication_ns) == ((2000, 3000, 2000, 2000), (0,) * 4)
        assert (tensor_graph.gaps, set(tensor_graph.unfused_extra_ns), tensor_graph.avoided_forward_ns) == ((), {0}, 0)
        assert tensor_graph.unswappable_tensors == set()  # each is an attribute of the model
        assert tensor_graph.saved_bytes == 3 * MB


def test_what_a_layer_hands_on_that_nobody_holds():
    """Backward does not read tanh; exp of the next layer does, and runs again from it alone."""
    first, second = build_tensor_graphs(changed(small_model(2), lambda node: node, unsaved=("tanh0", "tanh1")))
    assert (first.boundary_inputs, len(first.sizes_bytes)) == (set(), 4)
    assert (second.boundary_inputs, second.sizes_bytes, second.producers) == ({4}, (MB,) * 5, (0, 1, 2, 3, 4))
    assert second.reads == ((0, 4), (1, 0), (2, 1), (3, 2)) and {4} <= second.outputs
    assert second.recompute_ns[4] == second.communication_ns[4] == second.unfused_extra_ns[4] == 0
    # tanh is an attribute, so a swap of it has a name. As a reshape of a function it has none.
    assert second.unswappable_tensors == set()
    view = changed_view("tanh0", "exp1")
    _, second = build_tensor_graphs(changed(small_model(2), view[0], view[1], ("tanh0", "tanh1")))
    assert (second.boundary_inputs, second.unswappable_tensors) == ({4}, {4})
    # What backward holds is there, or swapped, in any case.
    assert all(tensor_graph.boundary_inputs == set() for tensor_graph in build_tensor_graphs(small_model(2)))


def test_what_is_read_as_a_view_that_is_a_function():
    """mul reads exp as a reshape that is no attribute: without its cell a copy of mul finds exp kept."""
    first, second = build_tensor_graphs(changed(small_model(2), *changed_view("exp0", "mul0")))
    (cell,) = first.recomputed_cells
    assert (cell.functions, cell.views) == (set(), {(1, 0)})
    assert second.recomputed_cells == ()


def test_what_backward_runs_again_in_any_case_takes_no_more_time():
    """Backward reads what mul makes from a copy of mul, without any policy; a policy that names both has relu, 2 us."""
    plain = small_model(2)
    backward: list[Node] = []
    for gradient in plain.captured.graph.backward:
        if gradient.name.startswith("drelu"):
            layer = gradient.name[-1]
            mul = plain.captured.graph.index.forward_nodes[f"mul{layer}"]
            read = (f"exp{layer}_b",) * 2
            again = replace(mul, name=f"again{layer}", inputs=read, is_duplicate=True, origin=mul.name)
            backward.append(again)
            gradient = replace(gradient, inputs=(*gradient.inputs, again.name))
        backward.append(gradient)
    graph = replace(plain.captured.graph, backward=tuple(backward))
    model = StepModel(replace(plain.captured, graph=graph), plain.costs, plain.settings)
    assert [tensor_graph.recompute_ns for tensor_graph in build_tensor_graphs(model)] == [(2000, 0, 2000, 2000)] * 2
    keep = evaluate(problem(model, PLENTY), Policy())
    named = tuple(OpRecompute(exact_pattern(name), Layers(0)) for name in ("attn.mul", "mlp.relu"))
    evaluation = evaluate(problem(model, PLENTY), Policy(select_recompute=named))
    assert (evaluation.step_time_ns, evaluation.peak_bytes) == (keep.step_time_ns + 2000, keep.peak_bytes - MB)
    known = collect_bound_inputs(model, keep.step)
    assert min_step_ns(known, evaluation.peak_bytes, PLENTY, Allow(swap=False)) == evaluation.step_time_ns


def test_what_a_function_alone_reads_runs_again_with_its_cell():
    """All that reads exp is a reshape of a function, and backward reads that: exp runs again only with it."""
    change, more = changed_view("exp0", "mul0")
    held = changed(small_model(2), change, more)
    graph = held.captured.graph
    saved = tuple(replace(one, forward_name="view") if one.forward_name == "exp0" else one for one in graph.saved)
    model = StepModel(replace(held.captured, graph=replace(graph, saved=saved)), held.costs, held.settings)
    (cell,) = build_tensor_graphs(model)[0].recomputed_cells
    assert (cell.functions, cell.views, cell.held) == ({0}, {(1, 0)}, {0})  # backward holds exp through the reshape


def test_a_function_that_makes_what_its_cell_hands_on_runs_again_with_a_cell_around_that():
    """`mul` of `attn` is read by `mlp`, so recompute of `attn` runs `exp` again, and only that of the layer `mul`."""
    tensor_graph = build_tensor_graphs(model_with_a_function())[1]
    cells = {cell.path: {tensor_graph.op_names[op] for op in cell.functions} for cell in tensor_graph.recomputed_cells}
    assert cells == {"attn": {"exp1"}, "": {"mul1"}}


def test_a_cell_reads_what_no_name_outside_of_it_holds():
    """Without names, recompute of `mlp` reads what `mul` of `attn` makes; `attn` reads `tanh` of the layer before."""
    model = small_model()
    source = model.layers.source
    inner = (CellNode("inner", "Inner"),)
    tree = replace(source.trees[0], children=tuple(replace(cell, children=inner) for cell in source.trees[0].children))
    nameless = StepModel(replace(source, trees=(tree,) * len(source.trees)), model.costs, model.settings)
    tensor_graph = build_tensor_graphs(nameless)[1]
    names = {
        cell.path: {(tensor_graph.op_names[op], t) for op, t in cell.inputs} for cell in tensor_graph.recomputed_cells
    }
    mul = tensor_graph.producers.index(tensor_graph.op_names.index("mul1"))
    assert names == {"attn": set(), "mlp": {("relu1", mul)}, "": set()}
    assert all(cell.inputs == frozenset() for cell in build_tensor_graphs(model_with_a_function())[1].recomputed_cells)
