"""Convert swap and recompute settings between MindFormers 1.9 and 2.x, with a list of losses.

Names can be converted, but not always with the same meaning: for a single operator, graph mode offloads its outputs,
and PyNative mode offloads the tensors that it saves for backward (mostly its inputs). For cells, only the tensors at
their boundary differ. With a recorded step (`pynative.by_tensor`), names are chosen that offload the same tensors.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS
from mindswap.policy.formats.mindformers2.effect import LayerMap, SettingsEffect
from mindswap.policy.formats.mindformers2.renaming import LayerNames, pattern_to_1_9, patterns_to_2x
from mindswap.policy.model import LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.wording import index_runs, name_indices
from mindswap.units import format_count


@dataclass(frozen=True)
class SwapTargets:
    """Swap settings for the other version.

    Attributes:
        full_layers: layers with `layer_swap`.
        paths: dotted path of an `op_swap` entry -> its layers.
    """

    full_layers: tuple[int, ...]
    paths: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ConvertedSettings:
    """Settings of the other version.

    Attributes:
        sections: top-level sections as plain data.
        lost: settings that cannot be expressed, or only with another meaning, in words.
        by: method of the conversion in words: by name or by tensor.
    """

    sections: dict[str, dict[str, Any]]
    lost: tuple[str, ...]
    by: str = "by name"


def to_2x(
    policy: Policy, num_layers: int, num_stages: int, num_layer_ops: int, names: LayerNames = LayerNames(),  # noqa: B008 frozen
    by_tensor: Callable[[int], SwapTargets] | None = None, source: str = "assumed",
) -> ConvertedSettings:  # fmt: skip
    """Convert a policy of MindFormers 1.9 to sections of 2.x.

    Args:
        policy: the policy of 1.9.
        num_layers: layers of the model.
        num_stages: pipeline stages; 2.x does not swap with more than one.
        num_layer_ops: operators of a layer in backward, to convert the prefetch distance.
        source: origin of that number in words.
        names: layers of both versions, to map names.
        by_tensor: returns swap settings that offload the same tensors, given the number of leading layers that 2.x can
            swap; None maps names.
    """
    lost: list[str] = []
    origin = f"{source}: {num_layer_ops} operators of a layer in backward; --ops-per-layer"
    sections = {
        "swap": _swap_2x(
            policy=policy,
            num_layers=num_layers,
            num_stages=num_stages,
            num_layer_ops=num_layer_ops,
            names=names,
            lost=lost,
            by_tensor=by_tensor,
            origin=origin,
        )
    }
    sections |= _recompute_2x(policy, num_layers, names, lost)
    return ConvertedSettings(sections, tuple(lost))


def _swap_2x(
    policy: Policy, num_layers: int, num_stages: int, num_layer_ops: int, names: LayerNames, lost: list[str],
    by_tensor: Callable[[int], SwapTargets] | None, origin: str,
) -> dict[str, Any]:  # fmt: skip
    entries: tuple[LayerSwap | OpSwap, ...] = (*policy.layer_swap, *policy.op_swap)
    if not policy.is_swap_enabled or not entries:
        return {"enable": False}
    if num_stages > 1:
        lost.append(f"all of swap: MindFormers 2.x does not swap with {num_stages} pipeline stages")
        return {"enable": False}
    prefetch = _prefetch_2x(entries, num_layers, num_layer_ops, lost, origin)
    # Graph mode does not swap recomputed layers; 2.x would swap their inputs.
    named_layers = {index for entry in entries for index in entry.layers.resolve(num_layers)}
    indices = named_layers.difference(policy.layer_recompute.resolve(num_layers))
    swappable = {index for index in indices if index + prefetch < num_layers}
    if by_tensor is None:
        full_layers = {index for entry in policy.layer_swap for index in entry.layers.resolve(num_layers)} & swappable
        by_pattern = _layers_by_pattern(policy.op_swap, num_layers, swappable, names, lost)
    else:
        targets = by_tensor(num_layers - prefetch)
        full_layers = set(targets.full_layers)
        by_pattern = {path.replace(".", r"\."): set(layers) for path, layers in targets.paths.items()}
    swap: dict[str, Any] = {"enable": True, "default_prefetch": prefetch}
    if full_layers:
        swap["layer_swap"] = [{"layers": index_runs(full_layers)}]
    # layer_swap overrides op_swap in 2.x; in 1.9 op_swap overrides layer_swap.
    if any(layers & full_layers for layers in by_pattern.values()):
        lost.append("op_swap in layers of layer_swap: 2.x swaps all of these layers")
    op_swap = [
        {"op_name": pattern, "layers": index_runs(layers - full_layers)}
        for pattern, layers in by_pattern.items()
        if layers - full_layers
    ]
    if op_swap:
        swap["op_swap"] = op_swap
    if unswappable := indices - swappable:
        lost.append(
            f"swap of {name_indices('layer', unswappable)}: 2.x swaps none of the last {prefetch} (default_prefetch)"
        )
    return swap if full_layers or op_swap else {"enable": False}


def _prefetch_2x(
    entries: Iterable[LayerSwap | OpSwap], num_layers: int, num_layer_ops: int, lost: list[str], origin: str
) -> int:
    """Convert the largest prefetch distance from operators to layers."""
    distances = sorted({entry.prefetch for entry in entries})
    if len(distances) > 1:
        listed = ", ".join(map(str, distances))
        lost.append(f"the distances of the entries ({listed}): one default_prefetch holds for all")
    prefetch = min(-(-distances[-1] // num_layer_ops), max(num_layers - 1, 1))
    lost.append(
        f"the unit of the distance: {distances[-1]} operators became {format_count(prefetch, 'layer')} ({origin})"
    )
    return prefetch


def _layers_by_pattern(
    entries: Iterable[OpSwap], num_layers: int, swappable: set[int], names: LayerNames, lost: list[str]
) -> dict[str, set[int]]:
    """Map each pattern of 2.x to the swappable layers of its entries."""
    by_pattern: dict[str, set[int]] = {}
    for entry in entries:
        layers = swappable.intersection(entry.layers.resolve(num_layers))
        for pattern in patterns_to_2x(entry.pattern, names, lost):
            by_pattern.setdefault(pattern, set()).update(layers)
    return by_pattern


def _recompute_2x(policy: Policy, num_layers: int, names: LayerNames, lost: list[str]) -> dict[str, dict[str, Any]]:
    full_layers = policy.layer_recompute.resolve(num_layers)
    select = _modules_2x(policy.select_recompute, num_layers, full_layers, names, lost)
    exclude = _modules_2x(policy.select_recompute_exclude, num_layers, (), names, lost)
    comm = _modules_2x(policy.select_comm_recompute, num_layers, full_layers, names, lost)
    recompute: dict[str, Any] = {"mode": "select" if select else "full" if full_layers else "None"}
    if full_layers:
        recompute["full_recompute_layer"] = index_runs(full_layers)
    if select:
        recompute["select_module"] = select
    if exclude and recompute["mode"] != "None":
        recompute["exclude_op"] = exclude
    sections = {"recompute": recompute}
    if comm:
        sections["recompute_comm"] = {"enable": True, "select_module": comm}
        lost.append("select_comm_recompute: 2.x takes communication operators only, and refuses cells such as norms")
    if policy.select_comm_recompute_exclude:
        lost.append("select_comm_recompute_exclude: 2.x has nothing like it")
    if policy.output_recompute:
        lost.append("mindswap.output_recompute: 2.x has nothing like it")
    for name, default in RECOMPUTE_FLAGS.items():
        if getattr(policy, name) != default:
            lost.append(f"{name}: {getattr(policy, name)}: 2.x has nothing like it")
    return sections


def _modules_2x(
    entries: Iterable[OpRecompute], num_layers: int, full_layers: Iterable[int], names: LayerNames, lost: list[str]
) -> dict[str, list[str]]:
    layers_by_pattern: dict[str, set[int]] = {}
    for entry in entries:
        for pattern in patterns_to_2x(entry.pattern, names, lost):
            layers_by_pattern.setdefault(pattern, set()).update(
                set(entry.layers.resolve(num_layers)) - set(full_layers)
            )
    return {pattern: index_runs(layers) for pattern, layers in layers_by_pattern.items() if layers}


def to_1_9(
    effect: SettingsEffect,
    num_layer_ops: int,
    use_legacy: bool,
    by_tensor: SwapTargets | None = None,
    source: str = "assumed",
) -> ConvertedSettings:
    """Convert settings of MindFormers 2.x to sections of 1.9. Entries that 2.x ignores are not converted.

    Args:
        effect: the effect of the settings in 2.x.
        num_layer_ops: operators of a layer in backward, to convert the prefetch distance.
        source: origin of that number in words.
        use_legacy: use names of the legacy models, such as `feed_forward`.
        by_tensor: swap settings that offload the same tensors as 2.x; None maps names.
    """
    settings, lost = effect.settings, []
    prefetch = (settings.prefetch or 1) * num_layer_ops
    has_recompute = settings.mode != "None" or settings.is_comm_enabled
    swap: dict[str, Any] = {"swap": settings.is_swap_enabled or has_recompute}
    if settings.is_swap_enabled:
        lost.append(
            f"the unit of the distance: {format_count(settings.prefetch or 1, 'layer')} became {prefetch} operators "
            f"({source}: {num_layer_ops} operators of a layer in backward; --ops-per-layer)"
        )
        inside = [index for index, layer in enumerate(effect.layers) if layer.is_swapped and layer.is_recomputed]
        if inside:
            lost.append(f"swap of the inputs of recomputed {name_indices('layer', inside)}: 1.9 recomputes only")
        if by_tensor is None:
            full_layers = [index for index, layer in enumerate(effect.layers) if layer.is_swapped]
            named = _names_1_9({i: layer.swapped for i, layer in enumerate(effect.layers)}, use_legacy, lost)
        else:
            full_layers = list(by_tensor.full_layers)
            named = {path.replace(".", r"\."): list(layers) for path, layers in by_tensor.paths.items()}
        if full_layers:
            swap["layer_swap"] = [{"backward_prefetch": prefetch, "layers": full_layers}]
        if named:
            swap["op_swap"] = [
                {"op_name": pattern, "backward_prefetch": prefetch, "layers": layers}
                for pattern, layers in named.items()
            ]
    if swap["swap"] and len(swap) == 1:
        swap["op_swap"] = []  # recompute in layer indices, and no swap
    full = sorted(settings.full_layers)
    recompute: dict[str, Any] = {"recompute": full} if full else {}
    for key, layer_map in (
        ("select_recompute", {i: layer.recomputed for i, layer in enumerate(effect.layers)}),
        ("select_comm_recompute", {i: layer.comm_recomputed for i, layer in enumerate(effect.layers)}),
        ("select_recompute_exclude", {i: layer.excluded for i, layer in enumerate(effect.layers)}),
    ):
        named = _names_1_9(layer_map, use_legacy, lost)
        if named:
            recompute[key] = named
    sections = {"swap_config": swap}
    if recompute:
        sections["recompute_config"] = recompute
    return ConvertedSettings(sections, tuple(dict.fromkeys(lost)))


def _names_1_9(layer_map: LayerMap, use_legacy: bool, lost: list[str]) -> dict[str, list[int]]:
    """Return the layers of each pattern of 1.9."""
    layers_by_pattern: dict[str, list[int]] = {}
    for layer, paths in layer_map.items():
        for path in paths:
            for pattern in pattern_to_1_9(path, use_legacy, lost):
                layers_by_pattern.setdefault(pattern, []).append(layer)
    return {pattern: sorted(set(layers)) for pattern, layers in layers_by_pattern.items()}
