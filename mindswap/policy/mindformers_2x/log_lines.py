"""What MindFormers 2.1.0 logs about these settings, word for word (without time and file)."""

from collections.abc import Iterator

from mindswap.policy.mindformers_2x.effect import LayerMap, SettingsEffect

# How a warning calls an option, and which configuration it names.
_LABELS = {
    "select_module": ("select_module", "recompute config"),
    "exclude_op": ("exclude_op", "recompute config"),
    "comm": ("comm_select_module", "recompute config"),
    "op_swap": ("op_swap", "swap config"),
}
_RULER = "-" * 69
_EXCLUDE_WITHOUT_RECOMPUTE = (
    "[Recompute Config] exclude_op is configured but recompute mode is 'None'; "
    "exclude_op has no effect without recompute."
)


def log_lines(effect: SettingsEffect) -> tuple[str, ...]:
    """The lines in order. Meaningful where the model is known and upstream refuses nothing.

    Source: mindformers/pynative/distributed/activation_checkpoint.py (2.1.0), `logger.info` and `logger.warning`.
    """
    maps, layers = effect.maps, effect.layers
    lines: list[str] = []
    if effect.settings.mode == "None" and effect.settings.of("exclude_op"):
        lines.append(_EXCLUDE_WITHOUT_RECOMPUTE)
    for option, title, layer_map in (
        ("select_module", "Recompute", maps.recompute),
        ("exclude_op", "ExcludeOp", maps.exclude),
        ("comm", "Comm Select Recompute", maps.comm),
    ):
        lines += [*_warnings(effect, option), *_map_lines(title, layer_map)]
    for index, layer in enumerate(layers):
        if layer.excluded:
            lines.append(f"Set exclude recompute at layer {index}: {', '.join(layer.excluded)}")
        if layer.is_recomputed:
            lines.append(f"Set full recompute at layer {index}")
        if layer.recomputed:
            lines.append(f"Set select recompute at layer {index}: {', '.join(layer.recomputed)}")
        lines += [_refused_cell(path) for path in layer.refused_cells]
        if layer.comm_recomputed:
            lines.append(f"Set select comm recompute at layer {index}: {', '.join(layer.comm_recomputed)}")
    lines += [*_warnings(effect, "op_swap"), *_map_lines("Swap", maps.swap)]
    for index, layer in enumerate(layers):
        if layer.is_swapped:
            lines.append(f"Set layer swap at layer {index}")
        if layer.swapped:
            lines.append(f"Set select swap at layer {index}: {', '.join(layer.swapped)}")
    return tuple(lines)


def _warnings(effect: SettingsEffect, option: str) -> Iterator[str]:
    label, config = _LABELS[option]
    for found, pattern in effect.unmatched:
        if found == option:
            yield f"{label} pattern '{pattern}' did not match any module in the model, please check your {config}."


def _map_lines(title: str, layer_map: LayerMap | None) -> Iterator[str]:
    if layer_map is not None:
        yield f"--- Final {title} Configuration Map---"
        for layer in sorted(layer_map):
            yield f"layer{layer}: {', '.join(layer_map[layer])}"
        yield _RULER


def _refused_cell(path: str) -> str:
    parent, _, name = path.rpartition(".")
    return (
        f"For communication recompute, {parent}.{name} is expected to be operation but got cell, "
        "this configuration will not be effective."
    )
