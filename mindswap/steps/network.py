"""Python interface to networks: apply a policy, capture the graph, read the layers."""

import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mindswap.adapters.graph.apply import apply_policy, read_tree
from mindswap.adapters.quiet import quiet
from mindswap.errors import ApplyError, require
from mindswap.graph.model import Graph
from mindswap.graph.passes.dropout_masks import with_bit_masks
from mindswap.graph.sequences import is_sequence_state
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.model import Policy
from mindswap.policy.resolve import LayerDecisions, resolve_layer
from mindswap.pynative.hyper_parallel import upstream_calls
from mindswap.pynative.schedule import Unit

if TYPE_CHECKING:
    from mindswap.adapters.pynative.copies import CopyEngine
    from mindswap.adapters.pynative.hyper_parallel import HyperParallel
    from mindswap.adapters.pynative.swap import Swap


def apply(
    network: Any,
    policy: Policy,
    layers: str | None = None,
    with_lazy_inline: bool = True,
    logger: logging.Logger | None = None,
    unit: Unit = Unit.OPERATORS,
    copies: "CopyEngine | HyperParallel | None" = None,
) -> tuple[LayerDecisions, ...]:
    """Apply a policy to a network before its first compile; in PyNative mode swap starts with the second step.

    Args:
        network: a MindSpore `Cell`; its layers are modified in place.
        policy: from `mindswap.load_policy`, or built from `mindswap.policy.model`.
        layers: path of the list of layers, e.g. `"backbone.blocks"`; None searches the names that models of
            MindFormers use.
        with_lazy_inline: mark the network as lazy_inline, because the compiler offloads nothing without it. Use False
            for the CPU backend, which cannot execute such a network.
        logger: logs one line for each setting; None for the logger of `mindswap.adapters.graph.apply`.
        unit: unit of the policy's prefetch distances; layers in PyNative mode only.
        copies: copy engine in PyNative mode: `StreamCopies()` on Ascend, `HyperParallel()` for the engine of
            MindFormers 2.x; None for a thread on CPU, and an error on any other device.

    Returns:
        The applied settings, one entry per layer; empty if the policy has swap disabled.

    Raises:
        ApplyError: if the list of layers does not exist, a pattern matches nothing, `copies` does not support the
            policy, or in PyNative mode the network already has a swap.
    """
    from mindswap.adapters.graph import mindspore as adapter
    from mindswap.adapters.graph.network import resolve_layers

    require("policy", policy, Policy)
    logger = logger or logging.getLogger("mindswap.adapters.graph.apply")
    is_pynative = adapter.is_pynative()
    if not is_pynative and (unit is not Unit.OPERATORS or copies is not None):
        raise ApplyError(
            "unit and copies are for PyNative mode; in graph mode the compiler moves, and distances count operators\n"
            "    fix:     mindspore.set_context(mode=mindspore.PYNATIVE_MODE) before apply"
        )
    cells = resolve_layers(network, layers)
    wrap = _upstream(network, cells, policy, unit, copies) if is_pynative else None
    actions = apply_policy(cells, policy, logger, is_swap_per_call=is_pynative and wrap is None)
    if policy.is_swap_enabled and is_pynative and wrap is None:
        from mindswap.adapters.pynative.swap import Swap

        Swap(network, cells, _decisions(policy, cells), unit, cast("CopyEngine | None", copies))
    if with_lazy_inline and policy.is_swap_enabled:
        for name, count in adapter.mark_lazy_inline(network, cells).items():
            logger.info("mindswap: %d %s: lazy_inline is on %s instead, else all would swap alike", count, name,
                        type(network).__name__)  # fmt: skip
    if wrap is not None:
        wrap()
    return actions


def _decisions(policy: Policy, cells: Sequence[Any]) -> list[LayerDecisions]:
    return [resolve_layer(policy, index, read_tree(cell)) for index, cell in enumerate(cells)]


def _upstream(
    network: Any, cells: Sequence[Any], policy: Policy, unit: Unit, copies: "CopyEngine | HyperParallel | None"
) -> Callable[[], None] | None:
    """Return a function that passes the network to the engine of MindFormers 2.x; None if it was not requested."""
    from mindswap.adapters.pynative.hyper_parallel import HyperParallel

    if not isinstance(copies, HyperParallel):
        return None
    calls = upstream_calls(_decisions(policy, cells), unit)
    copies.check(network)
    return lambda: copies.wrap(network, cells, calls)


def capture(network: Any, inputs: Sequence[Any], with_lazy_inline: bool = True) -> Graph:
    """Compile forward and backward of any network with MindSpore's frontend, without executing it.

    `mindswap.graph.storage.classify_saved` finds saved, swapped and recomputed tensors in the graph.

    Args:
        network: a MindSpore `Cell` that returns a loss, with or without a policy.
        inputs: its inputs, tensors of the right shape and dtype; the values are not used.
        with_lazy_inline: mark the network as lazy_inline, because nothing is offloaded without it. The CPU backend
            cannot execute such a network.

    Returns:
        The graph of one training step.

    Raises:
        GraphError: if the compiler refuses the network.
    """
    from mindswap.adapters.graph import mindspore as adapter

    if with_lazy_inline:
        try:
            layers = list(adapter.find_layers(network))
        except ApplyError:  # any network can be captured
            layers = []
        adapter.mark_lazy_inline(network, layers)
    return with_bit_masks(adapter.compile_training_graph(network, inputs))


def running_swap(network: Any) -> "Swap | None":
    """Return the swap that `apply` started on a network in PyNative mode; None if there is none."""
    from mindswap.adapters.pynative import swap

    return swap.running_swap(network)


# Layers of a configuration's network, as built by MindFormers.


def has_mindformers() -> bool:
    """Return whether MindSpore and MindFormers are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("mindspore", "mindformers"))


def find_layer_trees(path: str, table_trees: LayerTrees | None, num_layers: int | None) -> LayerTrees | None:
    """Return the layers from a table (`table_trees`), else as built by MindFormers; None if neither is possible."""
    if table_trees is not None or num_layers is None or not has_mindformers():
        return table_trees
    return read_real_trees(path, num_layers)


def count_trained_weights(path: str) -> tuple[int, int]:
    """Build the network of a YAML file with MindFormers; return how many weights are trained, and how many it has."""
    absolute_path = os.path.abspath(path)  # noqa: PTH100 quiet() changes the working directory
    with quiet():
        from mindswap.adapters.graph.build import build_network

        network, _ = build_network(absolute_path, Policy(is_swap_enabled=True))
        weights = [weight for weight in network.get_parameters() if not is_sequence_state(weight.name)]
    return sum(weight.requires_grad for weight in weights), len(weights)


def read_real_trees(path: str, num_layers: int) -> LayerTrees:
    """Build the network of a YAML file with MindFormers, and return its layers."""
    absolute_path = os.path.abspath(path)  # noqa: PTH100 quiet() changes the working directory
    with quiet():
        from mindswap.adapters.graph.mindformers import read_layer_trees

        return read_layer_trees(absolute_path, num_layers)
