"""What forward keeps for backward: storages, not nodes, each with its fate. Pure.

One tensor can be handed to backward under several names (a `MatMul` and the `Reshape` of it). It
is one piece of memory, and it leaves the device only if every name of it does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from mindswap.graph.model import Graph, Node, SwapPair, TensorType
from mindswap.graph.ops import VIEW_OPS, WEIGHT_OPS

__all__ = ["Fate", "SavedStorage", "Storage", "StorageKind", "classify_saved", "resolve_storage"]


class StorageKind(Enum):
    """What a piece of memory is."""

    ACTIVATION = "activation"  # made by an operator in forward
    WEIGHT = "weight"  # a parameter of the network
    INPUT = "input"  # an input of the step, or a constant


class Fate(Enum):
    """What becomes of a saved storage between forward and backward."""

    KEPT = "kept"  # stays on the device
    SWAPPED = "swapped"  # leaves the device and comes back
    WASTED = "swapped and kept"  # copied out, while another name of it stays: frees nothing


@dataclass(frozen=True)
class Storage:
    """One piece of device memory.

    Attributes:
        producer: operator that makes it; None for an input, a constant or a weight.
        name: name of the producer's output, or of the function parameter.
        output_index: which output of the producer.
        kind: activation, weight or input.
        type: shape, dtype and bytes; None where the compiler gives none.
    """

    producer: Node | None
    name: str
    output_index: int
    kind: StorageKind
    type: TensorType | None

    @property
    def size_bytes(self) -> int:
        """Bytes on the device."""
        return self.type.size_bytes if self.type else 0

    @property
    def layer_index(self) -> int | None:
        """Layer that makes it; None for what is made outside the layers and shared by them."""
        return self.producer.layer_index if self.producer else None


@dataclass(frozen=True)
class SavedStorage:
    """A storage that backward needs.

    Attributes:
        storage: the memory.
        fate: kept, swapped, or both.
        keepers: nodes through which backward holds it on the device.
        pairs: copies to the host and back; more than one moves the same bytes several times.
        first_user: position in `Graph.backward` of the first operator that reads it there, under any name.
    """

    storage: Storage
    fate: Fate
    keepers: tuple[Node, ...]
    pairs: tuple[SwapPair, ...]
    first_user: int

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay on the device from forward to backward."""
        return self.storage.size_bytes if self.keepers else 0

    @property
    def copied_bytes(self) -> int:
        """Bytes that cross the link, each way."""
        return sum(pair.size_bytes for pair in self.pairs)


def classify_saved(graph: Graph) -> tuple[SavedStorage, ...]:
    """Every activation that backward needs, in order of production, with its fate.

    Weights and inputs of the step are left out: they are on the device in any case.
    """
    storages: dict[tuple[str, int], Storage] = {}
    keepers: dict[tuple[str, int], list[Node]] = {}
    pairs: dict[tuple[str, int], list[SwapPair]] = {}
    for key, storage, node in _kept(graph):
        storages[key] = storage
        keepers.setdefault(key, []).append(node)
    for pair in graph.swap_pairs:
        storage = resolve_storage(graph, pair.copy_out.inputs[0])
        key = (storage.name, storage.output_index)
        storages[key] = storage
        pairs.setdefault(key, []).append(pair)
    order = {node.name: position for position, node in enumerate(graph.forward)}
    keys = sorted(storages, key=lambda key: (order.get(key[0], -1), key[1]))
    first_users = _first_users(graph)
    return tuple(
        SavedStorage(
            storages[key],
            _fate(key in keepers, key in pairs),
            tuple(keepers.get(key, ())),
            tuple(pairs.get(key, ())),
            min(
                *(first_users[node.name] for node in keepers.get(key, ())),
                *(first_users[pair.copy_out.name] for pair in pairs.get(key, ())),
                len(graph.backward),
            ),
        )
        for key in keys
        if storages[key].kind is StorageKind.ACTIVATION
    )


def _kept(graph: Graph) -> Iterator[tuple[tuple[str, int], Storage, Node]]:
    for node in graph.kept_nodes:
        storage = resolve_storage(graph, node.name)
        yield (storage.name, storage.output_index), storage, node


def _first_users(graph: Graph) -> dict[str, int]:
    """For each value that forward hands over, where backward first computes with it, behind views and copies in."""
    first: dict[str, int] = {}
    for position in range(len(graph.backward) - 1, -1, -1):
        node = graph.backward[position]
        through = node.op in VIEW_OPS or node.op == "MoveTo"
        moment = first.get(node.name, len(graph.backward)) if through else position
        for name in node.inputs:
            first[name] = min(first.get(name, moment), moment)
    return {saved.forward_name: first.get(saved.backward_name, len(graph.backward)) for saved in graph.saved}


def _fate(is_kept: bool, is_swapped: bool) -> Fate:
    if is_kept and is_swapped:
        return Fate.WASTED
    return Fate.SWAPPED if is_swapped else Fate.KEPT


def resolve_storage(graph: Graph, name: str) -> Storage:
    """The memory behind a value of forward, looking through views, tuples and reads of weights.

    Args:
        graph: a compiled step.
        name: name of a forward node, or of a parameter of forward.
    """
    index: int | None = None  # output wanted of the node at hand, set by TupleGetItem
    nodes = graph.forward_nodes
    while name in nodes:
        node = nodes[name]
        if node.op in WEIGHT_OPS and _is_weight(graph, node):
            return Storage(None, node.inputs[0], 0, StorageKind.WEIGHT, node.outputs[0] if node.outputs else None)
        if node.op == "TupleGetItem" and index is None:
            index = graph.constants.get(node.inputs[1], 0)
            name = node.inputs[0]
        elif node.op == "MakeTuple" and index is not None:
            name, index = node.inputs[index], None
        elif node.op in VIEW_OPS:
            name = node.inputs[0]
        else:
            output = index or 0
            known = node.outputs[output] if output < len(node.outputs) else None
            return Storage(node, node.name, output, StorageKind.ACTIVATION, known)
    return Storage(None, name, 0, StorageKind.INPUT, None)


def _is_weight(graph: Graph, node: Node) -> bool:
    while node.op in WEIGHT_OPS and node.inputs[0] in graph.forward_nodes:
        node = graph.forward_nodes[node.inputs[0]]
    return node.op in WEIGHT_OPS
