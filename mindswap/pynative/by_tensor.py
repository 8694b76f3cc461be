"""Comparison and conversion of settings of MindFormers 1.9 and 2.x, by the tensors of a recorded step.

In 1.9 swap and recompute apply to the tensors that an operator produces, in 2.x to those that autograd saves in a cell.
A trace contains both. Its paths are those of 1.9; `to_2x_path` converts them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mindswap.policy.cell_tree import is_within
from mindswap.policy.formats.mindformers2.conversion import SwapTargets
from mindswap.policy.formats.mindformers2.effect import SettingsEffect
from mindswap.policy.formats.mindformers2.renaming import to_2x_path
from mindswap.policy.formats.mindformers2.tables import LayerPaths
from mindswap.policy.resolve import LayerDecisions
from mindswap.policy.wording import name_indices
from mindswap.pynative.schedule import Distance, Unit
from mindswap.pynative.trace import Operator, Trace
from mindswap.units import format_bytes

# A cell is named if the bytes it swaps in excess are at most this fraction of the bytes it should swap.
MAX_EXCESS_FRACTION = 0.1
INPUT = "the input of the layer"


@dataclass(frozen=True)
class StorageTreatment:
    """Indices of the saved storages that some settings swap and recompute."""

    moved: frozenset[int]
    recomputed: frozenset[int]


def treatment_in_1_9(trace: Trace, layers: Sequence[LayerDecisions]) -> StorageTreatment:
    """Return the treatment of each storage in MindFormers 1.9: that of its producer, or of its saver if unknown.

    Args:
        trace: the step.
        layers: decisions for each layer.
    """
    moved, recomputed = set(), set()
    for index, (producer, savers) in _activations(trace).items():
        if producer.layer_index is None:
            continue
        decisions = [layers[producer.layer_index].decision_for(path) for path in producer.paths]
        claims = [claim for decision in decisions for claim in decision.recomputed_by]
        # The output of a recomputed cell is saved, because it is read outside the cell.
        if claims and any(
            claim.match.node.is_primitive or _are_inside(savers, producer.layer_index, ".".join(claim.path), _paths)
            for claim in claims
        ):
            recomputed.add(index)
        elif not claims and all(decision.prefetch is not None for decision in decisions):
            moved.add(index)
    return StorageTreatment(frozenset(moved), frozenset(recomputed))


def treatment_in_2x(trace: Trace, effect: SettingsEffect) -> StorageTreatment:
    """Return the treatment of each storage in MindFormers 2.x: that of the cell which saves it.

    Args:
        trace: the step.
        effect: settings of each layer.
    """
    moved, recomputed = set(), set()
    for index, (producer, savers) in _activations(trace).items():
        layer_index = producer.layer_index
        if layer_index is not None and any(
            # A recomputed cell keeps outputs that others save; a recomputed operator does not keep its output.
            _are_inside([producer], layer_index, path, _paths_2x)
            and (is_single or _are_inside(savers, layer_index, path, _paths_2x))
            for path, is_single in _recomputed_2x(effect, layer_index)
        ):
            recomputed.add(index)
        elif _is_shared(producer, savers):
            continue
        elif any(_is_swapped_2x(effect, saver) for saver in savers):
            moved.add(index)
    return StorageTreatment(frozenset(moved), frozenset(recomputed))


def find_distances_2x(
    trace: Trace, effect: SettingsEffect, layer_indices: Sequence[int] | None = None
) -> dict[int, Distance]:
    """Return the distance of each storage that mindswap's own executor swaps for settings of MindFormers 2.x.

    Each entry has its own distance, all entries of `layer_swap` count, and the last layers are swapped as well.

    Args:
        trace: the step, recorded with the recompute of the settings.
        effect: the settings, and the paths in each layer.
        layer_indices: index in the model of each layer of the trace, which is of a pipeline stage; None for all layers.
    """
    settings = effect.settings
    options = ("op_swap", "layer_swap") if settings.is_swap_enabled else ()
    matches = [(target, effect.matches(target)) for option in options for target in settings.of(option)]

    def counts(saver: Operator) -> Iterator[int]:
        index = saver.layer_index
        if index is not None and layer_indices is not None:
            index = layer_indices[index]
        for target, paths_by_layer in matches:
            paths = paths_by_layer.get(index if index is not None else -1)
            is_named = paths is not None and (
                target.pattern is None or all(any(is_within(n, p) for p in paths) for n in _paths_2x(saver))
            )
            if is_named:
                yield target.prefetch or settings.prefetch or 1

    distances = {}
    for index, (producer, savers) in _activations(trace).items():
        found = [count for saver in savers if (count := next(counts(saver), None)) is not None]
        if found and not _is_shared(producer, savers):
            distances[index] = Distance(min(found), Unit.LAYERS, moves_last_layers=True)
    return distances


def choose_2x(trace: Trace, targets: frozenset[int], layer_paths: LayerPaths, num_layers: int) -> SwapTargets:
    """Choose settings of 2.x that swap these storages, as closely as full cells and operators can express it.

    Args:
        trace: the step.
        targets: indices of the storages to swap.
        layer_paths: cells and operators that can be named in a layer of 2.x.
        num_layers: number of layers that may be swapped, from the first.
    """
    candidates: dict[tuple[int, str], set[int]] = {}
    for index, (producer, savers) in _activations(trace).items():
        if _is_shared(producer, savers):
            continue
        for saver in savers:
            if saver.layer_index is not None and saver.layer_index < num_layers:
                for path in _prefixes(to_2x_path(_unambiguous_path(saver))):
                    if path in layer_paths.cells or path in layer_paths.callables or not path:
                        candidates.setdefault((saver.layer_index, path), set()).add(index)
    return _choose(trace, targets, candidates)


def choose_1_9(trace: Trace, targets: frozenset[int], is_nameable: Callable[[str], bool]) -> SwapTargets:
    """Choose settings of 1.9 that swap these storages.

    Args:
        trace: the step; paths are those of the recorded network.
        targets: indices of the storages to swap.
        is_nameable: whether a layer has a cell or primitive at a path.
    """
    candidates: dict[tuple[int, str], set[int]] = {}
    for index, (producer, _) in _activations(trace).items():
        if producer.layer_index is not None:
            for path in _prefixes(_unambiguous_path(producer)):
                if not path or is_nameable(path):
                    candidates.setdefault((producer.layer_index, path), set()).add(index)
    return _choose(trace, targets, candidates)


def differences(trace: Trace, before: Iterable[int], after: Iterable[int], action: str, after_name: str) -> list[str]:
    """Describe the storages that are only in one of two sets, grouped by cell and by equal layers.

    Args:
        trace: the step.
        before: indices of storages.
        after: indices of storages.
        action: treatment of the storages in `before`, e.g. "moves".
        after_name: name of the version of `after`, e.g. "2.x".
    """
    lines, activations = [], _activations(trace)
    for changed, verb in ((set(before) - set(after), "no longer"), (set(after) - set(before), "now also")):
        by_cell: dict[tuple[int, str], list[int]] = {}
        for index in sorted(changed):
            producer, savers = activations[index]
            layer, cell = producer.layer_index, producer.path[0]
            if layer is None:
                layer, cell = savers[0].layer_index, INPUT
            by_cell.setdefault((layer or 0, cell), []).append(index)
        groups: dict[str, list[int]] = {}
        for (layer, cell), indices in by_cell.items():
            label = cell if cell == INPUT else _paths(activations[indices[0]][0])[0]
            if len(indices) > 1:
                label = f"{len(indices)} tensors of {cell}"
            size = format_bytes(sum(trace.storages[index].size_bytes for index in indices))
            groups.setdefault(f"{label}, {size}", []).append(layer)
        lines += [
            f"{after_name} {verb} {action} {label}, {name_indices('layer', layers)}" for label, layers in groups.items()
        ]
    return lines


# -- treatment of storages ----------------------------------------------------------------------


def _activations(trace: Trace) -> dict[int, tuple[Operator, list[Operator]]]:
    """Return the storages that may be swapped, each with its producer and the forward operators that save it."""
    views = _producers_of_copies(trace)
    activations: dict[int, tuple[Operator, list[Operator]]] = {}
    for save in trace.saves:
        storage = trace.storages[save.storage]
        saver = trace.operators[save.operator]
        if storage.protection or not storage.size_bytes or not saver.is_forward:
            continue
        producer = views.get(save.storage, save.operator) if storage.producer is None else storage.producer
        activations.setdefault(save.storage, (trace.operators[producer], []))[1].append(saver)
    return activations


def _producers_of_copies(trace: Trace) -> dict[int, int]:
    """Return the producer of the viewed tensor for saved copies of views, which CPU kernels create.

    The copy corresponds to the first input of its shape that no other save of the operator corresponds to.
    """
    producers: dict[int, int] = {}
    for index, operator in enumerate(trace.operators):
        sources = {value.memory for value in operator.inputs}
        producers.update({value.memory: index for value in operator.outputs if value.memory not in sources})
    inputs = {index: list(operator.inputs) for index, operator in enumerate(trace.operators)}
    copy_producers: dict[int, int] = {}
    for save in trace.saves:
        storage, remaining = trace.storages[save.storage], inputs[save.operator]
        same_memory = [value for value in remaining if value.memory == storage.memory]
        value = next(
            (value for value in (*same_memory, *remaining) if value.shape == save.shape and not value.weight), None
        )
        if value is None:
            continue
        remaining.remove(value)
        memory = value.memory if value.copy_of is None else value.copy_of
        if storage.producer is None and memory in producers:
            copy_producers[save.storage] = producers[memory]
    return copy_producers


def _choose(trace: Trace, targets: frozenset[int], candidates: Mapping[tuple[int, str], set[int]]) -> SwapTargets:
    """Choose the largest cells that swap almost only targets, and otherwise cells inside them."""

    def size(storages: Iterable[int]) -> int:
        return sum(trace.storages[index].size_bytes for index in storages)

    def chosen(layer: int, path: str) -> list[str]:
        storages = candidates[layer, path]
        target_bytes, excess_bytes = size(storages & targets), size(storages - targets)
        if excess_bytes <= MAX_EXCESS_FRACTION * target_bytes:
            return [path] if target_bytes else []
        inner = [
            name
            for candidate_layer, name in candidates
            if candidate_layer == layer and name and name.rpartition(".")[0] == path != name
        ]
        parts = [chosen_path for name in inner for chosen_path in chosen(layer, name)]
        return parts or ([path] if target_bytes > excess_bytes else [])

    paths: dict[str, list[int]] = {}
    for layer in sorted({layer for layer, _ in candidates}):
        for path in chosen(layer, ""):
            paths.setdefault(path, []).append(layer)
    return SwapTargets(tuple(paths.pop("", ())), {path: tuple(layers) for path, layers in paths.items()})


def _paths(operator: Operator) -> list[str]:
    """Return all possible paths of an operator; a setting must apply to each of them."""
    return [".".join(path) for path in operator.paths]


def _paths_2x(operator: Operator) -> list[str]:
    return [to_2x_path(path) for path in _paths(operator)]


def _unambiguous_path(operator: Operator) -> str:
    """Return the path of an operator, or that of its cell if several paths are possible."""
    return ".".join(operator.path[:-1] if operator.alternative_names else operator.path)


def _prefixes(path: str) -> list[str]:
    """Return "" (the layer), the path of every enclosing cell, and the path itself."""
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]


def _are_inside(operators: Iterable[Operator], layer: int, path: str, names: Callable[[Operator], list[str]]) -> bool:
    def is_inside(operator: Operator) -> bool:
        return operator.layer_index == layer and all(is_within(name, path) for name in names(operator))

    return all(map(is_inside, operators))


def _is_shared(producer: Operator, savers: Sequence[Operator]) -> bool:
    """Return whether a storage is an input of several layers (masks, rotary tables), which 2.x keeps on the device."""
    return producer.layer_index is None and len({saver.layer_index for saver in savers}) > 1


def _recomputed_2x(effect: SettingsEffect, layer: int) -> list[tuple[str, bool]]:
    """Return the recomputed paths of a layer, and whether each is a single operator."""
    layer_effect = effect.layers[layer]
    if layer_effect.is_recomputed:
        return [("", False)]
    single = effect.model.layers[layer].callables if effect.model is not None else ()
    return [(path, path in single) for path in layer_effect.recomputed]


def _is_swapped_2x(effect: SettingsEffect, saver: Operator) -> bool:
    if saver.layer_index is None:
        return False
    layer_effect = effect.layers[saver.layer_index]

    def is_named(name: str) -> bool:
        return any(is_within(name, path) for path in layer_effect.swapped)

    return layer_effect.is_swapped or all(map(is_named, _paths_2x(saver)))
