"""Blocks of a tracked step in PyNative mode that swap moves, by MindFormers 2.x or by mindswap's own executor.

MindFormers, for layer i and distance p: what the swapped cells of layer i save is copied out when forward of i ends,
freed when forward of i + p ends, and allocated again before backward of i + p begins. Outputs of the layer, and what
several layers read, stay. A tensor that is a part of its storage is copied as a contiguous tensor, which stays until
backward of i. A weight that is saved as a view, as a transposed one is, is not known as a weight, and moves as well.

mindswap: each entry has its own distance. Storages move as a whole, with the last layer that saves them; weights stay.
The last layers, which have no layer so far behind them, are freed at the end of the last one. An input of a recomputed
cell moves as well: with hooks on saved tensors, MindSpore saves it as any other tensor.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindswap.pynative.recomputed_regions import LayerActions, Region, Regions
from mindswap.pynative.step_index import BlockFacts, StepIndex, is_in


@dataclass(frozen=True)
class Move:
    """A block that moves to the host and back.

    Attributes:
        layer: copied out when its forward ends, needed when its backward begins.
        later_layer: freed when its forward ends, copied back when its backward begins.
        slice_bytes: size of a contiguous copy that stays until backward of `layer`; 0 for none.
        last_use: task of forward that the device memory is needed for in any case; -1 for none.
        first_read: task of backward that waits for the copy back; -1 for the first one of `layer`.
        readers: regions whose recomputation waits for the copy back.
    """

    layer: int
    later_layer: int
    slice_bytes: int = 0
    last_use: int = -1
    first_read: int = -1
    readers: tuple[Region, ...] = ()


class SwapMoves(ABC):
    """Which blocks move.

    Args:
        index: the tracked step.
        actions: one per layer.
        regions: what is recomputed.
    """

    def __init__(self, index: StepIndex, actions: Sequence[LayerActions], regions: Regions):
        self.index, self.actions, self.regions = index, actions, regions

    @abstractmethod
    def find(self, facts: BlockFacts, home: Region | None) -> Move | None:
        """Return how a saved block moves; None if it stays.

        Args:
            facts: uses of the block.
            home: the region that recomputes it.
        """

    def find_weights(self) -> dict[int, Move]:
        """Return the weights that move, by block."""
        return {}


class UpstreamMoves(SwapMoves):
    """Swap of MindFormers 2.x with HyperParallel.

    Args:
        index: see `SwapMoves`.
        actions: see `SwapMoves`.
        regions: see `SwapMoves`.
        prefetch: `default_prefetch`, in layers.
    """

    def __init__(self, index: StepIndex, actions: Sequence[LayerActions], regions: Regions, prefetch: int):
        super().__init__(index, actions, regions)
        self.prefetch = prefetch
        self.operators = frozenset(self._swapped_operators())

    def _swapped_operators(self) -> Iterator[int]:
        """Yield the operators of forward that run in a swapped cell."""
        for number, operator in enumerate(self.index.trace.operators):
            if operator.layer_index is not None and operator.is_forward:
                actions = self.actions[operator.layer_index]
                if actions.is_swapped or (actions.swapped and is_in(operator, actions.swapped)):
                    yield number

    def find(self, facts: BlockFacts, home: Region | None) -> Move | None:
        """See `SwapMoves`."""
        if facts.is_protected or not self.operators:
            return None
        operators = self.index.trace.operators
        savers = [
            s for s, _ in facts.reads if s in self.operators and self.regions.of(facts.micro_batch, s) is None
        ]  # fmt: skip
        for use in facts.forward_uses:
            operator = self.index.memory.tasks[use].operator
            region = self.regions.of(facts.micro_batch, operator)
            if operator in self.operators and region is not None and region is not home:
                savers.append(operator)  # an input of a recomputed cell
        layers = sorted({layer for saver in savers if (layer := operators[saver].layer_index) is not None})
        if not layers or layers[0] + self.prefetch >= self.index.num_layers:
            return None
        span = self.index.forward_spans[facts.micro_batch, layers[0]]
        if any(use > span.last for use in facts.forward_uses):
            return None
        return Move(layers[0], layers[0] + self.prefetch, facts.slice_bytes)

    def find_weights(self) -> dict[int, Move]:
        """Return the weights that move: of equal blocks any one, as only their size counts."""
        moves: dict[int, Move] = {}
        blocks = [number for number, facts in enumerate(self.index.blocks) if facts.is_permanent]
        for view in self.index.weight_views:
            layer = self.index.trace.operators[view.saver].layer_index
            if view.saver not in self.operators or view.saver in self.regions.names or layer is None:
                continue
            number = next((n for n in blocks if n not in moves and self.index.is_size_of(n, view.size_bytes)), None)
            if number is not None and layer + self.prefetch < self.index.num_layers:
                moves[number] = Move(layer, layer + self.prefetch)
        return moves


class OwnMoves(SwapMoves):
    """Swap of mindswap's own executor (`mindswap.swap_engine: mindswap`)."""

    def find(self, facts: BlockFacts, home: Region | None) -> Move | None:
        """See `SwapMoves`."""
        if facts.is_protected:
            return None
        savers = [saver for saver, _ in facts.reads if self.regions.of(facts.micro_batch, saver) is None]
        readers = self._readers(facts, home)
        distances = [
            distance
            for distance in (
                *map(self._distance_of_operator, savers),
                *(self._distance(reader.layer, reader.path) for reader in readers),
            )
            if distance is not None
        ]
        if not distances:
            return None
        operators = self.index.trace.operators
        layers = {layer for saver in savers if (layer := operators[saver].layer_index) is not None}
        layers |= {reader.layer for reader in readers}
        producer = self.index.task_of(facts.micro_batch, facts.operator, facts.block.begin)
        if len(layers) > 1 and self.index.layer_of(producer) is None:
            return None  # masks and tables that several layers read
        layer = max(layers)
        later_layer = min(layer + min(distances), self.index.num_layers - 1)
        first_read = min((task for saver, task in facts.reads if saver in savers), default=-1)
        return Move(layer, later_layer, 0, max(facts.forward_uses, default=-1), first_read, tuple(readers))

    def _distance_of_operator(self, saver: int) -> int | None:
        """Return the distance of the first entry that names an operator; None if none does."""
        operator = self.index.trace.operators[saver]
        if operator.layer_index is None:
            return None
        distances = self.actions[operator.layer_index].distances
        return next((count for path, count in distances if not path or is_in(operator, [path])), None)

    def _distance(self, layer: int, cell: str) -> int | None:
        """Return the distance of the first entry that names a cell, or a cell around it; None if none does."""
        distances = self.actions[layer].distances
        return next((count for path, count in distances if not path or f"{cell}.".startswith(f"{path}.")), None)

    def _readers(self, facts: BlockFacts, home: Region | None) -> list[Region]:
        """Return the recomputed layers and cells that have the block as an input."""
        regions = {}
        for use in facts.forward_uses:
            region = self.regions.of(facts.micro_batch, self.index.memory.tasks[use].operator)
            if region is not None and region is not home:
                regions[id(region)] = region
        return list(regions.values())
