"""The effect of a policy on the compiled graph, as text and as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from mindswap.graph.effect.recompute import RecomputeEffect
from mindswap.graph.effect.swap import LayerEffect
from mindswap.graph.model import Node
from mindswap.policy.words import name_indices
from mindswap.report.tables import attributes, format_table, group_equal
from mindswap.units import common_unit, format_bytes

HEADER = ("layers", "MoveTo pairs", "swapped", "kept without swap", "kept", "recomputed ops", "as asked")
RECOMPUTE_HEADER = ("layers", "asked", "recomputed ops", "kept without recompute", "kept", "as asked")


E = TypeVar("E", bound=LayerEffect | RecomputeEffect)


def format_effect(effects: Sequence[LayerEffect], is_ok: bool, notes: Sequence[str] = ()) -> str:
    """A table with equal layers in one row, then the operators of each row, then the verdict."""
    unit = common_unit(size for effect in effects for size in (effect.kept_before_bytes, effect.swapped_bytes))
    total = sum(effect.swapped_bytes for effect in effects)
    pairs = sum(len(effect.pairs) for effect in effects)
    wasted = sum(effect.one_way_bytes for effect in effects)
    verdict = (
        f"the compiled graph {'does' if is_ok else 'does NOT do'} what the policy asks: {pairs} MoveTo pairs, "
        f"{format_bytes(total)} swapped per micro-batch"
        + (f", {format_bytes(wasted)} more copied out and never read back" if wasted else "")
    )
    return _format(effects, HEADER, partial(_row, unit=unit), _describe, notes, verdict)


def format_recompute_effect(effects: Sequence[RecomputeEffect], is_ok: bool, notes: Sequence[str] = ()) -> str:
    """The same for MindFormers' own recompute."""
    unit = common_unit(size for effect in effects for size in (effect.kept_before_bytes, effect.kept_bytes))
    total = sum(effect.kept_before_bytes - effect.kept_bytes for effect in effects)
    verdict = (
        f"swap is off; MindFormers' own recompute in the compiled graph {'does' if is_ok else 'does NOT do'} what "
        f"recompute_config asks: {format_bytes(abs(total))} {'less' if total >= 0 else 'more'} kept per micro-batch"
    )
    return _format(effects, RECOMPUTE_HEADER, partial(_recompute_row, unit=unit), _describe_recompute, notes, verdict)


def _format(
    effects: Sequence[E],
    header: Sequence[str],
    row: Callable[[E], tuple[str, ...]],
    describe: Callable[[E], tuple[str, ...]],
    notes: Sequence[str],
    verdict: str,
) -> str:
    """Table, descriptions, notes, verdict; layers of which the same is said are one row."""
    equal = group_equal(effects, describe, [effect.layer_index for effect in effects])
    groups = [(name_indices("layer", indices), effect) for indices, effect in equal]
    lines = [format_table(header, [(name, *row(effect)) for name, effect in groups]), ""]
    for name, effect in groups:
        if described := describe(effect)[1:]:
            lines += [f"{name}:", *(f"    {line}" for line in described)]
    return "\n".join([*lines, "", *(f"note: {note}" for note in notes), verdict])


def effect_to_json(effects: Sequence[LayerEffect], is_ok: bool, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The same as plain data; sizes in bytes, every pair listed."""
    return {
        "ok": is_ok,
        "notes": list(notes),
        "layers": [
            {
                "layer": effect.layer_index,
                "ok": effect.is_as_asked,
                "num_pairs": len(effect.pairs),
                **attributes(effect, "swapped_bytes kept_before_bytes kept_bytes"),
                "num_recomputed_ops": effect.num_recomputed,
                "pairs": [
                    {
                        "operator": _name(pair.producer),
                        **attributes(pair, "num_prefetch_ops size_bytes"),
                        "shape": list(pair.copy_out.outputs[0].shape),
                        "dtype": pair.copy_out.outputs[0].dtype,
                    }
                    for pair in effect.pairs
                ],
                "missing": [_name(node) for node in effect.missing],
                "unasked": [_name(pair.producer) for pair in effect.unasked],
                "wrong_prefetch": [_name(pair.producer) for pair in effect.wrong_prefetch],
                "one_way": [node.scope for node in effect.one_way],
                "one_way_bytes": effect.one_way_bytes,
                "without_effect": [
                    {"entry": idle.entry, "reason": idle.reason.value, "keeps_instead": list(idle.keeps_instead)}
                    for idle in effect.idle
                ],
                "beyond_specification": [_name(pair.producer) for pair in effect.beyond_specification],
                "wasted_bytes": sum(entry.copied_bytes for entry in effect.wasted),
            }
            for effect in effects
        ],
    }


def recompute_effect_to_json(
    effects: Sequence[RecomputeEffect], is_ok: bool, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The same as plain data; sizes in bytes."""
    layers = [{"layer": e.layer_index, "ok": e.is_as_asked, **asdict(e)} for e in effects]
    for layer in layers:
        del layer["layer_index"]
    return {"ok": is_ok, "notes": list(notes), "layers": layers}


def _row(effect: LayerEffect, unit: str) -> tuple[str, ...]:
    return (
        str(len(effect.pairs)),
        format_bytes(effect.swapped_bytes, unit),
        format_bytes(effect.kept_before_bytes, unit),
        format_bytes(effect.kept_bytes, unit),
        str(effect.num_recomputed),
        "yes" if effect.is_as_asked else "NO",
    )


def _describe(effect: LayerEffect) -> tuple[str, ...]:
    """Everything that makes two layers look alike; the first entry stands for the row of the table."""
    lines = [repr(_row(effect, "B"))]
    lines += [
        f"swapped {_name(p.producer)}: {_tensor(p.copy_out)}, prefetch {p.num_prefetch_ops}" for p in effect.pairs
    ]
    lines += [f"NOT swapped though asked: {_name(node)}" for node in effect.missing]
    lines += [f"swapped though not asked: {_name(pair.producer)}" for pair in effect.unasked]
    lines += [
        f"prefetch differs from the policy: {_name(p.producer)}: {p.num_prefetch_ops}" for p in effect.wrong_prefetch
    ]
    lines += [
        f"copied out and never read back: {_tensor(node)} of {node.cell_path}, for nothing" for node in effect.one_way
    ]
    for idle in effect.idle:
        kept = f"; what it keeps: {', '.join(idle.keeps_instead)}" if idle.keeps_instead else ""
        lines.append(f"without effect: '{idle.entry}': {idle.reason.value}{kept}")
    for entry in effect.wasted:
        size, keepers = format_bytes(entry.copied_bytes), ", ".join(map(_name, entry.keepers))
        name = _name(entry.pairs[0].producer)
        lines.append(f"copied for nothing: {size} of {name}: the same memory stays for {keepers}")
    for pair in effect.beyond_specification:
        lines.append(
            f"a recomputed operator uses {_name(pair.producer)}: by the specification this swap has no effect, "
            "MindSpore copies all the same"
        )
    return tuple(lines)


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
        "yes" if effect.is_as_asked else "NO",
    )


def _describe_recompute(effect: RecomputeEffect) -> tuple[str, ...]:
    """Everything that makes two layers look alike; the first entry stands for the row of the table."""
    return (
        repr(_recompute_row(effect, "B")),
        *(f"recomputed {name}" for name in effect.operators),
        *(f"NOT recomputed though asked: {name}" for name in effect.missing),
        *(f"recomputed though not asked: {name}" for name in effect.unasked),
        *(f"without effect: '{name}': backward runs none of these operators again" for name in effect.idle),
        *(f"communication NOT repeated though asked: {name}" for name in effect.comm_missing),
        *(f"communication repeated though not asked: {name}" for name in effect.comm_unasked),
    )
