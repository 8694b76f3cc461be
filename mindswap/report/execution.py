"""`verify --execute` as text and as data."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mindswap.graph.execute.compare import Execution, Witness
from mindswap.policy.words import format_names
from mindswap.units import format_bytes


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
