"""Storages that forward saves for backward, each with its placement.

A storage can be saved under several names (a `MatMul` and a `Reshape` of it). It is freed only if every name of it is
offloaded.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum

from mindswap.graph.model import Graph, Node, SwapPair, TensorType, first_source
from mindswap.graph.ops import VIEW_OPS, WEIGHT_OPS


class StorageKind(Enum):
    """Origin of a storage."""

    ACTIVATION = "activation"  # output of a forward operator
    WEIGHT = "weight"  # parameter of the network
    INPUT = "input"  # input of the step, or a constant


class Placement(Enum):
    """Placement of a saved storage between forward and backward."""

    KEPT = "kept"  # stays on the device
    SWAPPED = "swapped"  # offloaded and prefetched
    WASTED = "swapped and kept"  # offloaded under one name and kept under another, so no memory is freed


@dataclass(frozen=True)
class Storage:
    """One piece of device memory."""

    producer: Node | None  # operator that creates it; None for inputs, constants and weights
    name: str  # name of the producer, or of the function parameter
    output_index: int  # output of the producer
    kind: StorageKind
    type: TensorType | None  # None where the compiler gives no type

    @property
    def key(self) -> tuple[str, int]:
        """Identity of the storage within a graph."""
        return self.name, self.output_index

    @property
    def size_bytes(self) -> int:
        """Size on the device."""
        return self.type.size_bytes if self.type else 0

    @property
    def layer_index(self) -> int | None:
        """Layer that creates it; None outside the layers."""
        return self.producer.layer_index if self.producer else None


@dataclass(frozen=True)
class SavedStorage:
    """A storage that backward reads."""

    storage: Storage
    placement: Placement  # kept, swapped, or both
    holders: tuple[Node, ...]  # operators through whose outputs backward holds it on the device
    pairs: tuple[SwapPair, ...]  # copies to the host and back; several copy the same bytes several times
    first_user: int  # position in `Graph.backward` of its first reader, under any name

    @property
    def kept_bytes(self) -> int:
        """Bytes that stay on the device from forward to backward."""
        return self.storage.size_bytes if self.holders else 0

    @property
    def copied_bytes(self) -> int:
        """Bytes copied to the host, and the same back."""
        return sum(pair.size_bytes for pair in self.pairs)


@functools.lru_cache(maxsize=16)  # a planner classifies the same graph several times
def classify_saved(graph: Graph) -> tuple[SavedStorage, ...]:
    """Return the activations that backward needs, in order of production, each with its placement.

    Weights and inputs of the step are excluded, because they are on the device in any case.
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
    """Return the bytes that stay on the device from forward to backward, by producing layer; 0 for other keys."""
    kept_bytes: Counter[int | None] = Counter()
    for entry in saved:
        kept_bytes[entry.storage.layer_index] += entry.kept_bytes
    return kept_bytes


def _first_users(graph: Graph) -> dict[str, int]:
    """Return the position of the first reader in backward of each saved value, looking through views and `MoveTo`."""
    first = first_reader_positions(graph.backward, VIEW_OPS | {"MoveTo"})
    return {saved.forward_name: first.get(saved.backward_name, len(graph.backward)) for saved in graph.saved}


def first_reader_positions(
    nodes: Sequence[Node], passing: Set[str], is_reading: Callable[[Node], bool] = lambda node: True
) -> dict[str, int]:
    """Return the position of the first reader of each value.

    Args:
        nodes: operators in execution order.
        passing: types that only pass their inputs on; the readers of their outputs count instead.
        is_reading: whether an operator counts as a reader.
    """
    first: dict[str, int] = {}
    for position, node in reversed(list(enumerate(nodes))):
        reader_position = first.get(node.name, len(nodes)) if node.op in passing else position
        if node.op in passing or is_reading(node):
            for name in node.inputs:
                if first.get(name, reader_position) >= reader_position:
                    first[name] = reader_position
    return first


def resolve_storage(graph: Graph, name: str) -> Storage:
    """Return the storage of a forward value (operator or parameter), through views, tuples and reads of weights."""
    index: int | None = None  # selected output, set by TupleGetItem
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
