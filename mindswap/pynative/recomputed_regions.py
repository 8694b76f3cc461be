"""Recomputed layers and cells of a tracked step in PyNative mode: which tasks run once more, and when."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mindswap.pynative.step_index import StepIndex, is_in


@dataclass(frozen=True)
class LayerActions:
    """What happens to a layer; paths are dotted, below the layer.

    Attributes:
        is_recomputed: recomputed as a whole.
        is_swapped: swapped as a whole.
        recomputed: recomputed cells.
        swapped: swapped cells and operators.
        distances: (path, distance in layers) of each swap, in the order in which the first one counts; "" is the layer.
            Only mindswap's own swap has more than one distance.
    """

    is_recomputed: bool = False
    is_swapped: bool = False
    recomputed: tuple[str, ...] = ()
    swapped: tuple[str, ...] = ()
    distances: tuple[tuple[str, int], ...] = ()


@dataclass(eq=False)
class Region:
    """A layer or cell that is recomputed, in one micro-batch."""

    layer: int
    path: str  # of the cell, dotted; "" for the layer
    tasks: list[int]  # of forward, ascending
    begin: int  # task of backward before which it runs again
    positions: dict[int, int] = field(default_factory=dict)  # task of forward -> position when it runs again


class Regions:
    """Recomputed layers and cells of a step.

    Args:
        index: the tracked step.
        actions: one per layer.
        is_whole: whether cells run again to their end, as under mindswap's own swap; MindSpore stops after the last
            tensor that backward needs. Layers always run to their end.

    Attributes:
        names: layer and path of the recomputed cell, by operator of forward that it contains.
        by_name: the regions by micro-batch, layer and path; those that save nothing do not run again.
    """

    def __init__(self, index: StepIndex, actions: Sequence[LayerActions], is_whole: bool = False):
        self.index = index
        self.is_whole = is_whole
        self.names = dict(_region_names(index, actions))
        self.by_name = self._find()

    def of(self, micro_batch: int, operator: int) -> Region | None:
        """Return the region of an operator; None if it does not run again."""
        name = self.names.get(operator)
        return None if name is None else self.by_name.get((micro_batch, *name))

    def _find(self) -> dict[tuple[int, int, str], Region]:
        savers: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)  # (saver, task of its read)
        for facts in self.index.blocks:
            for saver, task in facts.reads:
                name = self.names.get(saver)
                if name is not None:
                    savers[(facts.micro_batch, *name)].append((saver, task))
        operators: dict[tuple[int, str], list[int]] = defaultdict(list)
        for operator, name in self.names.items():
            operators[name].append(operator)
        regions = {}
        for key, reads in savers.items():
            micro_batch, layer, path = key
            last = max(max(self.index.forward_tasks[micro_batch, saver], default=-1) for saver, _ in reads)
            tasks = sorted(
                task
                for operator in operators[layer, path]
                for task in self.index.forward_tasks[micro_batch, operator]
                if not path or self.is_whole or task <= last
            )
            if tasks:  # the alignment may lack some; then the cell stays as tracked
                regions[key] = Region(layer, path, tasks, min(task for _, task in reads))
        return regions


def _region_names(index: StepIndex, actions: Sequence[LayerActions]) -> Iterator[tuple[int, tuple[int, str]]]:
    """Yield the operators of forward that run again, with the layer and the path of the recomputed cell."""
    for number, operator in enumerate(index.trace.operators):
        if operator.layer_index is None or not operator.is_forward:
            continue
        of_layer = actions[operator.layer_index]
        if of_layer.is_recomputed:
            yield number, (operator.layer_index, "")
            continue
        path = next((path for path in of_layer.recomputed if is_in(operator, [path])), None)
        if path is not None:
            yield number, (operator.layer_index, path)
