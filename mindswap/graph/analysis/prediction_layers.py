"""Operators of the layers for multi-token prediction, which follow the layers of the model together with the head."""

import re

from mindswap.graph.layer_paths import MTP_CELL, has_scope
from mindswap.graph.model import Graph
from mindswap.graph.ops import BOOKKEEPING_OPS
from mindswap.graph.passes.gather import is_gathering

# The cell of such a layer, in the path of its operators: `model.mtp.layers.0`.
_LAYER_CELL = re.compile(rf"(?:^|\.){MTP_CELL}\.layers\.\d+(?=\.|$)")


def prediction_layer(cell_path: str) -> str:
    """Return the cell of the layer for multi-token prediction that a cell belongs to; empty if there is none."""
    match = _LAYER_CELL.search(cell_path)
    return cell_path[: match.end()] if match else ""


def has_prediction_layers(graph: Graph) -> bool:
    """Return whether the step predicts more than one token of each position."""
    return any(prediction_layer(node.cell_path) for node in graph.forward)


def find_recomputable(graph: Graph) -> frozenset[str]:
    """Return the names of the forward operators that recompute of these layers recomputes.

    MindFormers gives them the settings of the last layer of the model, with the same rules: what is read outside the
    layer is saved, weights that are all-gathered once stay, and operators of the compiler follow their readers.
    """
    read_in: dict[str, set[str]] = {}  # operator -> layers that read it, also through operators without a scope
    recomputable: set[str] = set()
    for node in reversed(graph.forward):
        users = graph.index.forward_readers.get(node.name, ())
        readers = [reader for reader in users if reader.op not in BOOKKEEPING_OPS and reader.op != "TupleGetItem"]
        layers = read_in[node.name] = set()
        for reader in readers:
            # Nodes that order side effects may precede what they read.
            layers |= {prediction_layer(reader.cell_path)} if has_scope(reader) else read_in.get(reader.name, set())
        if is_gathering(node):
            continue
        layer = prediction_layer(node.cell_path)
        follows_readers = bool(readers) and all(reader.name in recomputable for reader in readers)
        if (bool(layer) and layers <= {layer}) if has_scope(node) else follows_readers:
            recomputable.add(node.name)
    return frozenset(recomputable)
