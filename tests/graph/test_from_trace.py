"""The graph of `builders.squares`: y = (x w)^2, the square reads a copy of a view of x w."""

from mindswap.graph.from_trace import TAG, graph_of_trace
from mindswap.graph.storage import classify_saved
from mindswap.graph.work import measure_work
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
    assert [node.attributes.get(TAG) for node in graph.forward] == [
        None,
        ("matmul",),
        ("Reshape",),
        ("square",),
        ("square",),
    ]
