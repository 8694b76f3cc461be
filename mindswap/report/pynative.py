"""Report of the effect of MindFormers 2.x settings in each layer, and of ineffective entries, as text and JSON."""

from dataclasses import replace
from typing import Any

from mindswap.config.problem import Problem
from mindswap.policy.formats.mindformers2.effect import LayerOutcome, SettingsEffect, log_lines
from mindswap.policy.formats.mindformers2.tables import ConfigFormat
from mindswap.policy.wording import format_indices, name_indices
from mindswap.pynative.ledger import SwapReport
from mindswap.report.problems import escape
from mindswap.report.tables import group_equal
from mindswap.units import common_unit, format_bytes

UNKNOWN_LAYERS = "the number of layers is not known: there is no model.num_hidden_layers"
# Names of options in the output of `explain`.
_NAMES = {"op_swap": "op_swap", "select_module": "select_module", "exclude_op": "exclude_op", "comm": "recompute_comm"}


def format_settings_effect(effect: SettingsEffect, has_errors: bool = False) -> str:
    """Format the complete explanation; with errors it has no log lines, because MindFormers refuses the file."""
    blocks = [_header(effect), format_layers_2x(effect)]
    dropped = _dropped(effect)
    if dropped:
        blocks.append("\n".join(["written, but without effect:", *(f"    {line}" for line in dropped)]))
    lines = log_lines(effect)
    if lines and effect.model is not None and not has_errors:
        blocks.append("\n".join(["MindFormers 2.1.0 logs:", *(f"    {escape(line)}" for line in lines)]))
    return "\n\n".join(blocks)


def _header(effect: SettingsEffect) -> str:
    settings = effect.settings
    count = "an unknown number of" if settings.num_layers is None else str(settings.num_layers)
    mtp = f" ({settings.num_mtp_layers} for multi-token prediction)" if settings.num_mtp_layers else ""
    source = f"; names of {effect.model.source}" if effect.model is not None else ""
    lines = [f"{ConfigFormat.PYNATIVE.value}, {count} layers{mtp}{source}"]
    if not settings.is_swap_enabled:
        lines.append("swap is off")
    elif settings.prefetch is not None:
        p = settings.prefetch
        lines.append(
            f"swap is on: layer i is offloaded when forward of layer i+{p} ends, and prefetched when backward of layer "
            f"i+{p} begins"
        )
    return "\n".join(lines)


def format_layers_2x(effect: SettingsEffect) -> str:
    """Format the effect in each layer, equal layers once."""
    lines: list[str] = []
    num_layers = len(effect.layers)
    for indices, layer in group_equal(
        effect.layers, lambda outcome: replace(outcome, fetch_layer=None), range(num_layers)
    ):
        repeat = f" (x{len(indices)})" if len(indices) > 1 else ""
        lines.append(f"[{name_indices('layer', indices)}]{repeat}")
        lines += [f"    {line}" for line in _layer_lines(layer)]
    return "\n".join(lines) if lines else f"{UNKNOWN_LAYERS}; add it, or use --num-layers"


def _layer_lines(layer: LayerOutcome) -> list[str]:
    lines = ["recompute  the full layer"] if layer.is_recomputed else []
    lines += [f"recompute  {escape(path)}" for path in layer.recomputed]
    lines += [f"recompute  {escape(path)} (communication)" for path in layer.comm_recomputed]
    lines += [f"not recomputed  {escape(path)}" for path in layer.excluded]
    moved = [("the full layer", layer.is_recomputed)] if layer.is_swapped else []
    moved += [(escape(path), path in layer.recomputed) for path in layer.swapped]
    for swapped, is_recomputed in moved:
        saved = "its input only, since it is recomputed" if is_recomputed else "what it saves for backward"
        lines.append(f"swap       {swapped}: {saved}")
    lines += [
        f"dropped    {_NAMES[drop.option]} '{escape(drop.path)}': {escape(drop.reason)}"
        for drop in dict.fromkeys(layer.drops)
    ]
    return lines or ["keep       every activation"]


def _dropped(effect: SettingsEffect) -> list[str]:
    """Describe the entries that affect no layer."""
    settings = effect.settings
    lines = [f"{entry.path}: only the first entry of layer_swap acts" for entry in settings.of("layer_swap")[1:]]
    last = {target.pattern: target for target in settings.of("op_swap")}
    for target in settings.of("op_swap"):
        if last[target.pattern] is not target:
            lines.append(f"{target.path}: {last[target.pattern].path} has the same op_name")
        inside = [layer for layer in settings.layers_of(target) if layer in settings.swap_layers]
        if inside:
            lines.append(f"{target.path}: layer_swap takes layers {format_indices(inside)}")
    for option, pattern in effect.unmatched:
        if effect.model is not None:
            lines.append(f"{_NAMES[option]} '{escape(pattern)}': matches nothing")
    return lines


def pynative_notes(effect: SettingsEffect, has_release: bool = True) -> list[str]:
    """Return a note for each part that could not be checked."""
    if effect.settings.num_layers is None:
        return [f"{UNKNOWN_LAYERS}, so layers and names were not checked; add it, or use --num-layers"]
    notes = []
    named = any(target.pattern is not None for target in effect.settings.targets)
    if effect.model is None and named:
        notes.append("names of cells were not checked: no table has this model in PyNative mode")
    if effect.swaps_rotary and not has_release:
        notes.append("train it with mindformers 2.1.0 or later: 2.0.0 frees rotary cos and sin, which all layers read")
    return notes


def settings_effect_to_json(effect: SettingsEffect, problems: tuple[Problem, ...] = ()) -> dict[str, Any]:
    """Return the explanation as JSON data."""
    settings = effect.settings
    has_errors = any(problem.level.value == "error" for problem in problems)
    return {
        "form": "2.x",
        "num_layers": settings.num_layers,
        "names_from": effect.model.source if effect.model is not None else None,
        "is_swap_enabled": settings.is_swap_enabled,
        "default_prefetch_layers": settings.prefetch,
        "layers": [_layer_to_json(index, layer) for index, layer in enumerate(effect.layers)],
        "dropped": _dropped(effect),
        "log_lines": list(log_lines(effect)) if effect.model is not None and not has_errors else None,
    }


def _layer_to_json(index: int, layer: LayerOutcome) -> dict[str, Any]:
    return {
        "layer": index,
        "is_recomputed": layer.is_recomputed,
        "recompute": list(layer.recomputed),
        "recompute_comm": list(layer.comm_recomputed),
        "not_recomputed": list(layer.excluded),
        "is_swapped": layer.is_swapped,
        "swap": list(layer.swapped),
        "fetch_at_backward_of": layer.fetch_layer,
        "dropped": [
            {"option": _NAMES[drop.option], "path": drop.path, "reason": drop.reason}
            for drop in dict.fromkeys(layer.drops)
        ],
    }


# Log lines of a training in PyNative mode about copies and memory.


def format_swap_report(report: SwapReport) -> list[str]:
    """Format the log lines about swap."""
    if not report.num_passes:
        return [f"swap in PyNative mode: no pass swapped; {report.num_recorded} recorded"]
    unlike = report.num_passes - report.num_as_predicted
    as_predicted = "all as predicted" if not unlike else f"{unlike} NOT as predicted"
    peaks = (report.peak_device_bytes, report.predicted_peak_bytes, report.peak_without_swap_bytes)
    unit = common_unit(peaks)
    peak, predicted, without = (format_bytes(size, unit) for size in peaks)
    lines = [
        f"swap in PyNative mode on {report.device}: {report.num_passes} passes swapped, {as_predicted}; "
        f"{format_bytes(report.offloaded_bytes)} to the host, {format_bytes(report.prefetched_bytes)} back",
        f"peak of saved activations of {'all' if report.is_audited else 'the swapped'} layers on the device: "
        f"{peak}, predicted {predicted}, without swap {without}; not freed after it: {format_bytes(report.left_bytes)}",
    ]
    if report.held_bytes:
        lines.append(
            f"{format_bytes(report.held_bytes)} of the policy stay on the device: other code holds them after forward"
        )
    if report.num_deviations:
        lines.append(f"{report.num_deviations} passes were not as recorded, and ran without swap")
    return lines
