"""What MindFormers recomputes with swap off, operator by operator."""

import re
from dataclasses import replace

from mindswap.policy.actions import plan_layer
from mindswap.policy.cell_tree import CellNode, LayerTrees
from mindswap.policy.match import match_pattern
from mindswap.policy.model import OpRecompute, Policy

__all__ = ["as_applied", "recomputed_operators"]


def as_applied(policy: Policy, trees: LayerTrees | None) -> Policy:
    """A policy of `policy.stage_recompute` in the form that the applier and the reports read.

    MindFormers excludes operators only: a cell that an exclude option names stays recomputed. So the
    exclude options name each operator by itself here.

    Args:
        policy: with swap off.
        trees: the layers of the model; None leaves the exclude options as they are.
    """
    if trees is None:
        return replace(policy, is_swap_enabled=True)
    kinds = dict.fromkeys(trees.layers)
    excludes = tuple(
        OpRecompute(r"\.".join(map(re.escape, match.path)), entry.layers)
        for entry in policy.select_recompute_exclude
        for tree in kinds
        for match in match_pattern(entry.pattern, tree)
        if match.node.is_primitive
    )
    return replace(policy, is_swap_enabled=True, select_recompute_exclude=tuple(dict.fromkeys(excludes)))


def recomputed_operators(policy: Policy, layer_index: int, tree: CellNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Operators of a layer that backward runs again, and those whose communication it repeats.

    Args:
        policy: from `as_applied`.
        layer_index: index of the layer.
        tree: the layer.
    """
    actions = plan_layer(policy, layer_index, tree)
    excluded = {match.path for match in actions.recompute_excludes}
    named = {match.path for match in actions.recomputes}
    operators = tuple(
        ".".join(path)
        for path, node in tree.walk()
        if not node.children and path not in excluded
        if actions.is_fully_recomputed or any(path[:end] in named for end in range(1, len(path) + 1))
    )
    return operators, tuple(match.name for match in actions.comm_recomputes)
