"""What `inspect` says of copies that nobody reads."""

from mindswap.report.memory import one_way_notes
from tests.graph.builders import copy_out, graph, node
from tests.graph.test_memory import names_of


def test_what_is_copied_for_nothing_has_its_operator_its_bytes_and_its_layers():
    step = graph([node("gelu", "Gelu", "x"), copy_out("out", "gelu")])
    # Layers 4, 5 and 7 of the model are as the compiled layer 0, and 6 is as another.
    notes = list(one_way_notes(step, names_of(step), {4: 0, 5: 0, 6: 1, 7: 0}))
    assert notes == ["copied out and never read back, for nothing: 1.0 KiB of mlp.Gelu, in each of layers 4-5, 7"]
    assert list(one_way_notes(graph(list(step.forward[:1])), names_of(step), {0: 0})) == []
