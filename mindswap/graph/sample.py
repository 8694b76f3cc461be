"""Which layers to compile when most are alike.

What a layer keeps depends on itself and on its neighbours: a recomputed layer keeps its input, which
the layer before it made. So a stretch of layers can be left out when each of them has its like, between
the same neighbours, among the rest, and the rest has the neighbours that it had.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerSample:
    """Layers of a model that are compiled, and what each layer of the model looks like."""

    indices: tuple[int, ...]  # model layers that are compiled, in order
    layer_map: tuple[int, ...]  # for each layer of the model, the position in `indices` of the one that stands for it

    @property
    def is_whole(self) -> bool:
        """Every layer is compiled."""
        return len(self.indices) == len(self.layer_map)


def sample_layers(kinds: Sequence[Hashable]) -> LayerSample:
    """The layers to compile; `kinds` say of each what it consists of and what is set on it: equal means alike."""
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    ends = [-1, *(numbers[kind] for kind in kinds), -1]
    places = [(before, kind, after) for before, kind, after in zip(ends, ends[1:], ends[2:], strict=False)]
    indices = list(range(len(kinds)))
    while cut := _longest_cut([places[index] for index in indices]):
        del indices[cut]
    own = {index: position for position, index in enumerate(indices)}
    # Of compiled layers in the same place the first stands for those that are left out.
    position_of = {places[index]: position for index, position in reversed(own.items())}
    return LayerSample(tuple(indices), tuple(own.get(i, position_of[place]) for i, place in enumerate(places)))


def _longest_cut(places: Sequence[tuple[int, ...]]) -> slice | None:
    """The longest stretch that can be left out, of equal ones the last; None where there is none.

    A place is the kind of the layer before, its own, and that of the layer behind.
    """
    in_all = Counter(places)
    borders: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        borders[place[1:]].append(index)
    stretches = [(first, last) for same in borders.values() for first in same for last in same if first < last]
    for first, last in sorted(stretches, key=lambda each: (each[0] - each[1], -each[0])):
        left_out = Counter(places[first + 1 : last + 1])
        if all(in_all[place] > count for place, count in left_out.items()):
            return slice(first + 1, last + 1)
    return None
