"""The graph of `builders.squares`: y = (x w)^2, the square reads a copy of a view of x w."""

import json
from dataclasses import replace

import pytest

from mindswap.errors import DataError
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.storage import classify_saved
from mindswap.policy.cell_tree import CellNode
from mindswap.pynative.from_trace import graph_of_trace
from mindswap.pynative.trace import RecordedStep, dump_trace, load_trace
from tests.pynative.builders import chain, squares


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


# Trace file.


LAYER = CellNode("", "Layer", False, (CellNode("mul", "Mul", True),))


@pytest.mark.parametrize("trace", [chain(), squares()])
def test_what_is_written_is_read_back(trace):
    step = RecordedStep(trace, (LAYER,) * trace.num_layers, "seed: 0\n", {"mindspore": "2.9.0"}, ("a note",))
    read = load_trace(dump_trace(step), "step.json")
    assert (read.trace, read.layers, read.config) == (step.trace, step.layers, step.config)
    assert (read.versions, read.notes) == (step.versions, step.notes)


def test_the_file_says_what_it_is_and_where_it_was_made():
    data = json.loads(dump_trace(RecordedStep(chain(), (), "")))
    assert (data["schema"], data["version"], data["device"]) == ("mindswap-trace", 2, "CPU")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "step.json:1:2: no JSON"),
        ("[]", "step.json: no trace of a step"),
        ('{"schema": "mindswap-trace", "version": 9}', "step.json: version 9 of a trace"),
        ('{"schema": "mindswap-trace", "version": 2}', "step.json: the trace is damaged"),
    ],
)
def test_other_files_are_refused(text, message):
    with pytest.raises(DataError, match=message.replace(".", r"\.")):
        load_trace(text, "step.json")
