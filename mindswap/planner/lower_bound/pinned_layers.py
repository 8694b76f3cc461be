"""Pins in the lower bound: what the user has decided restricts the relaxation of a layer.

Every policy that a plan with pins may have leaves the pinned names alone, and the cells around them
(`Allow.pinned_names`), so in the tensor graph of a layer

- an operator whose names are all pinned is recomputed only if its pin does that. If it does, and backward itself or
  another such operator reads the output, every policy recomputes the operator;
- a tensor is not offloaded if every name that holds it is pinned, and none to swap;
- a tensor that backward reads through an operator pinned to swap is offloaded by every policy;
- functions of a cell that may not be recomputed are not recomputed.
"""

from collections.abc import Mapping
from dataclasses import replace

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.model import Node
from mindswap.graph.passes.gather import is_gathering
from mindswap.planner.lower_bound.captured_layer import CapturedLayer, closure
from mindswap.planner.lower_bound.inputs import BoundInputs
from mindswap.planner.lower_bound.tensor_graph import TensorGraph
from mindswap.planner.problem import Allow
from mindswap.policy.model import Policy
from mindswap.policy.resolve import LayerDecisions, Treatment, resolve_layer
from mindswap.simulator.program import NO_OP
from mindswap.simulator.step_model import StepModel


def with_pins(bound_inputs: BoundInputs, model: StepModel, allow: Allow) -> BoundInputs:
    """Return inputs of the bound that hold for the policies with the pins alone.

    Args:
        bound_inputs: inputs without pins.
        model: step model whose fixed policy has the pins.
        allow: means of plans, with the patterns of the pins.
    """
    if not allow.pinned:
        return bound_inputs
    graphs = enumerate(bound_inputs.tensor_graphs)
    restricted = tuple(_PinnedLayer(model, allow, kind, graph).restricted() for kind, graph in graphs)
    return replace(bound_inputs, tensor_graphs=restricted)


class _PinnedLayer:
    """A compiled layer with its pins.

    Args:
        model: step model whose fixed policy has the pins.
        allow: means of plans, with the patterns of the pins.
        kind: index of the compiled layer.
        tensor_graph: its tensor graph, of the model without pins.
    """

    def __init__(self, model: StepModel, allow: Allow, kind: int, tensor_graph: TensorGraph):
        self.model, self.graph, self.tensor_graph = model, model.captured.graph, tensor_graph
        self.layer = CapturedLayer(model.with_fixed_policy(None), kind)
        self.pinned = allow.pinned_names(model.captured.trees[kind])
        fixed = model.layers.fixed or Policy()
        self.decisions: LayerDecisions = resolve_layer(fixed, self.layer.layer_index, model.captured.trees[kind])

    def restricted(self) -> TensorGraph:
        """Return the tensor graph with the restrictions of the pins."""
        graph = self.tensor_graph
        never_recomputed = {
            op for op, node in enumerate(self.layer.nodes) if self._is_left_alone(node, Treatment.RECOMPUTE)
        }
        for cell in graph.recomputed_cells:
            never_recomputed |= cell.functions if self._is_left_alone_cell(cell.path) else set()
        return replace(
            graph,
            never_recomputed=frozenset(never_recomputed) - graph.weight_copies.keys(),
            unswappable_tensors=graph.unswappable_tensors | self._never_swapped(),
            always_recomputed=self._always_recomputed(),
            always_swapped=self._always_swapped(),
        )

    def _treatments(self, node: Node) -> set[Treatment]:
        """Return what the pins do with the names of an operator."""
        paths = (tuple(name.split(".")) for name in self.model.names(node))
        return {self.decisions.decision_for(path).treatment for path in paths}

    def _is_left_alone(self, node: Node, treatment: Treatment) -> bool:
        """Return whether all names of an operator are pinned, and none to a treatment; no for what has no name."""
        is_movable = self.model.names.can_name(node) and not is_gathering(node)
        is_free = not is_movable or node.name in self.graph.index.duplicates
        return (
            not is_free and self.pinned.issuperset(self.model.names(node)) and treatment not in self._treatments(node)
        )

    def _is_left_alone_cell(self, cell: str) -> bool:
        """Return whether no policy recomputes a cell: full recompute includes the pins."""
        is_recomputed = (
            bool(cell) and self.decisions.decision_for(tuple(cell.split("."))).treatment is Treatment.RECOMPUTE
        )
        return not is_recomputed and (not cell or cell in self.pinned)

    def _always_recomputed(self) -> frozenset[int]:
        """Return the operators pinned to recompute that backward needs, and those pinned that they read in turn."""
        graph, rewritten = self.tensor_graph, self.model.layers.rewritten(Policy(), self.layer.layer_index)
        recomputed = rewritten.index.duplicates.keys() - self.graph.index.duplicates.keys()
        pinned = {
            op
            for op, node in enumerate(self.layer.nodes)
            if node.name in recomputed and self._treatments(node) == {Treatment.RECOMPUTE}
        }
        read_in_backward = {graph.producers[tensor] for tensor in graph.saved - graph.gathered}
        inputs = {op: producers & pinned for op, producers in graph.inputs.items()}
        return closure(pinned & read_in_backward, inputs)

    def _never_swapped(self) -> frozenset[int]:
        def is_left_alone(tensor: int) -> bool:
            owners = map(self.graph.owner, self.layer.holders.get(tensor, ()))
            nameable = (node for node in owners if self.model.names.can_name(node))
            return all(n.layer_index == self.layer.kind and self._is_left_alone(n, Treatment.OFFLOAD) for n in nameable)

        own_tensors = set(self.layer.tensors.values()) - self.layer.boundary_inputs
        return frozenset(filter(is_left_alone, own_tensors))

    def _always_swapped(self) -> frozenset[int]:
        graph, copied = self.tensor_graph, self._copied_labels()
        return frozenset(
            tensor
            for tensor in graph.saved - graph.gathered - graph.tuple_members
            if graph.producers[tensor] < len(self.layer.nodes)
            and copied.get(self.model.layers.labels(self.layer.nodes[graph.producers[tensor]]), False)
            and self._treatments(self.layer.nodes[graph.producers[tensor]]) == {Treatment.OFFLOAD}
        )

    def _copied_labels(self) -> Mapping[Label, bool]:
        """Return, by label of a tensor, whether it is the only one of that label that is saved, and is copied."""
        copied: dict[Label, bool] = {}
        for tensor in self.model.layer_block(Policy(), self.layer.layer_index).tensors:
            if tensor.is_forward and tensor.role is None and tensor.uses.first_backward != NO_OP:
                copied[tensor.label] = tensor.label not in copied and tensor.num_copies > 0
        return copied
