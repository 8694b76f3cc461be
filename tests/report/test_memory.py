"""What `mindswap inspect` prints."""

import pytest

from mindswap.graph.lifetime import Peak
from mindswap.graph.memory import LayerMemory, OperatorMemory
from mindswap.report.memory import MemoryReport, format_memory
from tests.graph.builders import node

MIB = 2**20


@pytest.mark.parametrize(
    ("layer", "cell_path", "place"),
    [(None, "network.network.loss._nllloss", "loss._nllloss.Neg"), (None, "", "Neg"), (3, "mlp", "layer 3, mlp.Neg")],
)
def test_the_peak_is_at_an_operator_as_simulate_names_it(layer, cell_path, place):
    """The compiled cell is around the model, so its path begins with its own two names."""
    layers = (LayerMemory(0, (OperatorMemory("mlp.mul", "Mul", kept_bytes=MIB),)),)
    peak = Peak(3 * MIB, node("n", "Neg", layer=layer, cell_path=cell_path), True)
    lines = format_memory(MemoryReport(layers, peak, ()), "operator").splitlines()
    assert lines[-1] == f"peak of activations by lifetime: 3.0 MiB, in forward at {place}"
