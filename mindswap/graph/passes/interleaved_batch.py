"""Interleaved parts of a micro-batch (`micro_batch_interleave_num`): forward of all parts layer by layer.

`nn.MicroBatchInterleaved` calls the network once for each part. The compiler lists forward of one part after that of
the other; the Ascend backend computes all parts of a layer before the next layer. Backward has that order already. In a
layer the parts alternate as the halves of `fine_grain_interleave` do (`interleaved_halves`), and the gradients of all
parts are added before they are reduced (docs/internals/notes.md#interleaved-parts-of-a-micro-batch).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from mindswap.graph.model import Graph, Node

# Cell that slices a part from the batch: `interleave_inputs` of nn.MicroBatchInterleaved.
PART_CELL = re.compile(r"(?:^|\.)interleave_inputs\.\d+$")
BEFORE_LAYERS, AFTER_LAYERS = -1, math.inf


def is_slice_of_part(node: Node) -> bool:
    """Return whether an operator slices a part from an input of the step."""
    return node.op == "StridedSlice" and PART_CELL.search(node.cell_path) is not None


def order_by_layer(graph: Graph) -> Graph:
    """Return a step with forward in the order of layers: all parts of a segment before the next segment."""
    segments = _forward_segments(graph.forward)
    return replace(graph, forward=tuple(sorted(graph.forward, key=lambda node: segments[node.name])))


def _forward_segments(nodes: Sequence[Node]) -> dict[str, float]:
    """Return the layer of each operator; outside the layers by whether it depends on one, or is read by one."""
    segments: dict[str, float] = {}
    for node in nodes:
        is_dependent = any(segments.get(name, BEFORE_LAYERS) >= 0 for name in node.inputs)
        outside = AFTER_LAYERS if is_dependent else BEFORE_LAYERS
        segments[node.name] = node.layer_index if node.layer_index is not None else outside
    read_before: set[str] = set()  # values that a layer depends on, or an operator before the layers
    for node in reversed(nodes):
        if segments[node.name] == BEFORE_LAYERS and node.name not in read_before:
            segments[node.name] = AFTER_LAYERS  # labels
        elif segments[node.name] < AFTER_LAYERS:
            read_before.update(node.inputs)
    return segments
