"""Producers and holders of the tensors of a layer."""

from collections.abc import Iterable, Mapping, Sequence

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.model import Graph
from mindswap.graph.storage import StorageKind, classify_saved, resolve_storage
from mindswap.policy.model import Policy
from mindswap.simulator.program import NO_OP
from mindswap.simulator.step_model import StepModel


def find_holder_names(graph: Graph) -> set[str]:
    """Return the names of the holders of all saved tensors."""
    return {holder.name for entry in classify_saved(graph) for holder in entry.holders}


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


def labels_read_by_next(model: StepModel, layer_class: int) -> frozenset[Label]:
    """Return the labels of outputs of a compiled layer that its own backward does not read."""
    layer_index = model.captured.sample.layer_map.index(layer_class)
    return frozenset(
        tensor.label
        for tensor in model.layer_block(Policy(), layer_index).tensors
        if tensor.is_forward
        and tensor.role is not None
        and not tensor.role.is_shared
        and tensor.uses.first_backward == NO_OP
    )


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
