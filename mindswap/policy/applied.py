"""Effective recompute of each operator: with swap off as MindFormers applies it, and with swap on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mindswap.config.problem import Location
from mindswap.policy.cell_tree import CellNode, LayerTrees, Match, exact_pattern, match_pattern
from mindswap.policy.formats.mindformers1.settings import Statement
from mindswap.policy.model import Layers, OpRecompute, Policy
from mindswap.policy.resolve import LayerDecisions, Treatment, resolve_layer, unique_matches

# Exclude entries for communication match operators only, in both cases.
EXCLUDE = "select_recompute_exclude"


@dataclass(frozen=True)
class NamedCell:
    """A cell that an entry of `select_recompute_exclude` matches."""

    statement: Statement
    cell: str  # path below the layer
    has_operators: bool  # the pattern also matches operators

    @property
    def location(self) -> Location:
        """Return where the pattern of the statement begins."""
        return self.statement.pattern_location


def as_applied(policy: Policy, trees: LayerTrees | None) -> Policy:
    """Convert a policy of `expand_stage_recompute` (swap off) to the form that the applier and reports use.

    MindFormers excludes operators only: a cell that `select_recompute_exclude` matches is still recomputed. Patterns
    that match a cell are therefore replaced by the operators that they also match; not if the trees are unknown.
    """
    if trees is None:
        return replace(policy, is_swap_enabled=True)
    excludes = tuple(_operators_only(policy.select_recompute_exclude, trees))
    return replace(policy, is_swap_enabled=True, select_recompute_exclude=excludes)


def _operators_only(entries: tuple[OpRecompute, ...], trees: LayerTrees) -> Iterator[OpRecompute]:
    layer_classes = dict.fromkeys(trees.layers)
    layers_by_pattern: dict[str, set[int]] = {}
    for entry in entries:
        if all(match.node.is_primitive for tree in layer_classes for match in match_pattern(entry.pattern, tree)):
            yield entry
            continue
        for index, tree in enumerate(trees.layers):
            for match in match_pattern(entry.pattern, tree) if index in entry.layers else ():
                if match.node.is_primitive:
                    layers_by_pattern.setdefault(exact_pattern(match.name), set()).add(index)
    yield from (OpRecompute(pattern, Layers(layers)) for pattern, layers in layers_by_pattern.items())


def find_excluded_cells(statements: tuple[Statement, ...], trees: LayerTrees) -> Iterator[NamedCell]:
    """Yield the first matched cell of each `select_recompute_exclude` entry that matches a cell in its layers."""
    for statement in statements:
        if statement.option != EXCLUDE or not statement.pattern:
            continue
        layer_classes = dict.fromkeys(tree for index, tree in enumerate(trees.layers) if index in statement.layers)
        matches = [match for tree in layer_classes for match in match_pattern(statement.pattern, tree)]
        cells = [match.name for match in matches if not match.node.is_primitive]
        if cells:
            yield NamedCell(statement, cells[0], any(match.node.is_primitive for match in matches))


def recomputed_operators(policy: Policy, layer_index: int, tree: CellNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the recomputed operators of a layer, and the operators with recomputed communication.

    Args:
        policy: a policy with swap on, or from `as_applied`.
        layer_index: index of the layer.
        tree: cells and primitives of the layer.
    """
    layer = resolve_layer(policy, layer_index, tree)
    decided = layer.operators().items()
    operators = tuple(".".join(path) for path, decision in decided if decision.treatment is Treatment.RECOMPUTE)
    return operators, tuple(match.name for match in unique_matches(layer.comm_recomputes))


# Log lines about the settings of a layer, in the format of the specification.


def format_log_lines(layer: LayerDecisions) -> tuple[str, ...]:
    """Format the log lines of a layer as MindFormers does, recompute first."""
    at = f"at layer {layer.layer_index}"
    lines = []
    if layer.is_fully_recomputed:
        lines.append(f"Set full recompute {at}" + (", with its output" if layer.is_output_recomputed else ""))
    for title, entry_matches in (
        ("select recompute", layer.recomputes),
        ("select comm recompute", layer.comm_recomputes),
        ("select recompute exclude", layer.excludes),
        ("select comm recompute exclude", layer.comm_excludes),
    ):
        if matches := unique_matches(entry_matches):
            lines.append(f"Set {title} {at}: {', '.join(match.name for match in matches)}")
    if layer.layer_prefetch is not None:
        lines.append(f"Set layer swap {at} and value is: {layer.layer_prefetch}")
    if layer.op_swaps:
        swaps = (f"{_log_name(swap.match)}, value={swap.entry.prefetch}" for swap in layer.op_swaps)
        lines.append(f"Set op_swap {at}: {', '.join(swaps)}")
    return tuple(lines)


def _log_name(match: Match) -> str:
    """Return the name with a leading dot if it has one level, as in the specification."""
    return f".{match.name}" if len(match.path) == 1 else match.name
