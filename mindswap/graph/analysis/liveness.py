"""Activation memory during one step, derived from the lifetime of each storage.

A storage lives from its producer to its last use, in backward if it is saved. A swapped storage is freed after its copy
to the host and allocated again with the copy back. Copies take no time in this analysis (the simulator models time), so
the result is a lower limit.

Source:
    Liveness of values: Aho, Lam, Sethi and Ullman, "Compilers" (2006), section 9.2.5.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import NO_MEMORY_OPS
from mindswap.graph.storage import StorageKind, classify_saved, kept_bytes_by_layer, resolve_storage

# Representative layers of a model in which most layers are equal.
#
# The tensors that a layer saves depend on the layer and on the next one: a recomputed layer saves its input, an output
# of the previous layer. Memory during a layer also depends on the previous one. A range of layers can therefore be
# omitted if each of them has a representative with the same neighbours among the remaining layers, and if the remaining
# layers keep their neighbours. The first layer is unique, because its input comes from no layer.


@dataclass(frozen=True)
class LayerSample:
    """Compiled layers of a model, and the compiled layer that represents each layer of the model."""

    indices: tuple[int, ...]  # indices in the model of the compiled layers, in order
    layer_map: tuple[int, ...]  # for each layer of the model, the position of its representative in `indices`

    @property
    def has_all_layers(self) -> bool:
        """Return whether every layer is compiled."""
        return len(self.indices) == len(self.layer_map)


def choose_representative_layers(kinds: Sequence[Hashable], with_peak: bool = True) -> LayerSample:
    """Choose the layers to compile.

    Args:
        kinds: class of each layer (structure and settings); layers of equal classes are interchangeable.
        with_peak: choose enough layers for `find_peak`; otherwise only for the saved and copied tensors, which takes
            fewer layers if classes alternate.
    """
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    ends = [None, *(numbers[kind] for kind in kinds), None]
    contexts = [
        (before if with_peak else before is None, kind, behind)
        for before, kind, behind in zip(ends, ends[1:], ends[2:], strict=False)
    ]
    indices = list(range(len(kinds)))
    while omitted := _longest_omission([contexts[index] for index in indices], with_peak):
        del indices[omitted]
    compiled_positions = {index: position for position, index in enumerate(indices)}
    # The first compiled layer of each context represents the omitted ones.
    position_of = {contexts[index]: position for index, position in reversed(compiled_positions.items())}
    return LayerSample(
        tuple(indices), tuple(compiled_positions.get(i, position_of[context]) for i, context in enumerate(contexts))
    )


def _longest_omission(contexts: Sequence[tuple[int | None, ...]], with_peak: bool) -> slice | None:
    """Return the longest range of layers that can be omitted, the last of equally long ones; None if there is none.

    Args:
        contexts: of each remaining layer, the class of the previous layer (or whether there is none), its own class,
            and the class of the next layer.
        with_peak: see `choose_representative_layers`.
    """
    in_all = Counter(contexts)
    borders: defaultdict[tuple[int | None, ...], list[int]] = defaultdict(list)
    for index, context in enumerate(contexts):
        borders[context[1:] if with_peak else context[2:]].append(index)
    stretches = [(first, last) for same in borders.values() for first in same for last in same if first < last]
    for first, last in sorted(stretches, key=lambda bounds: (bounds[0] - bounds[1], -bounds[0])):
        left_out = Counter(contexts[first + 1 : last + 1])
        if all(in_all[context] > count for context, count in left_out.items()):
            return slice(first + 1, last + 1)
    return None


class Lifetime(NamedTuple):
    """Positions of the first and last operator during which memory is live; backward follows forward."""

    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True)
class Peak:
    """Peak of activation memory."""

    size_bytes: int  # live bytes, outputs of the operator included
    node: Node  # operator that runs at the peak
    is_forward: bool  # whether it is an operator of forward


def find_peak(graph: Graph, sample: LayerSample) -> Peak:
    """Return the peak of activation memory of one micro-batch of the full model, with lazy_inline.

    Each compiled layer is evaluated as the last layer of the model that it represents; the saved tensors of the layers
    that are not compiled are added.

    Args:
        graph: of the layers of `sample`.
        sample: chosen with `with_peak`.
    """
    nodes = (*graph.forward, *graph.backward)
    changes: Counter[int] = Counter()
    for lifetime in (*_lifetimes(graph), *_uncompiled(graph, sample)):
        changes[lifetime.first] += lifetime.size_bytes
        changes[lifetime.last + 1] -= lifetime.size_bytes
    live_bytes = list(accumulate(changes[op_position] for op_position in range(len(nodes))))
    peak_at = live_bytes.index(max(live_bytes))
    return Peak(live_bytes[peak_at], nodes[peak_at], peak_at < len(graph.forward))


def _lifetimes(graph: Graph) -> Iterator[Lifetime]:
    """Yield the lifetime of every activation; positions of backward continue those of forward."""
    offset = len(graph.forward)
    parameter_of = {saved.forward_name: saved.backward_name for saved in graph.saved}
    last_in_backward = _last_uses(graph.backward, offset)
    first: dict[tuple[str, int], int] = {}
    last: defaultdict[tuple[str, int], int] = defaultdict(int)
    sizes: dict[tuple[str, int], int] = {}
    for op_position, node in enumerate(graph.forward):
        for name in node.inputs:
            key = resolve_storage(graph, name).key
            last[key] = max(last[key], op_position)
        storage = resolve_storage(graph, node.name)
        if node.op == "MoveTo" or storage.kind is not StorageKind.ACTIVATION:
            continue
        last_use = last_in_backward.get(parameter_of[node.name], offset) if node.name in parameter_of else op_position
        first.setdefault(storage.key, op_position)
        last[storage.key] = max(last[storage.key], last_use)
        sizes[storage.key] = storage.size_bytes
    for key, size in sizes.items():
        yield Lifetime(first[key], last[key], size)
    for op_position, node in enumerate(graph.backward, start=offset):
        if node.name in last_in_backward and node.op not in NO_MEMORY_OPS:
            yield Lifetime(op_position, last_in_backward[node.name], node.size_bytes)


def _last_uses(nodes: tuple[Node, ...], offset: int) -> dict[str, int]:
    """Return the position of the last reader of each value, looking through views and tuples.

    Values that are only returned (the gradients of the weights) are not included, because they are no activations.
    """
    last: defaultdict[str, int] = defaultdict(int)
    for op_position, node in reversed([*enumerate(nodes, start=offset)]):
        if node.op in NO_MEMORY_OPS and node.name not in last:
            continue
        last_use = last[node.name] if node.op in NO_MEMORY_OPS else op_position
        for name in node.inputs:
            last[name] = max(last[name], last_use)
    return last


def _uncompiled(graph: Graph, sample: LayerSample) -> Iterator[Lifetime]:
    """Yield, for each operator, the bytes saved by layers that are not compiled.

    Each compiled layer is evaluated as the last layer that it represents. At that point all earlier layers of the model
    have saved tensors; those of the earlier compiled layers are already in the graph.
    """
    by_layer = kept_bytes_by_layer(classify_saved(graph))
    kept_bytes = [by_layer[position] for position in range(len(sample.indices))]
    waiting = list(accumulate((kept_bytes[position] for position in sample.layer_map), initial=0))
    compiled = list(accumulate(kept_bytes, initial=0))
    last = {position: layer for layer, position in enumerate(sample.layer_map)}
    running: int | None = None
    for op_position, node in enumerate((*graph.forward, *graph.backward)):
        running = node.layer_index if node.layer_index is not None else running
        if running is not None:
            yield Lifetime(op_position, op_position, waiting[last[running]] - compiled[running])
