"""Settings -> one immutable Policy."""

from collections.abc import Iterable, Iterator
from typing import Any

from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy, union_layers
from mindswap.policy.schema import SELECT_OPTIONS
from mindswap.policy.settings import PolicySettings, Statement


def build_policy(settings: PolicySettings) -> Policy:
    """The policy of everything that could be read."""
    if not settings.is_swap_enabled:
        return Policy()
    entries: dict[str, Any] = {
        option: tuple(OpRecompute(pattern, layers) for pattern, _, layers in _grouped(settings.of(option)))
        for option in SELECT_OPTIONS
    }
    entries["layer_swap"] = [LayerSwap(layers, ahead) for _, ahead, layers in _grouped(settings.of("layer_swap"))]
    entries["op_swap"] = [OpSwap(name, layers, ahead) for name, ahead, layers in _grouped(settings.of("op_swap"))]
    for option, field in (("recompute", "layer_recompute"), ("output_recompute", "output_recompute")):
        entries[field] = union_layers(statement.layers for statement in settings.of(option))
    entries.update(settings.flags)
    return Policy(is_swap_enabled=True, default_prefetch=settings.default_prefetch, **entries)


def _grouped(statements: Iterable[Statement]) -> Iterator[tuple[Any, Any, Layers]]:
    """(pattern, prefetch, layers); patterns in order of first appearance, as MindFormers groups them."""
    by_pattern: dict[str | None, dict[int | None, list[Layers]]] = {}
    for statement in statements:
        is_readable = statement.num_prefetch_ops is not None or not statement.option.endswith("_swap")
        if statement.layers and is_readable:
            by_prefetch = by_pattern.setdefault(statement.pattern, {})
            by_prefetch.setdefault(statement.num_prefetch_ops, []).append(statement.layers)
    for pattern, by_prefetch in by_pattern.items():
        for prefetch, layers in by_prefetch.items():
            yield pattern, prefetch, union_layers(layers)
