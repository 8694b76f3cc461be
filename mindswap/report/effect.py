"""The effect of a policy on the compiled graph, as text and as JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from mindswap.graph.effect.recompute import RecomputeEffect
from mindswap.graph.effect.swap import LayerEffect
from mindswap.graph.execute.compare import Execution, Witness
from mindswap.graph.model import Node
from mindswap.policy.words import format_names, name_indices
from mindswap.report.tables import format_table, group_equal
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
                "swapped_bytes": effect.swapped_bytes,
                "kept_before_bytes": effect.kept_before_bytes,
                "kept_bytes": effect.kept_bytes,
                "num_recomputed_ops": effect.num_recomputed,
                "pairs": [
                    {
                        "operator": _name(pair.producer),
                        "num_prefetch_ops": pair.num_prefetch_ops,
                        "size_bytes": pair.size_bytes,
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
    for pair in effect.pairs:
        lines.append(f"swapped {_name(pair.producer)}: {_tensor(pair.copy_out)}, prefetch {pair.num_prefetch_ops}")
    lines += [f"NOT swapped though asked: {_name(node)}" for node in effect.missing]
    lines += [f"swapped though not asked: {_name(pair.producer)}" for pair in effect.unasked]
    for pair in effect.wrong_prefetch:
        lines.append(f"prefetch differs from the policy: {_name(pair.producer)}: {pair.num_prefetch_ops}")
    for node in effect.one_way:
        lines.append(f"copied out and never read back: {_tensor(node)} of {node.cell_path}, for nothing")
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


# `verify --execute` as text and as data.


def format_execution(result: Execution) -> str:
    """A few lines for readers; what failed says so first."""
    num = result.num_forward + result.num_backward
    for_nothing = f", {result.num_one_way} of them out only, for nothing" if result.num_one_way else ""
    lines = [
        f"executed on CPU: {num} operators ({result.num_forward} forward, {result.num_backward} backward), "
        f"{result.num_copies + result.num_one_way} copies out and back of {format_bytes(result.offloaded_bytes)}"
        f"{for_nothing}",
        f"    gradients: {_gradients(result)}",
        f"    activations at most: {format_bytes(result.peak_bytes)}, without swap "
        f"{format_bytes(result.plain_peak_bytes)} (on the Ascend backend: mindswap dryrun)",
    ]
    lines += [f"    {line}" for line in result.misreads]
    if result.witness is not None:
        lines.append(f"    outside witness: {_witness(result.witness, result.num_gradients)}")
    lines += [f"    note: {note}" for note in (*_notes(result), *result.notes)]
    return "\n".join(lines)


def _gradients(result: Execution) -> str:
    if result.are_gradients_equal:
        return (
            f"loss and all {result.num_gradients} gradients are, bit for bit, those without swap and recompute; "
            "no operator read memory that was given back (it was filled with NaN)"
        )
    parts = []
    if result.different:
        shown = format_names(result.different)
        parts.append(f"{len(result.different)} of {result.num_gradients} DIFFER from those without swap: {shown}")
    if not result.is_loss_equal:
        parts.append("the loss DIFFERS")
    if not result.is_finite:
        parts.append("some are NOT FINITE")
    if result.misreads:
        parts.append(f"{len(result.misreads)} reads of memory that was NOT THERE")
    return "; ".join(parts)


def _witness(witness: Witness, num_gradients: int) -> str:
    if witness.failure:
        return f"none, MindSpore itself cannot run this network on CPU: {witness.failure}"
    if witness.is_loss_equal and witness.num_equal == num_gradients:
        return (
            "MindSpore's own run of the network without lazy_inline: "
            f"loss and all {num_gradients} gradients equal bit for bit"
        )
    loss = "equal bit for bit" if witness.is_loss_equal else "not equal bit for bit"
    return (
        f"MindSpore's own run of the network without lazy_inline: loss {loss}, {witness.num_equal} of {num_gradients} "
        f"gradients bit for bit, the others within {witness.relative_difference:.1e} of their largest element"
        + ("" if witness.is_ok else " (TOO FAR)")
    )


def _notes(result: Execution) -> list[str]:
    notes = []
    if result.stand_ins:
        names = ", ".join(f"{op} (x{count})" for op, count in sorted(result.stand_ins.items()))
        notes.append(f"{len(result.stand_ins)} operators have no CPU kernel and ran as stand-ins: {names}")
    if result.in_float32:
        names = ", ".join(sorted(result.in_float32))
        notes.append(f"computed in float32 and rounded, because the CPU has no float16 kernel: {names}")
    if result.num_repeats:
        notes.append(
            f"{result.num_repeats} operators on masks and tables, which the compiler repeats, ran once, as simulated"
        )
    if result.num_moved:
        notes.append(f"{result.num_moved} operators of backward ran where the simulator has them, not the frontend")
    return notes


def execution_to_json(result: Execution) -> Mapping[str, Any]:
    """The same as plain data."""
    return {"ok": result.is_ok, "gradients_equal": result.are_gradients_equal, **asdict(result)}
