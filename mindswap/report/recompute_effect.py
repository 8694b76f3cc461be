"""MindFormers' own recompute in the compiled graph, as text and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict

from mindswap.effect.recompute import RecomputeEffect
from mindswap.report.tables import format_table, group_equal
from mindswap.units import common_unit, format_bytes

__all__ = ["format_recompute_effect", "recompute_effect_to_json"]

HEADER = ("layers", "asked", "recomputed ops", "kept without recompute", "kept", "as asked")


def format_recompute_effect(effects: Sequence[RecomputeEffect], is_ok: bool, notes: Sequence[str] = ()) -> str:
    """A table with equal layers in one row, then the operators of each row, then the verdict."""
    groups = group_equal(effects, _describe, [effect.layer_index for effect in effects])
    unit = common_unit(size for effect in effects for size in (effect.kept_before_bytes, effect.kept_bytes))
    lines = [format_table(HEADER, [(name, *_row(effect, unit)) for name, effect in groups]), ""]
    for name, effect in groups:
        lines += [f"{name}:", *(f"    {line}" for line in _describe(effect)[1:])]
    lines += ["", *(f"note: {note}" for note in notes)]
    verdict = "does what recompute_config asks" if is_ok else "does NOT do what recompute_config asks"
    total = sum(effect.kept_before_bytes - effect.kept_bytes for effect in effects)
    saved = f"{format_bytes(abs(total))} {'less' if total >= 0 else 'more'} kept per micro-batch"
    return "\n".join([*lines, f"swap is off; MindFormers' own recompute in the compiled graph {verdict}: {saved}"])


def recompute_effect_to_json(effects: Sequence[RecomputeEffect], is_ok: bool, notes: Sequence[str] = ()) -> dict:
    """The same as plain data; sizes in bytes."""
    layers = [{"layer": e.layer_index, "ok": e.is_as_asked, **asdict(e)} for e in effects]
    for layer in layers:
        del layer["layer_index"]
    return {"ok": is_ok, "notes": list(notes), "layers": layers}


def _row(effect: RecomputeEffect, unit: str) -> tuple[str, ...]:
    return (
        "whole" if effect.is_whole else "in part" if effect.operators or effect.missing or effect.idle else "nothing",
        str(effect.num_recomputed),
        format_bytes(effect.kept_before_bytes, unit),
        format_bytes(effect.kept_bytes, unit),
        "yes" if effect.is_as_asked else "NO",
    )


def _describe(effect: RecomputeEffect) -> tuple[str, ...]:
    """Everything that makes two layers look alike; the first entry stands for the row of the table."""
    return (
        repr(_row(effect, "B")),
        *(f"recomputed {name}" for name in effect.operators),
        *(f"NOT recomputed though asked: {name}" for name in effect.missing),
        *(f"recomputed though not asked: {name}" for name in effect.unasked),
        *(f"without effect: '{name}': backward runs none of these operators again" for name in effect.idle),
        *(f"communication NOT repeated though asked: {name}" for name in effect.comm_missing),
        *(f"communication repeated though not asked: {name}" for name in effect.comm_unasked),
    )
