"""What MindFormers recomputes with swap off, operator by operator."""

import re
from dataclasses import replace

from mindswap.applier.actions import plan_layer
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.match import match_pattern
from mindswap.policy.model import OpRecompute, Policy

__all__ = ["recomputed_operators"]


def recomputed_operators(policy: Policy, layer_index: int, tree: CellNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Operators of a layer that backward runs again, and those whose communication it repeats.

    Args:
        policy: from `policy.stage_recompute`.
        layer_index: index of the layer.
        tree: the layer.
    """
    excludes = _only_primitives(policy.select_recompute_exclude, tree)
    actions = plan_layer(replace(policy, is_swap_enabled=True, select_recompute_exclude=excludes), layer_index, tree)
    excluded = {match.path for match in actions.recompute_excludes}
    named = {match.path for match in actions.recomputes}
    operators = tuple(
        ".".join(path)
        for path, node in tree.walk()
        if not node.children and path not in excluded
        if actions.is_fully_recomputed or any(path[:end] in named for end in range(1, len(path) + 1))
    )
    return operators, tuple(match.name for match in actions.comm_recomputes)


def _only_primitives(entries: tuple[OpRecompute, ...], tree: CellNode) -> tuple[OpRecompute, ...]:
    """The exclude options as MindFormers reads them: a cell that they name stays recomputed."""
    return tuple(
        OpRecompute(r"\.".join(map(re.escape, match.path)), entry.layers)
        for entry in entries
        for match in match_pattern(entry.pattern, tree)
        if match.node.is_primitive
    )
