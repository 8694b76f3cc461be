"""Format the summary of a policy as text."""

from collections.abc import Iterable

from mindswap.policy.summary import LayerAction, PolicySummary
from mindswap.policy.wording import format_layers
from mindswap.report.problems import escape
from mindswap.units import format_count


def format_policy(summary: PolicySummary) -> str:
    """Format a policy as indented text, one block per group of equal layers."""
    if not summary.is_swap_enabled:
        return "policy: swap is off; MindFormers runs as it does without mindswap"
    num_layers = summary.num_layers
    count = "unknown number of layers" if num_layers is None else format_count(num_layers, "layer")
    lines = [f"policy: swap is on, {count}" + (f"; operators of {summary.source}" if summary.source else "")]
    for group in summary.groups:
        is_default = group.layers.indices is None and len(summary.groups) > 1
        lines.append(f"  {'every other layer' if is_default else format_layers(group.layers)}")
        lines += [f"    {line}" for line in format_actions(group.actions)]
    return "\n".join(lines)


def format_actions(actions: Iterable[LayerAction]) -> list[str]:
    """Format one line per action, prefetch distances in a column, the overrides below each line."""
    rows = []
    for action in actions:
        count = "" if action.num_operators in (None, 1) else f" ({action.num_operators} operators)"
        distance = "" if action.num_prefetch_ops is None else f"prefetch {action.num_prefetch_ops}"
        text = f"{action.action.value} {escape(action.name) or 'the full layer'}{count}"
        rows.append((text, distance, action.reasons))
    width = max((len(text) for text, *_ in rows), default=0)
    lines: list[str] = []
    for text, distance, reasons in rows:
        lines += [f"{text:<{width}}  {distance}".rstrip(), *(f"    {escape(reason)}" for reason in reasons)]
    return lines or ["nothing is offloaded or recomputed"]
