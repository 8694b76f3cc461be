"""The log lines that say what is set on a layer, as the specification has them."""

from mindswap.policy.match import Match
from mindswap.policy.resolve import LayerDecisions, matches_of


def format_log_lines(layer: LayerDecisions) -> tuple[str, ...]:
    """The lines MindFormers users look for, recompute before swap."""
    at = f"at layer {layer.layer_index}"
    lines = []
    if layer.is_fully_recomputed:
        lines.append(f"Set full recompute {at}" + (", with its output" if layer.is_output_recomputed else ""))
    for title, claims in (
        ("select recompute", layer.recomputes),
        ("select comm recompute", layer.comm_recomputes),
        ("select recompute exclude", layer.excludes),
        ("select comm recompute exclude", layer.comm_excludes),
    ):
        if matches := matches_of(claims):
            lines.append(f"Set {title} {at}: {', '.join(match.name for match in matches)}")
    if layer.layer_prefetch is not None:
        lines.append(f"Set layer swap {at} and value is: {layer.layer_prefetch}")
    if layer.op_swaps:
        swaps = (f"{_log_name(swap.match)}, value={swap.entry.prefetch}" for swap in layer.op_swaps)
        lines.append(f"Set op_swap {at}: {', '.join(swaps)}")
    return tuple(lines)


def _log_name(match: Match) -> str:
    """The specification writes a dot before a name of one level."""
    return f".{match.name}" if len(match.path) == 1 else match.name
