"""What `mindswap inspect` prints."""

import pytest

from mindswap.graph.lifetime import Peak
from mindswap.graph.memory import LayerMemory, OperatorMemory
from mindswap.report.memory import LayerMemoryReport, format_memory, one_way_notes
from tests.graph.builders import copy_out, graph, node
from tests.graph.test_memory import names_of

MIB = 2**20


@pytest.mark.parametrize(
    ("layer", "cell_path", "place"),
    [(None, "network.network.loss._nllloss", "loss._nllloss.Neg"), (None, "", "Neg"), (3, "mlp", "layer 3, mlp.Neg")],
)
def test_the_peak_is_at_an_operator_as_simulate_names_it(layer, cell_path, place):
    """The compiled cell is around the model, so its path begins with its own two names."""
    layers = (LayerMemory(0, (OperatorMemory("mlp.mul", "Mul", kept_bytes=MIB),)),)
    peak = Peak(3 * MIB, node("n", "Neg", layer=layer, cell_path=cell_path), True)
    lines = format_memory(LayerMemoryReport(layers, peak, ()), "operator").splitlines()
    assert lines[-1] == f"peak of activations by lifetime: 3.0 MiB, in forward at {place}"


def test_what_is_copied_for_nothing_has_its_operator_its_bytes_and_its_layers():
    step = graph([node("gelu", "Gelu", "x"), copy_out("out", "gelu")])
    # Layers 4, 5 and 7 of the model are as the compiled layer 0, and 6 is as another.
    notes = list(one_way_notes(step, names_of(step), {4: 0, 5: 0, 6: 1, 7: 0}))
    assert notes == ["copied out and never read back, for nothing: 1.0 KiB of mlp.Gelu, in each of layers 4-5, 7"]
    assert [note[-12:] for note in one_way_notes(step, names_of(step), {2: 0})] == [", in layer 2"]
    assert list(one_way_notes(graph(list(step.forward[:1])), names_of(step), {0: 0})) == []
