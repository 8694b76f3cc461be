"""A compiled layer as the lower bound reads it: operators, tensors, and the producers, readers and holders of these."""

from collections.abc import Iterable, Mapping, Sequence

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import is_kernel
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.storage import StorageKind, classify_saved, resolve_storage
from mindswap.policy.model import ALL_LAYERS, Policy
from mindswap.simulator.layer_block import BlockTensor
from mindswap.simulator.program import NO_OP
from mindswap.simulator.step_model import StepModel


class CapturedLayer:
    """Operators and tensors of a compiled layer, each identified by its position.

    Args:
        model: step model.
        kind: index of the compiled layer.

    Attributes:
        layer_index: a layer of the model that it represents.
        nodes: operators with a kernel. No policy changes the lifetime of gathered weights that backward holds anyway or
            never, so their all-gathers are left out.
        ops: name -> position of the operator.
        keys: (name, output index) of each tensor: those of these operators, then the boundary inputs.
        tensors: (name, output index) -> position of the tensor.
        boundary_inputs: `TensorGraph.boundary_inputs`.
        producers: position of the producer of each tensor; boundary inputs have additional ones.
        reads: (operator, tensor) for each tensor that an operator reads.
        holders: tensor -> operators of all layers that produce it or hold it.
        saved: tensor that backward reads -> position of the first operator of backward that does.
        views: tensor that backward reads -> operators through which it holds the tensor.
        holder_names: names of the holders of all saved tensors, of all layers.
    """

    def __init__(self, model: StepModel, kind: int):
        self.model, self.kind, self.graph = model, kind, model.captured.graph
        self.layer_index = model.captured.sample.layer_map.index(kind)
        graph, held_gathers = self.graph, self._held_gathers()
        self.nodes = [
            node
            for node in graph.forward
            if is_kernel(node.op)
            and node.layer_index == kind
            and (not is_gathering(node) or model.names(node) in held_gathers)
        ]
        self.ops = {node.name: position for position, node in enumerate(self.nodes)}
        own_keys = [
            (node.name, index)
            for node in self.nodes
            for index, tensor_type in enumerate(node.outputs)
            if tensor_type.size_bytes
        ]
        self.keys = (*own_keys, *self._boundary_keys())
        self.tensors = {key: position for position, key in enumerate(self.keys)}
        self.boundary_inputs = frozenset(range(len(own_keys), len(self.keys)))
        additional = range(len(self.nodes), len(self.nodes) + len(self.boundary_inputs))
        self.producers = (*(self.ops[name] for name, _ in own_keys), *additional)
        self.reads = tuple((op, tensor) for op, node in enumerate(self.nodes) for tensor in sorted(self.read_by(node)))
        self.holders: dict[int, list[Node]] = {}
        for node in graph.forward:
            held_keys = {*((node.name, index) for index in range(len(node.outputs))), *storages(graph, (node.name,))}
            for tensor in {self.tensors[key] for key in held_keys if key in self.tensors}:
                self.holders.setdefault(tensor, []).append(node)
        entries = {(each.storage.name, each.storage.output_index): each for each in classify_saved(graph)}
        self.saved = {self.tensors[key]: each.first_user for key, each in entries.items() if key in self.tensors}
        self.views = {self.tensors[key]: each.holders for key, each in entries.items() if key in self.tensors}
        self.holder_names = {holder.name for each in entries.values() for holder in each.holders}

    def read_by(self, node: Node) -> set[int]:
        """Return the tensors that an operator reads."""
        return self.find(node.inputs)

    def find(self, names: Iterable[str]) -> set[int]:
        """Return the tensors that values are stored in."""
        return {self.tensors[key] for key in storages(self.graph, names) if key in self.tensors}

    def block_tensors(self, policy: Policy) -> tuple[BlockTensor, ...]:
        """Return the tensors of the layer under a policy."""
        return self.model.layer_block(policy, self.layer_index).tensors

    def _held_gathers(self) -> set[Label]:
        """Return the gathered weights that backward holds only if their readers are recomputed.

        With several micro-steps there are none.
        """
        if self.model.layout.num_micro_steps > 1 or self.model.layers.reads_caches:
            return set()
        held_by_recompute, held_anyway = (
            {
                tensor.label
                for tensor in self.block_tensors(policy)
                if tensor.is_per_step and tensor.role is None and tensor.uses.first_backward != NO_OP
            }
            for policy in (Policy(True, layer_recompute=ALL_LAYERS), Policy())
        )
        return held_by_recompute - held_anyway

    def _boundary_keys(self) -> list[tuple[str, int]]:
        """Return the outputs of the previous layer that only this layer reads, and backward does not save."""
        graph, readers = self.graph, dict[tuple[str, int], set[int | None]]()
        for node in graph.forward:
            if is_kernel(node.op):
                for key in storages(graph, node.inputs):
                    readers.setdefault(key, set()).add(node.layer_index)
        saved_keys = {(entry.storage.name, entry.storage.output_index) for entry in classify_saved(graph)}

        def is_output(name: str, index: int) -> bool:
            node = graph.index.forward_nodes[name]
            is_in_previous = node.layer_index is not None and node.layer_index + 1 == self.kind
            return is_in_previous and not is_gathering(node) and node.outputs[index].size_bytes > 0

        return [
            key for key, kinds in readers.items() if kinds == {self.kind} and key not in saved_keys and is_output(*key)
        ]


def storages(graph: Graph, names: Iterable[str]) -> Iterable[tuple[str, int]]:
    """Yield (name, output index) of the storages of values; each member of a tuple."""
    for name in names:
        node = graph.index.forward_nodes.get(name)
        if node is not None and node.op == "MakeTuple":
            yield from storages(graph, node.inputs)
            continue
        storage = resolve_storage(graph, name)
        if storage.kind is StorageKind.ACTIVATION:
            yield storage.name, storage.output_index


def inputs_of(producers: Sequence[int], reads: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Return, by operator, the producers of its inputs within the layer."""
    inputs: dict[int, set[int]] = {}
    for op, tensor in reads:
        inputs.setdefault(op, set()).add(producers[tensor])
    return inputs


def closure(ops: Iterable[int], inputs: Mapping[int, Iterable[int]]) -> frozenset[int]:
    """Return operators and their transitive producers."""
    pending, visited = list(ops), set[int]()
    while pending:
        op = pending.pop()
        if op not in visited:
            visited.add(op)
            pending += inputs.get(op, ())
    return frozenset(visited)
