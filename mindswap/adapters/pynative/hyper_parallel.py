"""Swap in PyNative mode by `hyper_parallel`, the engine of MindFormers 2.x.

The calls are those of MindFormers 2.1.0 (`apply_swap` in pynative/distributed/activation_checkpoint.py:1100): cells are
replaced with wrappers, then layers are paired. **It has never run on a device**, and on a CPU it swaps nothing; it must
be requested by name.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import mindspore as ms
from mindspore import nn

from mindswap.adapters.graph.apply import resolve_path
from mindswap.adapters.pynative.swap import running_swap
from mindswap.adapters.pynative.values import address_of, tensors_in
from mindswap.errors import ApplyError
from mindswap.pynative.hyper_parallel import UpstreamCalls

MODULE = "hyper_parallel.core.activation_checkpoint"
NEEDED = ("swap_wrapper", "SwapManager", "CheckpointPolicy")
INSTALL = (
    "    needs:   hyper-parallel 1.0, as MindFormers 2.1.0 does; it is not on PyPI: build release 1.0.0 of\n"
    "             github.com/mindspore-ai/hyper-parallel (its main line is for PyTorch only), or leave copies out:\n"
    "             mindswap moves the memory itself"
)


class HyperParallel:
    """Let `hyper_parallel` copy: `mindswap.apply(network, policy, copies=HyperParallel(), unit=Unit.LAYERS)`.

    A named cell then swaps everything that autograd saves inside it, as in MindFormers 2.x. There is no ledger and no
    check of each pass, and it cannot be undone: wrappers stay in the network.

    Raises:
        ApplyError: if `hyper_parallel` cannot be imported, or is older than its swap for MindSpore.
    """

    def __init__(self) -> None:
        try:
            self._upstream = import_module(MODULE)
        except ImportError as error:
            raise ApplyError(f"hyper_parallel cannot be imported: {error}\n{INSTALL}") from error
        missing = [name for name in NEEDED if not hasattr(self._upstream, name)]
        if missing:
            raise ApplyError(f"{self._upstream.__file__} has no {', '.join(missing)}\n{INSTALL}")

    def check(self, network: nn.Cell) -> None:
        """Refuse networks that it would not swap, before anything is changed.

        Raises:
            ApplyError: on a CPU, or if a swap is active in this network.
        """
        if ms.get_context("device_target") == "CPU":
            raise ApplyError(
                "hyper_parallel moves nothing on a CPU: it passes tensors of the host through\n"
                "    fix:     leave copies out: mindswap moves the memory itself"
            )
        if running_swap(network) or any(hasattr(cell, "_swap_group_name") for _, cell in network.cells_and_names()):
            raise ApplyError("a swap runs on this network already\n    fix:     take a network that was just built")

    def wrap(self, network: nn.Cell, layers: Sequence[nn.Cell], calls: UpstreamCalls) -> None:
        """Wrap the cells of the network, and pair its layers."""
        cells = list(layers)
        wrapped_layers = sorted({index for index, _ in calls.wraps})
        keeps = {index: self._keep_inputs(cells[index]) for index in wrapped_layers}
        for index, path in calls.wraps:
            old = resolve_path(layers[index], path)
            new = self._upstream.swap_wrapper(old, policy_fn=keeps[index])
            _replace(network, old, new)
            if not path:
                cells[index] = new
        for first, second in calls.pairs:
            self._upstream.SwapManager().set_forward_prefetch_layer(cells[first], cells[second])

    def _keep_inputs(self, layer: nn.Cell) -> "_KeepInputs":
        policy = self._upstream.CheckpointPolicy
        keep = _KeepInputs(policy.MUST_SAVE, policy.MUST_SWAP)
        layer.register_forward_pre_hook(keep.record_inputs, with_kwargs=True)
        return keep


class _KeepInputs:
    """Policy function of hyper_parallel: keeps masks and tables that a layer receives, because other layers read them.

    The first input of a layer, its hidden state, may be swapped.
    """

    def __init__(self, keep: Any, swap: Any) -> None:
        self._keep, self._swap = keep, swap
        self._addresses: set[int] = set()

    def record_inputs(self, cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the inputs of a layer that begins forward."""
        self._addresses = {address_of(tensor) for tensor in tensors_in((args[1:], kwargs))}

    def __call__(self, tensor: ms.Tensor) -> Any:
        return self._keep if address_of(tensor) in self._addresses else self._swap


def _replace(network: nn.Cell, old: nn.Cell, new: nn.Cell) -> None:
    """Replace a cell wherever a cell of the network holds it."""
    for parent, name in [(cell, name) for _, cell in network.cells_and_names() for name in cell._cells]:
        if parent._cells[name] is old:
            if isinstance(parent, nn.CellList | nn.SequentialCell):
                parent[list(parent._cells).index(name)] = new
            else:
                setattr(parent, name, new)
