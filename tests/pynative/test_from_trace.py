"""The graph of `builders.squares`: y = (x w)^2, the square reads a copy of a view of x w."""

from dataclasses import replace

from mindswap.graph.storage import classify_saved
from mindswap.graph.work import measure_work
from mindswap.pynative.from_trace import graph_of_trace
from tests.pynative.builders import squares


def test_operators_are_linked_by_the_memory_that_they_share():
    graph = graph_of_trace(squares())
    assert [(node.name, node.op, node.inputs) for node in graph.forward] == [
        ("load.w", "Load", ("▸CR_w",)),
        ("f0", "MatMul", ("input0", "load.w")),
        ("f1", "Reshape", ("f0",)),
        ("f2.copy3", "Contiguous", ("f1",)),
        ("f2", "Square", ("f2.copy3",)),
    ]
    assert [(node.name, node.op, node.inputs, node.origin) for node in graph.backward] == [
        ("b3", "Mul", ("f2.copy3.saved", "f2.saved"), "f2"),
        ("b4", "MatMul", ("input0", "b3"), "f0"),
        ("gradients", "MakeTuple", ("b4",), ""),
    ]


def test_only_what_backward_reads_is_kept():
    """The copy of the view, and y: 8 numbers each; x is an input of the step."""
    kept = classify_saved(graph_of_trace(squares()))
    assert [(entry.storage.name, entry.kept_bytes) for entry in kept] == [("f2.copy3", 32), ("f2", 32)]


def test_work_follows_from_shapes():
    """(2, 3) x (3, 4): 2 * 2 * 4 * 3 = 48 operations."""
    graph = graph_of_trace(squares())
    forward, _ = measure_work(graph)
    assert [work.flops for work in forward][1] == 48


def test_operators_of_layers_carry_their_path():
    graph = graph_of_trace(squares())
    assert [node.paths for node in graph.forward] == [
        (),
        ("matmul",),
        ("Reshape",),
        ("square",),
        ("square",),
    ]


def test_a_copy_that_only_its_storage_tells_of_is_what_backward_reads():
    """The square names the view as its input; that it saved a copy, memory 3, the storage says."""
    trace = squares()
    view = trace.operators[1].outputs[0]
    told = (*trace.operators[:2], replace(trace.operators[2], inputs=(view,)), *trace.operators[3:])
    graph = graph_of_trace(replace(trace, operators=_without_copy_marks(told)))
    assert [(node.name, node.op, node.inputs) for node in graph.forward[3:]] == [
        ("f2.copy1", "Contiguous", ("f1",)),
        ("f2", "Square", ("f1",)),
    ]
    assert graph.backward[0].inputs == ("f2.copy1.saved", "f2.saved")


def _without_copy_marks(operators):
    return tuple(
        replace(operator, inputs=tuple(replace(value, copy_of=None) for value in operator.inputs))
        for operator in operators
    )


def test_nothing_of_a_trace_is_recomputed_or_a_copy_of_an_operator():
    graph = graph_of_trace(squares())
    nodes = [*graph.forward, *graph.backward]
    assert [(node.is_recomputed, node.is_duplicate) for node in nodes] == [(False, False)] * len(nodes)


def test_the_scope_says_the_layer_and_the_cell():
    trace = squares()
    outside = replace(trace.operators[0], layer_index=None)
    inside = replace(trace.operators[2], path=("ffn", "square"))
    graph = graph_of_trace(replace(trace, operators=(outside, trace.operators[1], inside, *trace.operators[3:])))
    scopes = {node.name: node.scope for node in graph.forward}
    assert scopes["f0"] == "Default/network-Network/MatMul-opf0"
    assert scopes["f2"] == "Default/layers-CellList/0-Layer/ffn-Cell/Square-opf2"
