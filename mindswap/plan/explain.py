"""Why a plan treats each operator as it does, in words: bytes, copy time, slack, cost of running again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.plan.evaluate import short_model
from mindswap.plan.result import Plan
from mindswap.policy.model import Policy
from mindswap.policy.wording import format_indices
from mindswap.simulate.block_arrays import arrays_of
from mindswap.simulate.blocks import Block
from mindswap.simulate.program import NO_OP, OpKind
from mindswap.simulate.step_model import StepModel
from mindswap.simulate.timeline import Timeline
from mindswap.units import format_bytes, format_time

__all__ = ["explain_plan"]

NUM_KEPT = 5


def explain_plan(model: StepModel, plan: Plan) -> list[str]:
    """Sentences about a plan, what is swapped first, then what is recomputed, then what stays.

    Args:
        model: the step.
        plan: for it.
    """
    plain, planned = model.blocks(Policy())[1:-1], model.blocks(plan.policy)[1:-1]
    timeline = short_model(model)[0].simulate(plan.policy).timeline
    swapped = {label for block in planned for label in _labels(block, is_copied=True)}
    lines = [_swap_line(timeline, label) for label in sorted(swapped)]
    lines += _recompute_lines(plain, planned)
    lines += _kept_lines(planned)
    return lines or ["Everything fits: nothing is swapped and nothing is recomputed."]


def _labels(block: Block, is_copied: bool) -> dict[str, int]:
    """Bytes that backward needs by the operator that makes them: those that are copied, or those that stay."""
    arrays = arrays_of(block)
    own = arrays.own
    saved = own.is_forward & (own.first_backward != NO_OP) & ((own.num_copies > 0) == is_copied)
    sizes: dict[str, int] = {}
    for label, size in zip(own.label[saved].tolist(), own.size_bytes[saved].tolist(), strict=True):
        sizes[arrays.labels[label]] = sizes.get(arrays.labels[label], 0) + size
    for tensor in arrays.handed:
        if tensor.is_forward and (tensor.num_copies > 0) == is_copied:
            sizes[tensor.label] = sizes.get(tensor.label, 0) + tensor.size_bytes
    return sizes


def _swap_line(timeline: Timeline, label: str) -> str:
    program, copies = timeline.program, timeline.program.copies
    own = np.array([program.labels[number] == label for number in copies.label]) if len(copies) else np.zeros(0, bool)
    if not own.any():
        return f"swap {label}"
    layers = sorted(set(copies.layer[own].tolist()))
    away_ns = int(np.mean(timeline.in_start_ns[own] - timeline.release_ns[own]))
    slack_ns = int(np.min(timeline.op_start_ns[copies.first_user_op[own]] - timeline.in_end_ns[own]))
    waits = timeline.stall_ns[np.isin(timeline.stall_copy, np.flatnonzero(own))]
    hidden = "no operator waits for it" if not waits.sum() else f"operators wait {format_time(int(waits.sum()))} for it"
    per_layer = int(copies.size_bytes[own].sum()) // len(layers) // max(1, len(set(copies.micro_batch[own].tolist())))
    return (
        f"swap {label} in layers {format_indices(layers)}: {format_bytes(per_layer)} of a layer are away for "
        f"{format_time(away_ns)} on average; a copy takes {format_time(int(np.max(copies.out_ns[own])))} out, "
        f"{format_time(int(np.max(copies.in_ns[own])))} back and ends at least {format_time(slack_ns)} before its use; "
        f"{hidden}"
    )


@dataclass
class _Again:
    layers: list[int]
    freed_bytes: int
    again_ns: int


def _recompute_lines(plain: Sequence[Block], planned: Sequence[Block]) -> list[str]:
    """What is no longer there between forward and backward, and what running it again costs; equal layers once."""
    found: dict[str, _Again] = {}
    for layer, (before, after) in enumerate(zip(plain, planned, strict=True)):
        there = _labels(after, True) | _labels(after, False)
        gone = {label: size for label, size in _labels(before, False).items() if label not in there}
        cost = {label: ns - _recompute_ns(before).get(label, 0) for label, ns in _recompute_ns(after).items()}
        for label in dict.fromkeys((*gone, *(label for label, ns in cost.items() if ns > 0))):
            entry = found.setdefault(label, _Again([], 0, 0))
            entry.layers.append(layer)
            entry.freed_bytes += gone.get(label, 0)
            entry.again_ns += max(0, cost.get(label, 0))
    lines = []
    for label, entry in found.items():
        num = len(entry.layers)
        frees = f"frees {format_bytes(entry.freed_bytes // num)} of a layer" if entry.freed_bytes else "is read again"
        cost_text = f"takes {format_time(entry.again_ns // num)} of a layer" if entry.again_ns else "takes no time"
        where = format_indices(entry.layers)
        lines.append(f"recompute {label} in layers {where}: {frees}, {cost_text} in backward")
    return lines


def _recompute_ns(block: Block) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in block.backward:
        if op.kind is OpKind.RECOMPUTE:
            found[op.label] = found.get(op.label, 0) + op.duration_ns
    return found


def _kept_lines(planned: Sequence[Block]) -> list[str]:
    sizes: dict[str, tuple[int, list[int]]] = {}
    for layer, block in enumerate(planned):
        for label, size in _labels(block, False).items():
            known, layers = sizes.get(label, (0, []))
            sizes[label] = (known + size, [*layers, layer])
    largest = sorted(sizes.items(), key=lambda entry: -entry[1][0])[:NUM_KEPT]
    return [
        f"keep {label} in layers {format_indices(layers)}: {format_bytes(size // len(layers))} of a layer"
        for label, (size, layers) in largest
        if size
    ]
