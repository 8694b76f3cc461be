"""Settings -> one immutable Policy."""

from collections.abc import Iterable
from typing import Any

from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy, union_layers
from mindswap.policy.settings import Settings, Statement

__all__ = ["build_policy"]


def build_policy(settings: Settings) -> Policy:
    """The policy of everything that could be read."""
    if not settings.is_swap_enabled:
        return Policy()
    layer_swap = _grouped(statement for statement in settings.of("layer_swap"))
    op_swap = _grouped(statement for statement in settings.of("op_swap"))
    recompute = [statement.layers for statement in settings.of("recompute")]
    return Policy(
        True,
        settings.default_prefetch,
        tuple(LayerSwap(layers, prefetch) for (_, prefetch), layers in layer_swap.items()),
        tuple(OpSwap(pattern, layers, prefetch) for (pattern, prefetch), layers in op_swap.items()),
        union_layers(recompute),
        _op_recompute(settings, "select_recompute"),
        _op_recompute(settings, "select_comm_recompute"),
        _op_recompute(settings, "select_recompute_exclude"),
        _op_recompute(settings, "select_comm_recompute_exclude"),
        **dict(settings.flags),
        output_recompute=union_layers([statement.layers for statement in settings.of("output_recompute")]),
    )


def _op_recompute(settings: Settings, option: str) -> tuple[OpRecompute, ...]:
    groups = _grouped(settings.of(option))
    return tuple(OpRecompute(pattern, layers) for (pattern, _), layers in groups.items())


def _grouped(statements: Iterable[Statement]) -> dict[tuple[Any, Any], Layers]:
    """Layers by (pattern, prefetch); patterns in order of first appearance, as MindFormers groups them."""
    by_pattern: dict[str | None, dict[int | None, list[Layers]]] = {}
    for statement in statements:
        if statement.layers and _is_readable(statement):
            by_pattern.setdefault(statement.pattern, {}).setdefault(statement.num_prefetch_ops, []).append(
                statement.layers
            )
    return {
        (pattern, prefetch): union_layers(layers)
        for pattern, by_prefetch in by_pattern.items()
        for prefetch, layers in by_prefetch.items()
    }


def _is_readable(statement: Statement) -> bool:
    return statement.num_prefetch_ops is not None or not statement.option.endswith("_swap")
