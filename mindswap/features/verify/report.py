"""Report of the effect of a policy on the compiled graph, as text and JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from mindswap.files import package_data
from mindswap.graph.analysis.recompute_effect import RecomputeEffect
from mindswap.graph.analysis.swap_effect import Idle, LayerEffect
from mindswap.graph.model import Node, SwapPair
from mindswap.graph.storage import SavedStorage
from mindswap.policy.wording import name_indices
from mindswap.report.tables import attributes, format_table, group_equal
from mindswap.units import common_unit, format_bytes

HEADER = ("layers", "MoveTo pairs", "swapped", "kept without swap", "kept", "recomputed ops", "as asked")
RECOMPUTE_HEADER = ("layers", "asked", "recomputed ops", "kept without recompute", "kept", "as asked")


# Attributes of an effect of which `--json` has only the names.
_NAMED = ("missing", "unasked", "wrong_prefetch", "beyond_specification")

E = TypeVar("E", bound=LayerEffect | RecomputeEffect)


def format_effect(effects: Sequence[LayerEffect], is_ok: bool, notes: Sequence[str] = ()) -> str:
    """Format a table with equal layers in one row, the operators of each row, and the verdict."""
    unit = common_unit(
        size or 0 for effect in effects for size in (effect.kept_before_bytes, effect.kept_bytes, effect.swapped_bytes)
    )
    total = sum(effect.swapped_bytes for effect in effects)
    pairs = sum(len(effect.pairs) for effect in effects)
    wasted = sum(effect.one_way_bytes for effect in effects)
    verb = "follows" if is_ok else "does NOT follow"
    verdict = (
        f"the compiled graph {verb} the policy: {pairs} MoveTo pairs, {format_bytes(total)} swapped per micro-batch"
    )
    if wasted:
        verdict = f"{verdict}, {format_bytes(wasted)} more offloaded and never prefetched"
    return _format(effects=effects, header=HEADER, row=_row, unit=unit, kind="swap", notes=notes, verdict=verdict)


def format_recompute_effect(effects: Sequence[RecomputeEffect], is_ok: bool, notes: Sequence[str] = ()) -> str:
    """Format the effect of MindFormers' recompute, see `format_effect`."""
    unit = common_unit(size for effect in effects for size in (effect.kept_before_bytes, effect.kept_bytes))
    total = sum(effect.kept_before_bytes - effect.kept_bytes for effect in effects)
    verb, size = "follows" if is_ok else "does NOT follow", format_bytes(abs(total))
    if total >= 0:
        verdict = f"swap is off; the compiled graph {verb} recompute_config: {size} less kept per micro-batch"
    else:
        verdict = f"swap is off; the compiled graph {verb} recompute_config: {size} more kept per micro-batch"
    return _format(
        effects=effects,
        header=RECOMPUTE_HEADER,
        row=_recompute_row,
        unit=unit,
        kind="recompute",
        notes=notes,
        verdict=verdict,
    )


def _format(effects: Sequence[E], header: Sequence[str], row: Callable[[E, str], tuple[str, ...]], unit: str,
          kind: str, notes: Sequence[str], verdict: str) -> str:  # fmt: skip
    """Format table, descriptions, notes and verdict; layers with equal descriptions share a row."""
    indices = [effect.layer_index for effect in effects]
    equal = group_equal(effects, lambda effect: (row(effect, "B"), *_describe(effect, kind)), indices)
    groups = [(name_indices("layer", same), effect) for same, effect in equal]
    lines = [format_table(header, [(name, *row(effect, unit)) for name, effect in groups]), ""]
    for name, effect in groups:
        if described := [f"    {line}" for line in _describe(effect, kind)]:
            lines += [f"{name}:", *described]
    return "\n".join([*lines, "", *(f"note: {note}" for note in notes), verdict])


def effect_to_json(effects: Sequence[LayerEffect], is_ok: bool, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the effect of swap as JSON data; sizes in bytes, every pair listed."""
    return {"ok": is_ok, "notes": list(notes), "layers": [_layer_to_json(effect) for effect in effects]}


def _layer_to_json(effect: LayerEffect) -> dict[str, Any]:
    names = {key: [_words(finding)["name"] for finding in getattr(effect, key)] for key in _NAMED}
    idle_entries = [
        {"entry": idle.entry, "reason": idle.reason.value, "keeps_instead": list(idle.keeps_instead)}
        for idle in effect.idle
    ]
    return {
        "layer": effect.layer_index,
        "ok": effect.matches_policy,
        "num_pairs": len(effect.pairs),
        **attributes(effect, "swapped_bytes kept_before_bytes kept_bytes"),
        "num_recomputed_ops": effect.num_recomputed,
        "pairs": [_pair_to_json(pair) for pair in effect.pairs],
        **names,
        "one_way": [node.scope for node in effect.one_way],
        "one_way_bytes": effect.one_way_bytes,
        "without_effect": idle_entries,
        "wasted_bytes": sum(entry.copied_bytes for entry in effect.wasted),
    }


def _pair_to_json(pair: SwapPair) -> dict[str, Any]:
    tensor = pair.copy_out.outputs[0]
    return {
        "operator": _name(pair.producer),
        **attributes(pair, "num_prefetch_ops size_bytes"),
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
    }


def recompute_effect_to_json(
    effects: Sequence[RecomputeEffect], is_ok: bool, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the effect of recompute as JSON data; sizes in bytes."""
    layers = [{"layer": e.layer_index, "ok": e.matches_policy, **asdict(e)} for e in effects]
    for layer in layers:
        del layer["layer_index"]
    return {"ok": is_ok, "notes": list(notes), "layers": layers}


def _row(effect: LayerEffect, unit: str) -> tuple[str, ...]:
    return (
        str(len(effect.pairs)),
        format_bytes(effect.swapped_bytes, unit),
        "-" if effect.kept_before_bytes is None else format_bytes(effect.kept_before_bytes, unit),
        format_bytes(effect.kept_bytes, unit),
        str(effect.num_recomputed),
        "yes" if effect.matches_policy else "NO",
    )


def _describe(effect: LayerEffect | RecomputeEffect, kind: str) -> Iterator[str]:
    """Yield a line for each finding, in the order of `data/report/effect.yaml`."""
    for attribute, text in package_data("report/effect.yaml")[kind].items():
        yield from (text.format(**_words(finding)) for finding in getattr(effect, attribute))


def _words(finding: object) -> dict[str, object]:
    """Return the values that the text of a finding can use."""
    match finding:
        case SwapPair(producer, copy_out, _, prefetch, _):
            return {"name": _name(producer), "tensor": _tensor(copy_out), "prefetch": prefetch}
        case Idle(entry, reason, keeps):
            kept = f"; what it keeps: {', '.join(keeps)}" if keeps else ""
            return {"entry": entry, "reason": reason.value, "kept": kept}
        case SavedStorage(holders=holders, pairs=pairs):
            size, names = format_bytes(finding.copied_bytes), ", ".join(map(_name, holders))
            return {"size": size, "name": _name(pairs[0].producer), "holders": names}
        case Node():
            return {"name": _name(finding), "tensor": _tensor(finding), "cell": finding.cell_path}
    return {"name": finding}


def _name(node: Node) -> str:
    return f"{node.cell_path} {node.op}".strip()


def _tensor(copy: Node) -> str:
    tensor = copy.outputs[0]
    return f"{format_bytes(copy.size_bytes)} {tensor.dtype}{list(tensor.shape)}"


def _recompute_row(effect: RecomputeEffect, unit: str) -> tuple[str, ...]:
    return (
        "whole" if effect.is_whole else "in part" if effect.operators or effect.missing or effect.idle else "nothing",
        str(effect.num_recomputed),
        format_bytes(effect.kept_before_bytes, unit),
        format_bytes(effect.kept_bytes, unit),
        "yes" if effect.matches_policy else "NO",
    )
