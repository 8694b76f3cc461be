"""Layers for multi-token prediction, and what recompute of the last layer recomputes in them."""

import pytest

from mindswap.graph.analysis.prediction_layers import find_recomputable, prediction_layer
from mindswap.graph.passes.gather import GATHER_MARK
from tests.graph.builders import graph, node
from tests.simulator.steps import placed

MTP = "model.mtp.layers.0"


@pytest.mark.parametrize(
    ("cell", "layer"),
    [
        ("network.model.mtp.layers.0.transformer_layer.mlp", "network.model.mtp.layers.0"),
        ("model.mtp.layers.12", "model.mtp.layers.12"),
        ("model.mtp.output_layer", ""),
        ("model.decoder.layers.1.mlp", ""),
        ("model.smtp.layers.0", ""),
        ("", ""),
    ],
)
def test_the_layer_of_a_cell(cell, layer):
    assert prediction_layer(cell) == layer


def test_all_but_what_is_read_outside_is_recomputed():
    """The second layer reads `out` of the first one, and the head `last`; the compiler's cast follows its reader."""
    step = graph(
        [
            placed("hidden", "Add", "a b", 0, "mlp"),
            node("weight", "AllGather", "part", layer=None, cell_path=MTP, **{GATHER_MARK: True}),
            placed("norm", "RmsNorm", "hidden", None, f"{MTP}.enorm"),
            node("bare", "Cast", "norm", layer=None, cell_path=""),
            placed("product", "MatMul", "bare weight", None, f"{MTP}.mlp"),
            placed("out", "Add", "product norm", None, MTP),
            placed("last", "Mul", "out", None, "model.mtp.layers.1"),
            node("for_head", "Cast", "last", layer=None, cell_path=""),
            placed("head", "MatMul", "for_head", None, "model.mtp.output_layer"),
        ]
    )
    assert find_recomputable(step) == {"norm", "bare", "product"}


def test_a_model_without_such_layers_has_none():
    assert find_recomputable(graph([placed("x", "Add", "a b", 0, "mlp")])) == frozenset()
