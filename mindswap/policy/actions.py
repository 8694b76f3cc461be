"""What to set on a layer for what a policy decides, and the log lines that say so. Pure."""

from dataclasses import dataclass

from mindswap.policy.cell_tree import CellNode
from mindswap.policy.match import Match
from mindswap.policy.model import Policy
from mindswap.policy.resolve import Setting, matches_of, resolve_layer

__all__ = ["LayerActions", "OpSwapAction", "format_log_lines", "plan_layer"]


@dataclass(frozen=True)
class OpSwapAction:
    """Offload a cell or primitive that a pattern of the policy names, with this prefetch distance in operators."""

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
    """What to set on a layer of the model so that its operators do what a policy decides; as `resolve_layer`."""
    decisions = resolve_layer(policy, layer_index, layer)
    whole = next((c.entry for c in decisions.offloads if c.entry.setting is Setting.LAYER_SWAP), None)
    return LayerActions(
        layer_index=decisions.layer_index,
        is_fully_recomputed=decisions.is_fully_recomputed,
        is_output_recomputed=decisions.is_output_recomputed,
        recomputes=matches_of(decisions.recomputes),
        comm_recomputes=matches_of(decisions.comm_recomputes),
        recompute_excludes=matches_of(decisions.excludes),
        comm_recompute_excludes=matches_of(decisions.comm_excludes),
        layer_prefetch=whole.prefetch if whole is not None else None,
        op_swaps=tuple(
            OpSwapAction(claim.match, claim.entry.prefetch, claim.entry.pattern)
            for claim in decisions.offloads
            if claim.entry.prefetch is not None and claim.path
        ),
    )


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
