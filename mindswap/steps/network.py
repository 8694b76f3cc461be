"""The Python interface: put a policy on any network whose layers are a list."""

import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mindswap.adapters.graph.apply import apply_policy, read_tree
from mindswap.adapters.quiet import quiet
from mindswap.errors import ApplyError, require
from mindswap.graph.model import Graph
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
    """Set a policy on a network, before its first compile; in PyNative mode let it swap from its second pass on.

    Args:
        network: a MindSpore `Cell`; its layers are changed in place.
        policy: from `mindswap.load_policy`, or built from `mindswap.policy.model`.
        layers: path of the list of layers, e.g. `"backbone.blocks"`; None looks for the list as the
            models of MindFormers name it.
        with_lazy_inline: mark the network as lazy_inline, without which the compiler offloads
            nothing. The CPU backend cannot execute such a network: False there.
        logger: gets one line for each thing set; default is the logger of `mindswap.adapters.graph.apply`.
        unit: what the prefetch distances of the policy count; layers in PyNative mode only.
        copies: how bytes move in PyNative mode: `StreamCopies()` on Ascend, `HyperParallel()` to leave all of it to the
            engine of MindFormers 2.x; default is a thread on a CPU, and an error on any other device.

    Returns:
        What was set, one entry per layer; empty if the policy has swap disabled.

    Raises:
        ApplyError: if there is no such list, a pattern names nothing in the network, in PyNative mode a swap runs
            on it already, or `copies` cannot do what the policy asks for.
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
    """Function that hands the network over to the engine of MindFormers 2.x, if that was asked for."""
    from mindswap.adapters.pynative.hyper_parallel import HyperParallel

    if not isinstance(copies, HyperParallel):
        return None
    calls = upstream_calls(_decisions(policy, cells), unit)
    copies.check(network)
    return lambda: copies.wrap(network, cells, calls)


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
    from mindswap.adapters.graph import mindspore as adapter

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


# The layers of a configuration's network, as MindFormers builds it.


def has_mindformers() -> bool:
    """True if the real network can be asked."""
    return all(importlib.util.find_spec(name) is not None for name in ("mindspore", "mindformers"))


def find_layer_trees(path: str, known: LayerTrees | None, num_layers: int | None) -> LayerTrees | None:
    """The layers as a table has them (`known`), else as MindFormers builds them; None where that is not possible."""
    if known is not None or num_layers is None or not has_mindformers():
        return known
    return read_real_trees(path, num_layers)


def read_real_trees(path: str, num_layers: int) -> LayerTrees:
    """The layers as MindFormers builds them from a YAML file."""
    absolute_path = os.path.abspath(path)  # noqa: PTH100 quiet() changes the working directory
    with quiet():
        from mindswap.adapters.graph.mindformers import read_layer_trees

        return read_layer_trees(absolute_path, num_layers)
