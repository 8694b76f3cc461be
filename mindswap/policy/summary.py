"""Summary of a policy: the actions on each layer, resolved once for text, JSON and notes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from mindswap.policy.cell_tree import CellNode, LayerTrees
from mindswap.policy.model import ENTRY_FIELDS, Layers, Policy
from mindswap.policy.resolve import (
    Decision,
    Entry,
    LayerDecisions,
    Override,
    Path,
    Setting,
    Treatment,
    acting_entries,
    resolve_layer,
    unique_matches,
)

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
    """One action on one part of a layer.

    Attributes:
        action: recompute, offload or keep.
        name: path of a cell or operator below the layer; "" for the full layer; the pattern of the entry if the model
            is not known.
        num_operators: number of affected operators; None if the model is not known.
        num_prefetch_ops: prefetch distance in operators; None for recompute.
        overrides: entries that match the part and are overridden; empty without `with_overrides`.
    """

    action: MemoryAction
    name: str
    num_operators: int | None = None
    num_prefetch_ops: int | None = None
    overrides: tuple[Override, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """The overrides in words: `op_swap 'a' with prefetch 10 overrides layer_swap with prefetch 1`."""
        return tuple(
            f"{_format_entry(override.winner)} overrides {_format_entry(override.loser)}" for override in self.overrides
        )

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "action": self.action.name.lower(),
            "name": self.name,
            "num_operators": self.num_operators,
            "backward_prefetch": self.num_prefetch_ops,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class LayerGroup:
    """Layers with the same actions; `layers.indices` is None for all layers that are in no other group."""

    layers: Layers
    actions: tuple[LayerAction, ...]

    def to_data(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"layers": self.layers.to_config(), "steps": [action.to_data() for action in self.actions]}


@dataclass(frozen=True)
class PolicySummary:
    """The actions of a policy in every layer. Text, JSON and notes are made from it without resolving again.

    Attributes:
        is_swap_enabled: whether the policy has swap enabled.
        num_layers: layers of the model; None if not known.
        source: origin of the operator names; None if the names are the patterns of the configuration.
        groups: layers with the same actions, ordered by their first layer.
    """

    is_swap_enabled: bool
    num_layers: int | None
    source: str | None
    groups: tuple[LayerGroup, ...]


def summarize_policy(
    policy: Policy, num_layers: int | None, trees: LayerTrees | None, with_overrides: bool = False
) -> PolicySummary:
    """Resolve a policy in every layer.

    Args:
        policy: a normalized policy.
        num_layers: layers of the model; None if not known. The layers that no entry lists are then one group, the last.
        trees: the layers of the model; None keeps patterns as they are, without precedence.
        with_overrides: add the overridden entries to each action, and an action KEEP for operators that are kept
            although an entry matches them.
    """
    groups = _group_layers(policy, num_layers, trees, with_overrides)
    return PolicySummary(policy.is_swap_enabled, num_layers, trees.source if trees is not None else None, groups)


def _group_layers(
    policy: Policy, num_layers: int | None, trees: LayerTrees | None, with_overrides: bool
) -> tuple[LayerGroup, ...]:
    named = {index for layers in _all_layers(policy) for index in layers.indices or ()}
    actions_by_signature: dict[tuple[object, ...], tuple[LayerAction, ...]] = {}
    layers_by_actions: dict[tuple[LayerAction, ...], list[int]] = {}
    for index in range(num_layers) if num_layers is not None else sorted(named):
        tree = trees.layers[index] if trees is not None and index < len(trees.layers) else None
        signature = (id(tree), *(index in layers for layers in _all_layers(policy)))
        if signature not in actions_by_signature:
            actions_by_signature[signature] = (
                _requested_actions(policy, index)
                if tree is None
                else _resolved_actions(resolve_layer(policy, index, tree), with_overrides)
            )
        layers_by_actions.setdefault(actions_by_signature[signature], []).append(index)
    groups = [LayerGroup(Layers(tuple(indices)), actions) for actions, indices in layers_by_actions.items()]
    if num_layers is None:
        groups.append(LayerGroup(Layers(None), _requested_actions(policy, _UNNAMED_LAYER)))
    return tuple(groups)


def _all_layers(policy: Policy) -> list[Layers]:
    entries = (entry for name in ENTRY_FIELDS for entry in getattr(policy, name))
    return [policy.layer_recompute, policy.output_recompute, *(entry.layers for entry in entries)]


# Action of each kind of entry; exclude entries have none of their own.
_ACTIONS = {
    Setting.RECOMPUTE: MemoryAction.RECOMPUTE,
    Setting.OUTPUT_RECOMPUTE: MemoryAction.RECOMPUTE_OUTPUT,
    Setting.SELECT_RECOMPUTE: MemoryAction.RECOMPUTE,
    Setting.SELECT_COMM_RECOMPUTE: MemoryAction.RECOMPUTE_COMM,
    Setting.LAYER_SWAP: MemoryAction.OFFLOAD,
    Setting.OP_SWAP: MemoryAction.OFFLOAD,
}


def _requested_actions(policy: Policy, layer_index: int) -> tuple[LayerAction, ...]:
    """Actions of the entries of one layer, named by their patterns; for models that are not known."""
    return tuple(
        LayerAction(_ACTIONS[entry.setting], entry.pattern, num_prefetch_ops=entry.prefetch)
        for entry in acting_entries(policy, layer_index)
        if entry.setting in _ACTIONS
    )


def _resolved_actions(layer: LayerDecisions, with_overrides: bool) -> tuple[LayerAction, ...]:
    """Actions on the operators of one layer, after precedence."""
    by_path = {path: _operator_action(decision) for path, decision in layer.operators().items()}
    actions = list(_merge_equal_parts(layer.layer, (), by_path))
    if layer.is_output_recomputed:
        actions.append(LayerAction(MemoryAction.RECOMPUTE_OUTPUT, "", 1))
    actions += [
        LayerAction(MemoryAction.RECOMPUTE_COMM, match.name, 1) for match in unique_matches(layer.comm_recomputes)
    ]
    if with_overrides:
        overrides = {path: layer.overrides(path) for path in by_path}
        kept = {
            path: OperatorAction(MemoryAction.KEEP)
            for path, action in by_path.items()
            if action is None and overrides[path]
        }
        actions += _merge_equal_parts(layer.layer, (), kept)
        actions = [_with_overrides(action, overrides) for action in actions]
    order = list(MemoryAction)
    return tuple(sorted(actions, key=lambda action: order.index(action.action)))


def _with_overrides(action: LayerAction, overrides: Mapping[Path, tuple[Override, ...]]) -> LayerAction:
    """Add the overrides of all operators of the part; `overrides` has them by path of the operator."""
    if action.action in (MemoryAction.RECOMPUTE_OUTPUT, MemoryAction.RECOMPUTE_COMM):
        return action
    prefix = tuple(action.name.split(".")) if action.name else ()
    of_part = (
        override
        for path, path_overrides in overrides.items()
        if path[: len(prefix)] == prefix
        for override in path_overrides
    )
    return replace(action, overrides=tuple(dict.fromkeys(of_part)))


def _format_entry(entry: Entry) -> str:
    pattern = f" '{entry.pattern}'" if entry.pattern else ""
    return f"{entry.setting.value}{pattern}" + (f" with prefetch {entry.prefetch}" if entry.prefetch else "")


class OperatorAction(NamedTuple):
    """Action on one operator, with the prefetch distance of an offload."""

    action: MemoryAction
    num_prefetch_ops: int | None = None


def _operator_action(decision: Decision) -> OperatorAction | None:
    """Action on an operator; None if its output is kept as without a policy."""
    if decision.treatment is Treatment.RECOMPUTE:
        return OperatorAction(MemoryAction.RECOMPUTE)
    if decision.treatment is Treatment.OFFLOAD:
        return OperatorAction(MemoryAction.OFFLOAD, decision.prefetch)
    return None


def _merge_equal_parts(
    node: CellNode, path: Path, by_path: Mapping[Path, OperatorAction | None]
) -> Iterator[LayerAction]:
    """One action for each of the largest cells whose operators all have the same action."""
    operators = [path] if not node.children else [(*path, *below) for below, leaf in node.walk() if not leaf.children]
    actions = {by_path.get(operator) for operator in operators}
    if len(actions) > 1:
        for child in node.children:
            yield from _merge_equal_parts(child, (*path, child.name), by_path)
        return
    action = actions.pop()
    if action is not None:
        yield LayerAction(action.action, ".".join(path), len(operators), action.num_prefetch_ops)
