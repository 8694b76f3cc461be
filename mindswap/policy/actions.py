"""What a policy does to one layer: matches in, actions and log lines out. Pure."""

from dataclasses import dataclass

from mindswap.policy.cell_tree import CellNode
from mindswap.policy.match import Match, match_pattern
from mindswap.policy.model import OpRecompute, Policy

__all__ = ["LayerActions", "OpSwapAction", "format_log_lines", "plan_layer"]


@dataclass(frozen=True)
class OpSwapAction:
    """Offload one matched cell or primitive.

    Attributes:
        match: what to offload.
        num_prefetch_ops: prefetch distance in operators.
        pattern: the pattern of the policy that names it.
    """

    match: Match
    num_prefetch_ops: int
    pattern: str

    @property
    def log_name(self) -> str:
        """Name in the log line: the specification writes a dot before a name of one level."""
        return f".{self.match.name}" if len(self.match.path) == 1 else self.match.name


@dataclass(frozen=True)
class LayerActions:
    """Everything to set on one layer, in this order.

    Attributes:
        layer_index: index of the layer.
        is_fully_recomputed: recompute the whole layer.
        is_output_recomputed: its output too, which is then computed again for the layer that follows.
        recomputes: cells and primitives to recompute.
        comm_recomputes: primitives whose communication is recomputed.
        recompute_excludes: cells and primitives that must not be recomputed.
        comm_recompute_excludes: primitives whose communication must not be recomputed.
        layer_prefetch: offload the whole layer with this prefetch distance; None for no.
        op_swaps: cells and primitives to offload; one inside another comes later and overrides it.
    """

    layer_index: int
    is_fully_recomputed: bool = False
    is_output_recomputed: bool = False
    recomputes: tuple[Match, ...] = ()
    comm_recomputes: tuple[Match, ...] = ()
    recompute_excludes: tuple[Match, ...] = ()
    comm_recompute_excludes: tuple[Match, ...] = ()
    layer_prefetch: int | None = None
    op_swaps: tuple[OpSwapAction, ...] = ()


def plan_layer(policy: Policy, layer_index: int, layer: CellNode) -> LayerActions:
    """The actions of `policy` on one layer.

    Args:
        policy: a normalised policy with swap enabled; a disabled one gives no action.
        layer_index: index of the layer in the model.
        layer: tree of the layer.

    Raises:
        PatternError: if a pattern is no regular expression.
    """
    if not policy.is_swap_enabled:
        return LayerActions(layer_index)
    excludes = _match_ops(policy.select_recompute_exclude, layer_index, layer)
    comm_excludes = _match_ops(policy.select_comm_recompute_exclude, layer_index, layer, only_primitives=True)
    is_full = layer_index in policy.layer_recompute
    recomputes: tuple[Match, ...] = ()
    comm_recomputes: tuple[Match, ...] = ()
    if not is_full:
        recomputes = _without(_match_ops(policy.select_recompute, layer_index, layer), excludes)
        comm = _match_ops(policy.select_comm_recompute, layer_index, layer, only_primitives=True)
        comm_recomputes = _without(comm, comm_excludes)
    return LayerActions(
        layer_index=layer_index,
        is_fully_recomputed=is_full,
        is_output_recomputed=is_full and layer_index in policy.output_recompute,
        recomputes=recomputes,
        comm_recomputes=comm_recomputes,
        recompute_excludes=excludes,
        comm_recompute_excludes=comm_excludes,
        layer_prefetch=next((e.prefetch for e in policy.layer_swap if layer_index in e.layers), None),
        op_swaps=_match_swaps(policy, layer_index, layer),
    )


def _match_ops(
    entries: tuple[OpRecompute, ...], layer_index: int, layer: CellNode, only_primitives: bool = False
) -> tuple[Match, ...]:
    found = {
        match.path: match
        for entry in entries
        if layer_index in entry.layers
        for match in match_pattern(entry.pattern, layer)
        if match.node.is_primitive or not only_primitives
    }
    return tuple(found.values())


def _without(matches: tuple[Match, ...], excludes: tuple[Match, ...]) -> tuple[Match, ...]:
    """The matches that are neither excluded nor inside an excluded cell."""
    excluded = {match.path for match in excludes}
    return tuple(m for m in matches if not any(m.path[:depth] in excluded for depth in range(1, len(m.path) + 1)))


def _match_swaps(policy: Policy, layer_index: int, layer: CellNode) -> tuple[OpSwapAction, ...]:
    swaps: dict[tuple[str, ...], OpSwapAction] = {}
    decided = set()  # a pattern that stands twice acts with its first entry that has the layer
    for entry in policy.op_swap:
        if layer_index not in entry.layers or entry.pattern in decided:
            continue
        decided.add(entry.pattern)
        for match in match_pattern(entry.pattern, layer):
            for path in [path for path in swaps if path[: len(match.path)] == match.path]:
                del swaps[path]  # a later pattern overrides an earlier one on all that it covers
            swaps[match.path] = OpSwapAction(match, entry.prefetch, entry.pattern)
    return tuple(swaps.values())


def format_log_lines(actions: LayerActions) -> tuple[str, ...]:
    """The lines MindFormers users look for, recompute before swap, as in the specification."""
    at = f"at layer {actions.layer_index}"
    lines = []
    if actions.is_fully_recomputed:
        lines.append(f"Set full recompute {at}" + (", with its output" if actions.is_output_recomputed else ""))
    for title, matches in (
        ("select recompute", actions.recomputes),
        ("select comm recompute", actions.comm_recomputes),
        ("select recompute exclude", actions.recompute_excludes),
        ("select comm recompute exclude", actions.comm_recompute_excludes),
    ):
        if matches:
            lines.append(f"Set {title} {at}: {', '.join(match.name for match in matches)}")
    if actions.layer_prefetch is not None:
        lines.append(f"Set layer swap {at} and value is: {actions.layer_prefetch}")
    if actions.op_swaps:
        swaps = (f"{swap.log_name}, value={swap.num_prefetch_ops}" for swap in actions.op_swaps)
        lines.append(f"Set op_swap {at}: {', '.join(swaps)}")
    return tuple(lines)
