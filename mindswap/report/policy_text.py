"""A normalised policy for readers: what happens in each layer, equal layers once."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mindswap.policy.cell_tree import CellNode, LayerTrees
from mindswap.policy.model import ENTRY_FIELDS, Layers, Policy
from mindswap.policy.resolve import (
    Decision,
    Entry,
    LayerDecisions,
    Path,
    Setting,
    Treatment,
    acting_entries,
    resolve_layer,
    unique_matches,
)
from mindswap.policy.wording import format_layers
from mindswap.report.problems import escape
from mindswap.units import format_count

# Stands for any layer that no entry names: only entries for every layer hold for it.
_UNNAMED_LAYER = -1


class MemoryAction(Enum):
    """Treatment of the activations of an operator."""

    RECOMPUTE = "recompute"
    RECOMPUTE_OUTPUT = "recompute the output of"
    RECOMPUTE_COMM = "recompute communication of"
    OFFLOAD = "offload"
    KEEP = "keep"


@dataclass(frozen=True)
class LayerAction:
    """One action on one part of a layer."""

    action: MemoryAction  # what happens
    # path of a cell or operator below the layer; "" for the whole layer; a pattern where the model is not known
    name: str
    num_operators: int | None = None  # operators it concerns; None where the model is not known
    num_prefetch_ops: int | None = None  # prefetch distance; None for recomputation
    # which entry overrides which, where several name it; only where they were asked for
    reasons: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "action": self.action.name.lower(),
            "name": self.name,
            "num_operators": self.num_operators,
            "backward_prefetch": self.num_prefetch_ops,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class LayerGroup:
    """Layers in which the same happens; `layers.indices` is None for every layer that no other group names."""

    layers: Layers
    steps: tuple[LayerAction, ...]

    def to_data(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"layers": self.layers.to_config(), "steps": [step.to_data() for step in self.steps]}


def group_layers(
    policy: Policy, num_layers: int | None, trees: LayerTrees | None, with_reasons: bool = False
) -> tuple[LayerGroup, ...]:
    """Actions in each layer, equal layers together, in order of their first.

    Args:
        policy: a normalised policy.
        num_layers: layers of the model; None if not known: layers that are not named come last, as one group.
        trees: the layers of the model; None leaves patterns as they are, without precedence.
        with_reasons: say which entry overrides which, also of operators that stay although an entry names them.
    """
    named = {index for layers in _all_layers(policy) for index in layers.indices or ()}
    known: dict[tuple[object, ...], tuple[LayerAction, ...]] = {}
    alike: dict[tuple[LayerAction, ...], list[int]] = {}
    for index in range(num_layers) if num_layers is not None else sorted(named):
        tree = trees.layers[index] if trees is not None and index < len(trees.layers) else None
        signature = (id(tree), *(index in layers for layers in _all_layers(policy)))
        if signature not in known:
            known[signature] = _requested_actions(policy, index)
            if tree is not None:
                known[signature] = _resolved_actions(resolve_layer(policy, index, tree), with_reasons)
        alike.setdefault(known[signature], []).append(index)
    groups = [LayerGroup(Layers(tuple(indices)), steps) for steps, indices in alike.items()]
    if num_layers is None:
        groups.append(LayerGroup(Layers(None), _requested_actions(policy, _UNNAMED_LAYER)))
    return tuple(groups)


def format_policy(policy: Policy, num_layers: int | None, trees: LayerTrees | None) -> str:
    """The policy as indented text, one block per group of equal layers."""
    if not policy.is_swap_enabled:
        return "policy: swap is off; MindFormers runs as it does without mindswap"
    count = "unknown number of layers" if num_layers is None else format_count(num_layers, "layer")
    lines = [f"policy: swap is on, {count}" + (f"; operators of {trees.source}" if trees is not None else "")]
    groups = group_layers(policy, num_layers, trees)
    for group in groups:
        is_rest = group.layers.indices is None and len(groups) > 1
        lines.append(f"  {'every other layer' if is_rest else format_layers(group.layers)}")
        lines += [f"    {line}" for line in format_actions(group.steps)]
    return "\n".join(lines)


def format_actions(steps: Iterable[LayerAction]) -> list[str]:
    """One line per step, prefetch distances in a column, the reasons below it."""
    rows = []
    for step in steps:
        count = "" if step.num_operators in (None, 1) else f" ({step.num_operators} operators)"
        distance = "" if step.num_prefetch_ops is None else f"prefetch {step.num_prefetch_ops}"
        rows.append((f"{step.action.value} {escape(step.name) or 'the whole layer'}{count}", distance, step.reasons))
    width = max((len(what) for what, *_ in rows), default=0)
    lines: list[str] = []
    for what, distance, reasons in rows:
        lines += [f"{what:<{width}}  {distance}".rstrip(), *(f"    {escape(reason)}" for reason in reasons)]
    return lines or ["nothing is offloaded or recomputed"]


def _all_layers(policy: Policy) -> list[Layers]:
    entries = (entry for name in ENTRY_FIELDS for entry in getattr(policy, name))
    return [policy.layer_recompute, policy.output_recompute, *(entry.layers for entry in entries)]


# What an entry does; those that exclude do nothing by themselves.
_ACTIONS = {
    Setting.RECOMPUTE: MemoryAction.RECOMPUTE,
    Setting.OUTPUT_RECOMPUTE: MemoryAction.RECOMPUTE_OUTPUT,
    Setting.SELECT_RECOMPUTE: MemoryAction.RECOMPUTE,
    Setting.SELECT_COMM_RECOMPUTE: MemoryAction.RECOMPUTE_COMM,
    Setting.LAYER_SWAP: MemoryAction.OFFLOAD,
    Setting.OP_SWAP: MemoryAction.OFFLOAD,
}


def _requested_actions(policy: Policy, layer_index: int) -> tuple[LayerAction, ...]:
    """Actions of the entries in one layer, patterns as they are."""
    return tuple(
        LayerAction(_ACTIONS[entry.setting], entry.pattern, num_prefetch_ops=entry.prefetch)
        for entry in acting_entries(policy, layer_index)
        if entry.setting in _ACTIONS
    )


def _resolved_actions(layer: LayerDecisions, with_reasons: bool) -> tuple[LayerAction, ...]:
    """Actions on the operators of one layer, after precedence."""
    decided = {path: _decision(found) for path, found in layer.operators().items()}
    steps = list(_compress(layer.layer, (), decided))
    if layer.is_output_recomputed:
        steps.append(LayerAction(MemoryAction.RECOMPUTE_OUTPUT, "", 1))
    steps += [
        LayerAction(MemoryAction.RECOMPUTE_COMM, match.name, 1) for match in unique_matches(layer.comm_recomputes)
    ]
    if with_reasons:
        kept = {
            path: (MemoryAction.KEEP, None)
            for path, what in decided.items()
            if what is None and _override_reasons(layer, path)
        }
        steps = [_with_reasons(layer, step) for step in (*steps, *_compress(layer.layer, (), kept))]
    order = list(MemoryAction)
    return tuple(sorted(steps, key=lambda step: order.index(step.action)))


def _with_reasons(layer: LayerDecisions, step: LayerAction) -> LayerAction:
    if step.action in (MemoryAction.RECOMPUTE_OUTPUT, MemoryAction.RECOMPUTE_COMM):
        return step
    part = tuple(step.name.split(".")) if step.name else ()
    reasons = (
        reason for path in layer.operators() if path[: len(part)] == part for reason in _override_reasons(layer, path)
    )
    return replace(step, reasons=tuple(dict.fromkeys(reasons)))


def _override_reasons(layer: LayerDecisions, path: Path) -> list[str]:
    """For each entry that names an operator in vain, which one overrides it.

    Not of what is recomputed by another entry anyway, nor of communication, which is a matter of its own.
    """
    decision = layer.decision_for(path)
    before_swap = decision.recomputed_by or decision.decided_by[-1:]
    winners = {Setting.LAYER_SWAP: before_swap, Setting.OP_SWAP: before_swap}
    if not decision.recomputed_by:
        winners |= dict.fromkeys((Setting.RECOMPUTE, Setting.SELECT_RECOMPUTE), decision.excluded_by)
    losers = [entry_match.entry for entry_match in layer.overridden_on(path) if winners.get(entry_match.entry.setting)]
    return [f"{_entry(winners[loser.setting][0].entry)} overrides {_entry(loser)}" for loser in losers]


def _entry(entry: Entry) -> str:
    pattern = f" '{entry.pattern}'" if entry.pattern else ""
    return f"{entry.setting.value}{pattern}" + (f" with prefetch {entry.prefetch}" if entry.prefetch else "")


_ActionAndPrefetch = tuple[MemoryAction, int | None]


def _decision(decision: Decision) -> _ActionAndPrefetch | None:
    """Action on an operator; None if it stays as it is."""
    if decision.treatment is Treatment.RECOMPUTE:
        return MemoryAction.RECOMPUTE, None
    return (MemoryAction.OFFLOAD, decision.prefetch) if decision.treatment is Treatment.OFFLOAD else None


def _compress(
    node: CellNode, path: tuple[str, ...], decided: Mapping[Path, _ActionAndPrefetch | None]
) -> Iterator[LayerAction]:
    """One step for the largest parts of a layer to which the same happens as a whole."""
    operators = [path] if not node.children else [(*path, *below) for below, leaf in node.walk() if not leaf.children]
    decisions = {decided.get(operator) for operator in operators}
    if len(decisions) > 1:
        for child in node.children:
            yield from _compress(child, (*path, child.name), decided)
        return
    decision = decisions.pop()
    if decision is not None:
        yield LayerAction(decision[0], ".".join(path), len(operators), decision[1])
