"""Compute the effect of settings in MindFormers 2.x on each layer, and the settings that it ignores.

Follows `apply_recompute` and `apply_swap` of mindformers/pynative/distributed/activation_checkpoint.py (2.1.0).
If the paths of a layer are not known, a pattern counts as a path.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mindswap.policy.cell_tree import PatternError
from mindswap.policy.formats.mindformers2.settings import Settings2x, Target
from mindswap.policy.formats.mindformers2.tables import Model, is_below, match_paths


@dataclass(frozen=True)
class Drop:
    """A path in the settings that gets no wrapper."""

    option: str  # as in `Target.option`
    path: str  # dotted path below the layer
    reason: str  # reason in words


@dataclass(frozen=True)
class LayerOutcome:
    """Outcome for one layer."""

    is_recomputed: bool  # the full layer is recomputed
    recomputed: tuple[str, ...]  # paths wrapped for recompute
    comm_recomputed: tuple[str, ...]  # paths wrapped for recompute of communication
    excluded: tuple[str, ...]  # paths wrapped for exclusion from recompute
    is_swapped: bool  # the full layer is swapped
    swapped: tuple[str, ...]  # paths wrapped for swap
    fetch_layer: int | None  # layer at whose backward the prefetch starts; None without swap
    drops: tuple[Drop, ...]  # paths without effect
    refused_cells: tuple[str, ...]  # cells in `recompute_comm`, which accepts operators only


ROTARY_READERS = frozenset({"self_attention", "self_attention.apply_rotary_pos_emb"})
# Layer -> paths, as upstream prints them in a "Configuration Map".
LayerMap = dict[int, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class SettingsEffect:
    """Effect of the settings."""

    settings: Settings2x  # the parsed settings
    model: Model | None  # paths in the layers; None if not known
    maps: Mapping[str, LayerMap]  # option as in `Target.option` -> map, for options whose map upstream prints
    layers: tuple[LayerOutcome, ...]  # one per layer of the model; empty if their number is not known
    # (option, pattern) without a match in any of its layers, in the order of upstream's warnings
    unmatched: tuple[tuple[str, str], ...]

    @property
    def swaps_anything(self) -> bool:
        """Return whether any layer swaps a tensor."""
        return any(layer.is_swapped or layer.swapped for layer in self.layers)

    @property
    def swaps_rotary(self) -> bool:
        """Return whether a swapped cell reads the rotary cos and sin, which all layers share."""
        return any(layer.is_swapped or ROTARY_READERS.intersection(layer.swapped) for layer in self.layers)

    def matches(self, target: Target) -> dict[int, tuple[str, ...]]:
        """Return the paths that a target matches in each of its layers."""
        return {layer: _named(target, layer, self.model) for layer in self.settings.layers_of(target)}


def compute_effect(settings: Settings2x, model: Model | None) -> SettingsEffect:
    """Compute the effect of settings in MindFormers, even if they have problems."""
    unmatched: list[tuple[str, str]] = []

    def expand(option: str) -> LayerMap:
        return _expand(settings, model, option, unmatched)

    full = settings.full_layers
    swapped = settings.swap_layers if settings.is_swap_enabled else frozenset()
    maps: dict[str, LayerMap] = {}
    if settings.mode == "select":
        maps["select_module"] = _clean(expand("select_module"), full)
    if settings.mode in ("full", "select") and settings.of("exclude_op"):
        maps["exclude_op"] = _clean(expand("exclude_op"), frozenset())
    if settings.is_comm_enabled and settings.of("comm"):
        maps["comm"] = _clean_comm(expand("comm"), full, maps.get("select_module", {}))
    if settings.is_swap_enabled and settings.of("op_swap"):
        maps["op_swap"] = _clean(expand("op_swap"), swapped)
    count = settings.num_layers or 0
    layers = tuple(_apply(settings, model, maps, index, index in full, index in swapped) for index in range(count))
    return SettingsEffect(settings, model, maps, layers, tuple(unmatched))


def _named(target: Target, layer: int, model: Model | None) -> tuple[str, ...]:
    if target.pattern is None:
        return ()
    if model is None:
        return (target.pattern,)
    try:
        return match_paths(target.pattern, model.layers[layer].order) if layer < len(model.layers) else ()
    except PatternError:
        return ()


def _expand(settings: Settings2x, model: Model | None, option: str, unmatched: list[tuple[str, str]]) -> LayerMap:
    """Return the paths of an option by layer, in the order of its patterns.

    Of equal patterns, the last one applies, in the position of the first one.
    """
    by_pattern = {target.pattern or "": target for target in settings.of(option)}
    paths_by_layer: dict[int, dict[str, None]] = {}
    for pattern, target in by_pattern.items():
        named = {layer: _named(target, layer, model) for layer in settings.layers_of(target)}
        if not any(named.values()):
            unmatched.append((option, pattern))
        for layer, paths in named.items():
            if paths:
                paths_by_layer.setdefault(layer, {}).update(dict.fromkeys(paths))
    return {layer: tuple(paths) for layer, paths in paths_by_layer.items()}


def _clean(layer_map: LayerMap, full_layers: frozenset[int]) -> LayerMap:
    """Remove layers that are covered as full layers, and paths below another path of the map."""
    cleaned = {}
    for layer, paths in layer_map.items():
        if layer not in full_layers:
            ordered = sorted(paths, key=lambda path: (path.count("."), path))
            cleaned[layer] = tuple(p for p in ordered if not _below_any(p, ordered))
    return cleaned


def _clean_comm(layer_map: LayerMap, full_layers: frozenset[int], recompute: LayerMap) -> LayerMap:
    cleaned = {}
    for layer, paths in layer_map.items():
        kept = tuple(path for path in paths if not _below_any(path, recompute.get(layer, ())))
        if layer not in full_layers and kept:
            cleaned[layer] = kept
    return cleaned


def _below_any(path: str, parents: Iterable[str]) -> bool:
    return any(is_below(path, parent) for parent in parents)


def _apply(
    settings: Settings2x, model: Model | None, maps: Mapping[str, LayerMap], index: int, is_full: bool, is_swapped: bool
) -> LayerOutcome:
    """Wrap the paths of a layer in upstream's order; paths below a wrapper cannot be wrapped any more."""
    drops: list[Drop] = []
    wrapped: list[str] = []

    def is_cell(path: str) -> bool:
        return model is None or path in model.layers[index].cells

    def wrap(option: str, paths: Sequence[str], closed: str) -> tuple[str, ...]:
        done = []
        for path in paths:
            parent = next((cell for cell in wrapped if is_below(path, cell)), None)
            if closed or parent is not None:
                drops.append(Drop(option, path, closed or f"is inside '{parent}', which is wrapped already"))
            else:
                done.append(path)
        wrapped.extend(path for path in done if is_cell(path) and path not in wrapped)
        return tuple(done)

    named = defaultdict(tuple, {option: layer_map.get(index, ()) for option, layer_map in maps.items()})
    excluded = wrap("exclude_op", named["exclude_op"], "")
    recomputed = wrap("select_module", named["select_module"], "")
    closed = "the layer is fully recomputed" if is_full else ""
    comm = named["comm"]
    cells = tuple(path for path in comm if model is not None and is_cell(path) and not _below_any(path, wrapped))
    comm_recomputed = wrap("comm", [path for path in comm if path not in cells], closed)
    drops += [Drop("comm", path, "is a cell; only operators are taken here") for path in cells]
    swapped = wrap("op_swap", named["op_swap"], closed)
    has_pair = is_swapped or index in maps.get("op_swap", {})
    fetch = index + settings.prefetch if has_pair and settings.prefetch is not None else None
    return LayerOutcome(
        is_recomputed=is_full,
        recomputed=recomputed,
        comm_recomputed=comm_recomputed,
        excluded=excluded,
        is_swapped=is_swapped,
        swapped=swapped,
        fetch_layer=fetch,
        drops=tuple(drops),
        refused_cells=cells,
    )


# Log lines of MindFormers 2.1.0 about these settings, verbatim but without time and file.


class _Label(NamedTuple):
    """Names of an option in log lines."""

    option: str  # name in warnings
    config: str  # name of its configuration
    title: str  # title of its map


_LABELS = {
    "select_module": _Label("select_module", "recompute config", "Recompute"),
    "exclude_op": _Label("exclude_op", "recompute config", "ExcludeOp"),
    "comm": _Label("comm_select_module", "recompute config", "Comm Select Recompute"),
    "op_swap": _Label("op_swap", "swap config", "Swap"),
}
_RULER = "-" * 69
_EXCLUDE_WITHOUT_RECOMPUTE = (
    "[Recompute Config] exclude_op is configured but recompute mode is 'None'; "
    "exclude_op has no effect without recompute."
)


def log_lines(effect: SettingsEffect) -> tuple[str, ...]:
    """Return the log lines in order; valid if the model is known and MindFormers accepts the settings.

    Source: mindformers/pynative/distributed/activation_checkpoint.py (2.1.0), `logger.info` and `logger.warning`.
    """
    lines: list[str] = []
    if effect.settings.mode == "None" and effect.settings.of("exclude_op"):
        lines.append(_EXCLUDE_WITHOUT_RECOMPUTE)
    for option in ("select_module", "exclude_op", "comm"):
        lines += _map_lines(effect, option)
    for index, layer in enumerate(effect.layers):
        lines += _recompute_lines(index, layer)
    lines += _map_lines(effect, "op_swap")
    for index, layer in enumerate(effect.layers):
        lines += _swap_lines(index, layer)
    return tuple(lines)


def _recompute_lines(index: int, layer: LayerOutcome) -> Iterator[str]:
    if layer.excluded:
        yield f"Set exclude recompute at layer {index}: {', '.join(layer.excluded)}"
    if layer.is_recomputed:
        yield f"Set full recompute at layer {index}"
    if layer.recomputed:
        yield f"Set select recompute at layer {index}: {', '.join(layer.recomputed)}"
    yield from (_refused_cell(path) for path in layer.refused_cells)
    if layer.comm_recomputed:
        yield f"Set select comm recompute at layer {index}: {', '.join(layer.comm_recomputed)}"


def _swap_lines(index: int, layer: LayerOutcome) -> Iterator[str]:
    if layer.is_swapped:
        yield f"Set layer swap at layer {index}"
    if layer.swapped:
        yield f"Set select swap at layer {index}: {', '.join(layer.swapped)}"


def _map_lines(effect: SettingsEffect, option: str) -> Iterator[str]:
    label = _LABELS[option]
    for unmatched_option, pattern in effect.unmatched:
        if unmatched_option == option:
            name, config = label.option, label.config
            yield f"{name} pattern '{pattern}' did not match any module in the model, please check your {config}."
    if option in effect.maps:
        yield f"--- Final {label.title} Configuration Map---"
        for layer, paths in sorted(effect.maps[option].items()):
            yield f"layer{layer}: {', '.join(paths)}"
        yield _RULER


def _refused_cell(path: str) -> str:
    parent, _, name = path.rpartition(".")
    return (
        f"For communication recompute, {parent}.{name} is expected to be operation but got cell, "
        "this configuration will not be effective."
    )
