"""Explain a plan in words: for each operator, bytes, copy time, slack, and recompute time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.storage import Placement
from mindswap.planner.evaluate import short_model
from mindswap.planner.problem import Plan
from mindswap.policy.model import Layers, Policy
from mindswap.policy.resolve import Treatment, resolve_layer
from mindswap.policy.wording import format_layers
from mindswap.simulator.layer_block import Block, BlockTensor
from mindswap.simulator.program import NO_OP, OpKind
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.timeline import Timeline
from mindswap.units import format_bytes, format_time

NUM_KEPT = 5


def explain_plan(model: StepModel, plan: Plan) -> list[str]:
    """Return sentences about a plan: swapped operators first, then recomputed ones, then the largest kept ones.

    Args:
        model: step model.
        plan: plan for that step.
    """
    if plan.policy.output_recompute:
        return [_groups_line(plan.policy, model.captured.num_layers)]
    plain, planned = model.blocks(Policy())[1:-1], model.blocks(plan.policy)[1:-1]
    timeline = short_model(model)[0].simulate(plan.policy).timeline
    swapped, wasted = _by_label(planned, Placement.SWAPPED), _by_label(planned, Placement.WASTED)
    lines = [
        _swap_line(timeline, label, summary, _names(model, plan.policy, label, summary.layers[0])[0])
        for label, summary in _in_order(swapped)
    ]
    lines += [
        _wasted_line(label, summary, *_names(model, plan.policy, label, summary.layers[0]))
        for label, summary in _in_order(wasted)
    ]
    lines += _recompute_lines(plain, planned)
    lines += _kept_lines(planned)
    return lines or ["All activations fit: nothing is swapped and nothing is recomputed."]


def _groups_line(policy: Policy, num_layers: int) -> str:
    kept = [index for index in range(num_layers) if index not in policy.output_recompute]
    return (
        f"Every layer is recomputed, and only {format_layers(Layers(tuple(kept)))} keep their outputs: before backward "
        "of one of these, the layers since the last kept output run again together."
    )


def saved_by_label(block: Block, placement: Placement) -> dict[Label, int]:
    """Return the bytes saved for backward by producer.

    Args:
        block: block of a layer.
        placement: include tensors with this placement only.
    """
    sizes: Counter[Label] = Counter()
    for tensor in sorted(block.tensors, key=lambda tensor: tensor.is_per_step):  # those of all micro-batches last
        is_saved = tensor.role is not None or tensor.uses.first_backward != NO_OP
        is_produced = tensor.is_forward or (tensor.is_per_step and tensor.role is None)
        if is_saved and is_produced and _placement(tensor) is placement:
            sizes[tensor.label] += tensor.size_bytes
    return sizes


def _placement(tensor: BlockTensor) -> Placement:
    if not tensor.num_copies:
        return Placement.KEPT
    return Placement.WASTED if tensor.is_resident else Placement.SWAPPED


@dataclass
class _LabelSummary:
    """Layers with an operator, and its bytes and recompute time in all of these layers together."""

    layers: list[int] = field(default_factory=list)
    size_bytes: int = 0
    recompute_ns: int = 0


def _in_order(summaries: dict[Label, _LabelSummary]) -> list[tuple[Label, _LabelSummary]]:
    return sorted(summaries.items(), key=lambda entry: str(entry[0]))


def _by_label(blocks: Sequence[Block], *placements: Placement) -> dict[Label, _LabelSummary]:
    summaries: dict[Label, _LabelSummary] = {}
    for layer, block in enumerate(blocks):
        sizes = Counter[Label]()
        for placement in placements:
            sizes.update(saved_by_label(block, placement))
        for label, size in sizes.items():
            entry = summaries.setdefault(label, _LabelSummary())
            entry.layers.append(layer)
            entry.size_bytes += size
    return summaries


def _names(model: StepModel, policy: Policy, label: Label, layer: int) -> tuple[list[str], list[str]]:
    """Return the names of the holders of an operator's output: those that are swapped, and the others."""
    position = model.captured.sample.layer_map[layer]
    decided = resolve_layer(policy, layer, model.captured.trees[position])
    # Without the swaps of the policy the compiler may merge more operators; then there is no other name.
    names = dict.fromkeys(name for group in model.holder_names(policy, layer).get(label, ()) for name in group if name)
    swapped = [name for name in names if decided.decision_for(tuple(name.split("."))).treatment is Treatment.OFFLOAD]
    return swapped, [name for name in names if name not in swapped]


def _swap_line(timeline: Timeline, label: Label, summary: _LabelSummary, names: list[str]) -> str:
    program, copies = timeline.program, timeline.program.copies
    is_selected = np.array([program.labels[number] == label for number in copies.label]) & np.isin(
        copies.layer, summary.layers
    )
    offloaded_ns = int(np.mean(timeline.in_start_ns[is_selected] - timeline.release_ns[is_selected]))
    slack_ns = int(np.min(timeline.op_start_ns[copies.first_user_op[is_selected]] - timeline.in_end_ns[is_selected]))
    waits = timeline.stall_ns[np.isin(timeline.stall_copy, np.flatnonzero(is_selected))]
    hidden = "no operator waits for it" if not waits.sum() else f"operators wait {format_time(int(waits.sum()))} for it"
    num_micro_batches = len(np.unique(copies.micro_batch[is_selected]))
    copied_bytes = int(copies.size_bytes[is_selected].sum()) // num_micro_batches // len(summary.layers)
    # A tensor that is sent to another stage is not copied; one that is swapped by two names is copied twice.
    offloaded_bytes = min(summary.size_bytes // len(summary.layers), copied_bytes)
    more = "" if copied_bytes == offloaded_bytes else f", {format_bytes(copied_bytes)} are copied"
    name = "" if names in ([], [str(label)]) else f" (as {', '.join(names)})"
    return (
        f"swap {label}{name} in {_in_words(summary.layers)}: "
        f"{format_bytes(offloaded_bytes)} of a layer are on the host for "
        f"{format_time(offloaded_ns)} on average{more}; an offload takes "
        f"{format_time(int(np.max(copies.out_ns[is_selected])))}, a prefetch "
        f"{format_time(int(np.max(copies.in_ns[is_selected])))}, and "
        f"it ends at least {format_time(slack_ns)} before the first use; {hidden}"
    )


def _wasted_line(label: Label, summary: _LabelSummary, swapped: list[str], other_names: list[str]) -> str:
    suffix = f" as {', '.join(other_names)}" if other_names else ""
    return (
        f"wasted copy of {label} in {_in_words(summary.layers)}: "
        f"{format_bytes(summary.size_bytes // len(summary.layers))} of a layer are copied with "
        f"{', '.join(swapped) or str(label)}, which is swapped for something else, and stay{suffix}"
    )


def _recompute_lines(plain: Sequence[Block], planned: Sequence[Block]) -> list[str]:
    """Describe the bytes freed between forward and backward by recompute, and its cost; equal layers once."""
    summaries: dict[Label, _LabelSummary] = {}
    for layer, (before, after) in enumerate(zip(plain, planned, strict=True)):
        saved_after = set().union(*(saved_by_label(after, placement) for placement in Placement))
        freed_bytes = {
            label: size for label, size in saved_by_label(before, Placement.KEPT).items() if label not in saved_after
        }
        cost = _recompute_ns(after)
        cost.subtract(_recompute_ns(before))
        for label in dict.fromkeys((*freed_bytes, *(label for label, ns in cost.items() if ns > 0))):
            entry = summaries.setdefault(label, _LabelSummary())
            entry.layers.append(layer)
            entry.size_bytes += freed_bytes.get(label, 0)
            entry.recompute_ns += max(0, cost.get(label, 0))
    lines = []
    for label, entry in summaries.items():
        num = len(entry.layers)
        frees = f"frees {format_bytes(entry.size_bytes // num)} of a layer" if entry.size_bytes else "is read again"
        takes = f"{format_time(entry.recompute_ns // num)} of a layer" if entry.recompute_ns else "no time"
        where = _in_words(entry.layers)
        lines.append(f"recompute {label} in {where}: {frees}, takes {takes} in backward")
    return lines


def _recompute_ns(block: Block) -> Counter[Label]:
    durations_ns: Counter[Label] = Counter()
    for op in block.backward:
        if op.kind is OpKind.RECOMPUTE:
            durations_ns[op.label] += op.duration_ns
    return durations_ns


def _kept_lines(planned: Sequence[Block]) -> list[str]:
    summaries = _by_label(planned, Placement.KEPT, Placement.WASTED)
    largest = sorted(summaries.items(), key=lambda entry: -entry[1].size_bytes)[:NUM_KEPT]
    return [
        f"keep {label} in {_in_words(summary.layers)}: "
        f"{format_bytes(summary.size_bytes // len(summary.layers))} of a layer"
        for label, summary in largest
        if summary.size_bytes
    ]


def _in_words(layers: Sequence[int]) -> str:
    return format_layers(Layers(tuple(layers)))
