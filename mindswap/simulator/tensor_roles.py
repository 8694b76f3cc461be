"""Roles of the tensors of a compiled step, found while its operators are read in order."""

import re
from collections.abc import Iterable

from mindswap.graph.layer_paths import find_weight_gradients
from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import COMMUNICATION_OPS, VIEW_OPS
from mindswap.simulator.memory_parts import Origin, Phase, TensorRole

# Layers outside the list of the model's layers, such as those for the prediction of further tokens (MTP).
LAYER_PATH = re.compile(r"\blayers\.\d+\b")


class RoleFinder:
    """Find the role of the outputs of each operator.

    Args:
        graph: step, compiled with or without a policy.
        num_layers: number of its layers; the segment of this number is the one after them.
    """

    def __init__(self, graph: Graph, num_layers: int):
        self.num_layers = num_layers
        self.weight_gradients = find_weight_gradients(graph)
        self._backward_names = {saved.forward_name: saved.backward_name for saved in graph.saved}
        # Origin of values without memory of their own: inputs of the step, weights as stored, and views of both.
        self._origins = dict.fromkeys(graph.inputs, Origin.ACTIVATIONS)

    def note_source(self, node: Node) -> None:
        """Record an operator that only reads a weight, or views a weight or an input."""
        origin = self._origins.get(node.inputs[0]) if node.op in (*VIEW_OPS, "TensorMove") else None
        if node.op == "Load":
            origin = Origin.WEIGHTS
        if origin is not None:
            self._origins[node.name] = self._origins[self._backward_names.get(node.name, node.name)] = origin

    def role(
        self, node: Node, segment: int, is_forward: bool, read: Iterable[TensorRole], is_communication: bool
    ) -> TensorRole:
        """Return the role of the outputs of an operator.

        Args:
            node: the operator.
            segment: its segment.
            is_forward: whether it runs in forward.
            read: roles of the tensors that it reads.
            is_communication: whether a collective that belongs to it produces its outputs.
        """
        return TensorRole(
            phase=Phase.FORWARD if is_forward else Phase.BACKWARD,
            origin=self._origin(node, read),
            is_recomputed=node.is_duplicate and not is_forward,
            is_weight_gradient=not is_forward and node.name in self.weight_gradients,
            is_after_layers=segment == self.num_layers and not LAYER_PATH.search(node.cell_path),
            is_communication=is_communication or node.op in COMMUNICATION_OPS,
        )

    def _origin(self, node: Node, read: Iterable[TensorRole]) -> Origin:
        origins = {role.origin for role in read}
        origins.update(self._origins[name] for name in node.inputs if name in self._origins)
        return next((origin for origin in (Origin.ACTIVATIONS, Origin.WEIGHTS) if origin in origins), Origin.CONSTANTS)
