"""Storages that forward keeps for backward, each with its placement.

One tensor can be handed to backward under several names (a `MatMul` and the `Reshape` of it). It
is one piece of memory, and it leaves the device only if every name of it does.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum

from mindswap.graph.model import Graph, Node, SwapPair, TensorType, first_source
from mindswap.graph.ops import VIEW_OPS, WEIGHT_OPS


class StorageKind(Enum):
    """Kind of a piece of memory."""

    ACTIVATION = "activation"  # made by an operator in forward
    WEIGHT = "weight"  # a parameter of the network
    INPUT = "input"  # an input of the step, or a constant


class Placement(Enum):
    """Placement of a saved storage between forward and backward."""

    KEPT = "kept"  # stays on the device
    SWAPPED = "swapped"  # leaves the device and comes back
    WASTED = "swapped and kept"  # copied out, while another name of it stays: frees nothing


@dataclass(frozen=True)
class Storage:
    """One piece of device memory."""

    producer: Node | None  # operator that makes it; None for an input, a constant or a weight
    name: str  # name of the producer's output, or of the function parameter
    output_index: int  # which output of the producer
    kind: StorageKind
    type: TensorType | None  # shape, dtype and bytes; None where the compiler gives none

    @property
    def key(self) -> tuple[str, int]:
        """Identity of a storage in a graph."""
        return self.name, self.output_index

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
    """A storage that backward needs."""

    storage: Storage
    placement: Placement  # kept, swapped, or both
    holders: tuple[Node, ...]  # nodes through which backward holds it on the device
    pairs: tuple[SwapPair, ...]  # copies to the host and back; more than one moves the same bytes several times
    first_user: int  # position in `Graph.backward` of the first operator that reads it there, under any name

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay on the device from forward to backward."""
        return self.storage.size_bytes if self.holders else 0

    @property
    def copied_bytes(self) -> int:
        """Bytes that cross the link, each way."""
        return sum(pair.size_bytes for pair in self.pairs)


@functools.lru_cache(maxsize=16)  # a planner asks several things of one graph
def classify_saved(graph: Graph) -> tuple[SavedStorage, ...]:
    """Every activation that backward needs, in order of production, with its placement.

    Weights and inputs of the step are left out: they are on the device in any case.
    """
    storages: dict[tuple[str, int], Storage] = {}
    holders: defaultdict[tuple[str, int], list[Node]] = defaultdict(list)
    pairs: defaultdict[tuple[str, int], list[SwapPair]] = defaultdict(list)
    for node in graph.index.kept_nodes:
        storage = resolve_storage(graph, node.name)
        storages[storage.key] = storage
        holders[storage.key].append(node)
    for pair in graph.swap_pairs:
        storage = resolve_storage(graph, pair.producer.name)
        storages[storage.key] = storage
        pairs[storage.key].append(pair)
    order = {node.name: position for position, node in enumerate(graph.forward)}
    first_users = _first_users(graph)
    saved = []
    for key in sorted(storages, key=lambda key: (order.get(key[0], -1), key[1])):
        if storages[key].kind is StorageKind.ACTIVATION:
            names = [node.name for node in holders[key]] + [pair.copy_out.name for pair in pairs[key]]
            swapped = Placement.WASTED if holders[key] else Placement.SWAPPED
            placement = swapped if pairs[key] else Placement.KEPT
            first_user = min(first_users[name] for name in names)
            saved.append(SavedStorage(storages[key], placement, tuple(holders[key]), tuple(pairs[key]), first_user))
    return tuple(saved)


def kept_bytes_by_layer(saved: Iterable[SavedStorage]) -> Mapping[int | None, int]:
    """Bytes that stay on the device from forward to backward, by the layer that makes them; 0 for all others."""
    kept: Counter[int | None] = Counter()
    for entry in saved:
        kept[entry.storage.layer_index] += entry.kept_bytes
    return kept


def _first_users(graph: Graph) -> dict[str, int]:
    """For each value that forward hands over, where backward first computes with it, behind views and copies in."""
    first = first_reader_positions(graph.backward, VIEW_OPS | {"MoveTo"})
    return {saved.forward_name: first.get(saved.backward_name, len(graph.backward)) for saved in graph.saved}


def first_reader_positions(
    nodes: Sequence[Node], passing: Set[str], is_reading: Callable[[Node], bool] = lambda node: True
) -> dict[str, int]:
    """For each value, the position of the first operator that reads it, behind those of types that pass it on."""
    first: dict[str, int] = {}
    for position, node in reversed(list(enumerate(nodes))):
        moment = first.get(node.name, len(nodes)) if node.op in passing else position
        if node.op in passing or is_reading(node):
            for name in node.inputs:
                if first.get(name, moment) >= moment:
                    first[name] = moment
    return first


def resolve_storage(graph: Graph, name: str) -> Storage:
    """The memory behind a value (operator or parameter) of forward, looking through views, tuples, reads of weights."""
    index: int | None = None  # output wanted of the node at hand, set by TupleGetItem
    nodes = graph.index.forward_nodes
    while name in nodes:
        node = nodes[name]
        if node.op in WEIGHT_OPS and first_source(name, WEIGHT_OPS, nodes) not in nodes:
            return Storage(None, node.inputs[0], 0, StorageKind.WEIGHT, node.outputs[0] if node.outputs else None)
        if node.op == "TupleGetItem" and index is None:
            name, index = node.inputs[0], graph.constants.get(node.inputs[1], 0)
        elif node.op == "MakeTuple" and index is not None:
            name, index = node.inputs[index], None
        elif node.op in VIEW_OPS:
            name = node.inputs[0]
        else:
            output = index or 0
            output_type = node.outputs[output] if output < len(node.outputs) else None
            return Storage(node, node.name, output, StorageKind.ACTIVATION, output_type)
    return Storage(None, name, 0, StorageKind.INPUT, None)
