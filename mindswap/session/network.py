"""The Python interface: put a policy on any network whose layers are a list."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mindswap.adapters.apply import apply_policy, read_tree
from mindswap.errors import ApplyError
from mindswap.graph.model import Graph
from mindswap.policy.actions import LayerActions
from mindswap.policy.model import Policy
from mindswap.policy.resolve import resolve_layer

if TYPE_CHECKING:
    from mindswap.adapters.pynative.swap import Swap

__all__ = ["apply", "capture", "running_swap"]


def apply(
    network: Any,
    policy: Policy,
    layers: str | None = None,
    with_lazy_inline: bool = True,
    logger: logging.Logger | None = None,
) -> tuple[LayerActions, ...]:
    """Set a policy on a network, before its first compile; in PyNative mode let it swap from its second pass on.

    Args:
        network: a MindSpore `Cell`; its layers are changed in place.
        policy: from `mindswap.load_policy`, or built from `mindswap.policy.model`.
        layers: path of the list of layers, e.g. `"backbone.blocks"`; None looks for the list as the
            models of MindFormers name it.
        with_lazy_inline: mark the network as lazy_inline, without which the compiler offloads
            nothing. The CPU backend cannot execute such a network: False there.
        logger: gets one line for each thing set; default is the logger of `mindswap.adapters.apply`.

    Returns:
        What was set, one entry per layer; empty if the policy has swap disabled.

    Raises:
        ApplyError: if there is no such list, a pattern names nothing in the network, or in PyNative mode a swap runs
            on it already.
    """
    from mindswap.adapters import mindspore as adapter
    from mindswap.adapters.network import resolve_layers

    logger = logger or logging.getLogger("mindswap.adapters.apply")
    cells = resolve_layers(network, layers)
    actions = apply_policy(cells, policy, logger)
    if policy.is_swap_enabled and adapter.is_pynative():
        from mindswap.adapters.pynative.swap import Swap

        Swap(network, cells, [resolve_layer(policy, index, read_tree(cell)) for index, cell in enumerate(cells)])
    if with_lazy_inline and policy.is_swap_enabled:
        for name, count in adapter.mark_lazy_inline(network, cells).items():
            logger.info("mindswap: %d %s: lazy_inline is on %s instead, else all would swap alike", count, name,
                        type(network).__name__)  # fmt: skip
    return actions


def capture(network: Any, inputs: Sequence[Any], with_lazy_inline: bool = True) -> Graph:
    """Forward and backward of any network as MindSpore's frontend compiles them; no device, nothing is run.

    What is kept, swapped and recomputed is read from the graph with `mindswap.graph.storage.classify_saved`.

    Args:
        network: a MindSpore `Cell` that gives a loss, with or without a policy on it.
        inputs: its inputs, as tensors of the right shape and dtype; the values do not matter.
        with_lazy_inline: mark the network as lazy_inline first, without which nothing is offloaded. The
            CPU backend cannot execute such a network: do not train with it there.

    Raises:
        GraphError: if the compiler refuses the network.
    """
    from mindswap.adapters import mindspore as adapter

    if with_lazy_inline:
        try:
            layers = list(adapter.find_layers(network))
        except ApplyError:  # any network can be captured
            layers = []
        adapter.mark_lazy_inline(network, layers)
    return adapter.compile_training_graph(network, inputs)


def running_swap(network: Any) -> "Swap | None":
    """The swap that `apply` began on a network in PyNative mode: what it moves, what was predicted, how to end it."""
    from mindswap.adapters.pynative import swap

    return swap.running_swap(network)
