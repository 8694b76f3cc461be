"""Activation memory over one step, operator by operator, by the lifetime of each storage.

Every storage lives from the operator that makes it to its last use. One that backward needs lives
until its last use there; a swapped one leaves after its copy out and comes back with its copy in.
Copies take no time here: the simulator knows about time, this is what must be there in any case.

Source:
    Liveness of values: Aho, Lam, Sethi and Ullman, "Compilers" (2006), section 9.2.5.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import NO_MEMORY_OPS
from mindswap.graph.storage import StorageKind, classify_saved, kept_bytes_by_layer, resolve_storage

# Which layers to compile when most are alike.
#
# What a layer keeps depends on itself and on the layer behind it: a recomputed layer keeps its input, which the layer
# before it made. So a stretch of layers can be left out when each of them has its like, before the same neighbour,
# among the rest, and the rest has the neighbours that it had. The first layer is like no other: it has no input that a
# layer made. What is live at one moment depends on the layer before, too.


@dataclass(frozen=True)
class LayerSample:
    """Layers of a model that are compiled, and what each layer of the model looks like."""

    indices: tuple[int, ...]  # model layers that are compiled, in order
    layer_map: tuple[int, ...]  # for each layer of the model, the position in `indices` of the one that stands for it

    @property
    def has_all_layers(self) -> bool:
        """Every layer is compiled."""
        return len(self.indices) == len(self.layer_map)


def choose_representative_layers(kinds: Sequence[Hashable], with_peak: bool = True) -> LayerSample:
    """The layers to compile; `kinds` say of each what it consists of and what is set on it: equal means alike.

    Without `with_peak` what layers keep and copy is known, and not what is live moment by moment (`find_peak`): of
    layers in turn fewer are compiled.
    """
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    ends = [None, *(numbers[kind] for kind in kinds), None]
    contexts = [
        (before if with_peak else before is None, kind, behind)
        for before, kind, behind in zip(ends, ends[1:], ends[2:], strict=False)
    ]
    indices = list(range(len(kinds)))
    while cut := _longest_omission([contexts[index] for index in indices], with_peak):
        del indices[cut]
    compiled_positions = {index: position for position, index in enumerate(indices)}
    # Of compiled layers in the same place the first stands for those that are left out.
    position_of = {contexts[index]: position for index, position in reversed(compiled_positions.items())}
    return LayerSample(
        tuple(indices), tuple(compiled_positions.get(i, position_of[context]) for i, context in enumerate(contexts))
    )


def _longest_omission(contexts: Sequence[tuple[int | None, ...]], with_peak: bool) -> slice | None:
    """The longest stretch that can be left out, of equal ones the last; None where there is none.

    A place is the kind of the layer before (or whether there is none), its own, and that of the layer behind.
    """
    in_all = Counter(contexts)
    borders: defaultdict[tuple[int | None, ...], list[int]] = defaultdict(list)
    for index, context in enumerate(contexts):
        borders[context[1:] if with_peak else context[2:]].append(index)
    stretches = [(first, last) for same in borders.values() for first in same for last in same if first < last]
    for first, last in sorted(stretches, key=lambda each: (each[0] - each[1], -each[0])):
        left_out = Counter(contexts[first + 1 : last + 1])
        if all(in_all[context] > count for context, count in left_out.items()):
            return slice(first + 1, last + 1)
    return None


@dataclass(frozen=True)
class Peak:
    """The moment of highest activation memory."""

    size_bytes: int  # bytes alive at that moment, outputs of the operator included
    node: Node  # the operator that runs then
    is_forward: bool  # whether it does in forward


def find_peak(graph: Graph, sample: LayerSample) -> Peak:
    """The peak of activation memory of one micro-batch on the whole model, with lazy_inline on.

    The compiled layers are replayed in order, each as the last of those that it stands for; what the layers keep that
    are not compiled is added.
    """
    nodes = (*graph.forward, *graph.backward)
    changes: Counter[int] = Counter()
    for first, last, size in (*_lifetimes(graph), *_uncompiled(graph, sample)):
        changes[first] += size
        changes[last + 1] -= size
    alive = list(accumulate(changes[moment] for moment in range(len(nodes))))
    peak_at = alive.index(max(alive))
    return Peak(alive[peak_at], nodes[peak_at], peak_at < len(graph.forward))


def _lifetimes(graph: Graph) -> Iterator[tuple[int, int, int]]:
    """(first moment, last moment, bytes) of every activation; backward follows forward in one count."""
    offset = len(graph.forward)
    parameter_of = {saved.forward_name: saved.backward_name for saved in graph.saved}
    last_in_backward = _last_uses(graph.backward, offset)
    first: dict[tuple[str, int], int] = {}
    last: defaultdict[tuple[str, int], int] = defaultdict(int)
    sizes: dict[tuple[str, int], int] = {}
    for moment, node in enumerate(graph.forward):
        for name in node.inputs:
            key = resolve_storage(graph, name).key
            last[key] = max(last[key], moment)
        storage = resolve_storage(graph, node.name)
        if node.op == "MoveTo" or storage.kind is not StorageKind.ACTIVATION:
            continue
        until = last_in_backward.get(parameter_of[node.name], offset) if node.name in parameter_of else moment
        first.setdefault(storage.key, moment)
        last[storage.key] = max(last[storage.key], until)
        sizes[storage.key] = storage.size_bytes
    for key, size in sizes.items():
        yield first[key], last[key], size
    for moment, node in enumerate(graph.backward, start=offset):
        if node.name in last_in_backward and node.op not in NO_MEMORY_OPS:
            yield moment, last_in_backward[node.name], node.size_bytes


def _last_uses(nodes: tuple[Node, ...], offset: int) -> dict[str, int]:
    """Last moment at which each value is read, also under the name of a view or tuple of it.

    What is only returned (the gradients of the weights) is not read: it is not an activation.
    """
    last: defaultdict[str, int] = defaultdict(int)
    for moment, node in reversed([*enumerate(nodes, start=offset)]):
        if node.op in NO_MEMORY_OPS and node.name not in last:
            continue
        until = last[node.name] if node.op in NO_MEMORY_OPS else moment
        for name in node.inputs:
            last[name] = max(last[name], until)
    return last


def _uncompiled(graph: Graph, sample: LayerSample) -> Iterator[tuple[int, int, int]]:
    """Bytes of the layers that the sample leaves out, at each operator.

    It runs for the last layer of the model that its own stands for: then all layers before that one wait for
    backward, and of the sample those before its own.
    """
    by_layer = kept_bytes_by_layer(classify_saved(graph))
    kept = [by_layer[position] for position in range(len(sample.indices))]
    waiting = list(accumulate((kept[position] for position in sample.layer_map), initial=0))
    compiled = list(accumulate(kept, initial=0))
    last = {position: layer for layer, position in enumerate(sample.layer_map)}
    running: int | None = None
    for moment, node in enumerate((*graph.forward, *graph.backward)):
        running = node.layer_index if node.layer_index is not None else running
        if running is not None:
            yield moment, moment, waiting[last[running]] - compiled[running]
