"""Activation memory over one step, operator by operator, by the lifetime of each storage. Pure.

Every storage lives from the operator that makes it to its last use. One that backward needs lives
until its last use there; a swapped one leaves after its copy out and comes back with its copy in.
Copies take no time here: the simulator knows about time, this is what must be there in any case.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import NO_MEMORY_OPS
from mindswap.graph.sample import LayerSample
from mindswap.graph.storage import StorageKind, classify_saved, resolve_storage

__all__ = ["Peak", "find_peak"]


@dataclass(frozen=True)
class Peak:
    """The moment of highest activation memory.

    Attributes:
        size_bytes: bytes alive at that moment, outputs of the operator included.
        node: the operator that runs then.
        is_forward: it runs in forward.
    """

    size_bytes: int
    node: Node
    is_forward: bool


def find_peak(graph: Graph, sample: LayerSample) -> Peak:
    """The peak of activation memory of one micro-batch on the whole model.

    The compiled layers are replayed in order, each as the last of those that it stands for; what the layers keep that
    are not compiled is added.

    Args:
        graph: a compiled step with lazy_inline on.
        sample: which compiled layer stands for how many of the model.
    """
    num_forward = len(graph.forward)
    changes = [0] * (num_forward + len(graph.backward) + 1)
    for first, last, size in _lifetimes(graph):
        changes[first] += size
        changes[last + 1] -= size
    for first, last, size in _uncompiled(graph, sample):
        changes[first] += size
        changes[last + 1] -= size
    alive = peak = peak_at = 0
    for moment, change in enumerate(changes):
        alive += change
        if alive > peak:
            peak, peak_at = alive, moment
    is_forward = peak_at < num_forward
    node = graph.forward[peak_at] if is_forward else graph.backward[peak_at - num_forward]
    return Peak(peak, node, is_forward)


def _lifetimes(graph: Graph) -> Iterator[tuple[int, int, int]]:
    """(first moment, last moment, bytes) of every activation; backward follows forward in one count."""
    offset = len(graph.forward)
    parameter_of = {saved.forward_name: saved.backward_name for saved in graph.saved}
    last_in_backward = _last_uses(graph.backward, offset)
    spans: dict[tuple[str, int], list[int]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for moment, node in enumerate(graph.forward):
        if node.op == "MoveTo":
            continue
        storage = resolve_storage(graph, node.name)
        if storage.kind is not StorageKind.ACTIVATION:
            continue
        key = (storage.name, storage.output_index)
        sizes[key] = storage.size_bytes
        spans.setdefault(key, [moment, moment])
        if node.name in parameter_of:
            spans[key][1] = max(spans[key][1], last_in_backward.get(parameter_of[node.name], offset))
    for moment, node in enumerate(graph.forward):
        for name in node.inputs:
            storage = resolve_storage(graph, name)
            key = (storage.name, storage.output_index)
            if key in spans:
                spans[key][1] = max(spans[key][1], moment)
    for key, (first, last) in spans.items():
        yield first, last, sizes[key]
    for moment, node in enumerate(graph.backward, start=offset):
        if node.name in last_in_backward and node.op not in NO_MEMORY_OPS:
            yield moment, last_in_backward[node.name], node.size_bytes


def _last_uses(nodes: tuple[Node, ...], offset: int) -> dict[str, int]:
    """Last moment at which each value is read, also under the name of a view or tuple of it.

    What is only returned (the gradients of the weights) is not read: it is no activation.
    """
    last: dict[str, int] = {}
    for moment in range(len(nodes) - 1, -1, -1):
        node = nodes[moment]
        if node.op in NO_MEMORY_OPS and node.name not in last:
            continue
        until = last[node.name] if node.op in NO_MEMORY_OPS else moment + offset
        for name in node.inputs:
            last[name] = max(last.get(name, 0), until)
    return last


def _uncompiled(graph: Graph, sample: LayerSample) -> Iterator[tuple[int, int, int]]:
    """What the layers keep that the sample leaves out, at each operator.

    It runs for the last layer of the model that its own stands for: then all layers before that one wait for
    backward, and of the sample those before its own.
    """
    kept = [0] * len(sample.indices)
    for entry in classify_saved(graph):
        if entry.storage.layer_index is not None:
            kept[entry.storage.layer_index] += entry.kept_bytes
    waiting = list(accumulate((kept[position] for position in sample.layer_map), initial=0))
    compiled = list(accumulate(kept, initial=0))
    last = {position: layer for layer, position in enumerate(sample.layer_map)}
    running: int | None = None
    for moment, node in enumerate((*graph.forward, *graph.backward)):
        running = node.layer_index if node.layer_index is not None else running
        if running is not None:
            yield moment, moment, waiting[last[running]] - compiled[running]
