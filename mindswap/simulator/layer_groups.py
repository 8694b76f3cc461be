"""Layers whose outputs are not kept, as one block for each group of layers that backward recomputes together.

`mindswap.output_recompute` takes the output of a recomputed layer from what backward finds: the layers from the last
kept output on run again together, before backward of the last of them. One block holds such a group, because its
tensors are read several layers away from where they are produced.

    layers      | 0 | 1 | 2 | 3 | 4 |      output_recompute: [0, 1, 3]
    groups      | 0 - 2     | 3 - 4 |
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mindswap.errors import SimulationError
from mindswap.graph.analysis.liveness import LayerSample, choose_representative_layers
from mindswap.graph.layer_paths import assign_layer_indices
from mindswap.graph.model import Graph, Node
from mindswap.graph.passes.unroll import unroll_layers
from mindswap.policy.model import Policy
from mindswap.policy.resolve import Setting, acting_entries, layer_key
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.layer_block import Block
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.partition import BlockBuilder


@dataclass(frozen=True, eq=False)
class LayerGroups:
    """The layers of a model in groups that are recomputed together, and a step with representatives of them.

    Attributes:
        starts: first layer of each group, and the number of layers last.
        sample: groups whose layers are in `captured`, and the representative of each group.
        captured: step in which each layer of the representative groups is compiled.
        layers: layer of the model of each layer of `captured`.
        group_of: position in `sample.indices` of the group of each layer of `captured`.
    """

    starts: tuple[int, ...]
    sample: LayerSample
    captured: CapturedStep
    layers: tuple[int, ...]
    group_of: tuple[int, ...]

    def read_blocks(self, graph: Graph, builder: Callable[..., BlockBuilder], is_swapping: bool) -> list[Block]:
        """Return the blocks of the model: before the layers, every group, after the layers.

        Args:
            graph: of the layers of `captured`, under the policy.
            builder: `BlockBuilder` without the arguments that depend on the graph.
            is_swapping: as for `BlockBuilder`.
        """
        names = self.captured.names()
        labels = {node.name: names(node) for node in graph.forward}
        read = builder(
            graph=self._as_segments(graph),
            label=lambda node: labels[node.name],
            is_swapping=is_swapping,
            layer_offsets=self._offsets(graph),
        )
        segments = [-1, *self.sample.layer_map, len(self.sample.indices)]
        blocks = {segment: read.block(segment) for segment in dict.fromkeys(segments)}
        return [blocks[segment] for segment in segments]

    def _as_segments(self, graph: Graph) -> Graph:
        """Return a graph in which the layer index of an operator is that of its group."""

        def renumbered(node: Node) -> Node:
            return node if node.layer_index is None else replace(node, layer_index=self.group_of[node.layer_index])

        forward, backward = tuple(map(renumbered, graph.forward)), tuple(map(renumbered, graph.backward))
        return replace(graph, forward=forward, backward=backward)

    def _offsets(self, graph: Graph) -> dict[str, int]:
        """Return the position of the layer of each operator within its group, by name of the operator."""
        first = {group: self.group_of.index(group) for group in self.group_of}
        return {
            node.name: node.layer_index - first[self.group_of[node.layer_index]]
            for node in (*graph.forward, *graph.backward)
            if node.layer_index is not None
        }

    def layout(self, layout: StageLayout) -> StageLayout:
        """Return the layout in which a segment is a group.

        Raises:
            SimulationError: if a group is on several stages or chunks.
        """
        segment_of = {0: 0} | {start + 1: number + 1 for number, start in enumerate(self.starts)}
        for stage, stage_chunks in enumerate(layout.chunks):
            for chunk in stage_chunks:
                if chunk[-1] <= self.starts[-1] and chunk[-1] + 1 not in segment_of:
                    raise SimulationError(
                        f"mindswap.output_recompute: layer {chunk[-1] - 1} is the last of a chunk of stage {stage}, "
                        "whose output is sent\n    allowed: layers that another one of the same chunk follows\n"
                        f"    fix:     take {chunk[-1] - 1} out"
                    )

        def segments(chunk: Sequence[int]) -> tuple[int, ...]:
            return tuple(segment_of[segment] for segment in chunk if segment in segment_of)

        return replace(layout, chunks=tuple(tuple(map(segments, chunks)) for chunks in layout.chunks))


def group_layers(source: CapturedStep, policy: Policy) -> LayerGroups:
    """Group the layers of a model by the outputs that a policy keeps.

    Args:
        source: the captured step, with layers that represent all layers.
        policy: the policy, with swap enabled.

    Raises:
        SimulationError: if the last layer does not keep its output, or if layers of a group do not fit together.
    """
    num_layers = source.num_layers
    lacks_output = [_lacks_output(policy, index) for index in range(num_layers)]
    if lacks_output[-1]:
        raise SimulationError(
            f"mindswap.output_recompute: the output of the last layer, {num_layers - 1}, is read after the layers\n"
            f"    allowed: layers 0 to {num_layers - 2}\n    fix:     take {num_layers - 1} out"
        )
    starts = (0, *(index + 1 for index in range(num_layers) if not lacks_output[index]))
    groups = [range(first, end) for first, end in pairwise(starts)]
    kinds: list[Hashable] = [
        tuple((source.sample.layer_map[index], layer_key(policy, index)) for index in group) for group in groups
    ]
    sample = choose_representative_layers(kinds)
    layers = tuple(index for number in sample.indices for index in groups[number])
    group_of = tuple(position for position, number in enumerate(sample.indices) for _ in groups[number])
    return LayerGroups(starts, sample, _unrolled(source, layers), layers, group_of)


def _lacks_output(policy: Policy, layer_index: int) -> bool:
    return any(entry.setting is Setting.OUTPUT_RECOMPUTE for entry in acting_entries(policy, layer_index))


def _unrolled(source: CapturedStep, layers: Sequence[int]) -> CapturedStep:
    """Return the step with a compiled layer for each of some layers of the model."""
    sources = [source.sample.layer_map[index] for index in layers]
    step = unroll_layers(assign_layer_indices(source.graph), sources)
    collectives = {
        name: entries
        for compiled_name, entries in source.collectives.items()
        for name in step.copies.get(compiled_name, (compiled_name,))
    }
    return replace(
        source,
        sample=LayerSample(tuple(layers), tuple(range(len(layers)))),
        trees=tuple(source.trees[position] for position in sources),
        graph=step.graph,
        collectives=collectives,
    )
