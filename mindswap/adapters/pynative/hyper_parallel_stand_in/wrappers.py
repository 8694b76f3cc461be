"""Wrappers for recompute and swap. They replace `construct` of a cell, so names of cells and parameters stay.

The wrappers of HyperParallel are cells of their own: MindFormers finds nothing below one, so settings of cells in a
wrapped cell have no effect. Here a wrapped cell hides what is in it until `show_wrapped_cells`.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import mindspore as ms
from mindspore import nn

from mindswap.adapters.pynative.hyper_parallel_stand_in.applied import RECOMPUTE, SWAP, AppliedWrapper, applied
from mindswap.adapters.pynative.hyper_parallel_stand_in.swap import Policy, SwapManager, saves_observed
from mindswap.errors import LaunchError

Target = TypeVar("Target", bound=Callable[..., Any])


def checkpoint_wrapper(
    target: Target,
    context_fn: Callable[[], Any] | None = None,
    early_stop: bool = True,
    output_recompute: bool = False,
) -> Target:
    """Recompute a cell or a function in backward, and keep its inputs only.

    Args:
        target: the cell, which is changed, or the function.
        context_fn: returns the contexts of the forward pass and of the recomputation.
        early_stop: end the recomputation after the last saved tensor.
        output_recompute: also recompute the output, where it is read next.
    """
    wrapper = applied.add(RECOMPUTE)

    def recomputed(run: Callable[..., Any]) -> Callable[..., Any]:
        is_forward = False

        def counted(*args: Any, **kwargs: Any) -> Any:
            if is_forward:
                wrapper.num_runs += 1
            else:
                wrapper.num_recomputed += 1
            return run(*args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_forward
            is_forward = True
            try:
                return recompute(*args, **kwargs)
            finally:
                is_forward = False

        def recompute(*args: Any, **kwargs: Any) -> Any:
            return ms.recompute(
                counted,
                *args,
                use_reentrant=False,
                output_recompute=output_recompute,
                early_stop=early_stop,
                context_fn=context_fn,
                **kwargs,
            )

        return call

    return _wrap(target, recomputed, wrapper)


def checkpoint_exclude_wrapper(target: Target) -> Target:
    """Refuse to exclude a part of a recomputed cell.

    Raises:
        LaunchError: always.
    """
    name = type(target).__name__ if isinstance(target, nn.Cell) else getattr(target, "__name__", str(target))
    raise LaunchError(
        f"recompute.exclude_op: {name}: the stand-in for HyperParallel recomputes a cell as a whole\n"
        "    allowed: full_recompute_layer, select_module, recompute_comm\n"
        "    fix:     name the cells that are recomputed in select_module, or install hyper-parallel 1.0"
    )


def swap_wrapper(target: Target, policy_fn: Policy | None = None) -> Target:
    """Swap what autograd saves inside a cell or a function, by the pairs of `SwapManager`.

    Args:
        target: the cell, which is changed, or the function.
        policy_fn: called with each saved tensor; `CheckpointPolicy.MUST_SAVE` keeps it on the device.
    """
    wrapper = applied.add(SWAP)

    def swapped(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            wrapper.num_runs += 1
            with saves_observed(SwapManager(), policy_fn, wrapper):
                return run(*args, **kwargs)

        return call

    return _wrap(target, swapped, wrapper)


def _wrap(target: Any, decorate: Callable[[Callable[..., Any]], Callable[..., Any]], wrapper: AppliedWrapper) -> Any:
    if not isinstance(target, nn.Cell):
        wrapper.target = decorate(target)
        return wrapper.target
    wrapper.target = target
    _hide(target)
    run = target.construct
    vars(target)["construct"] = functools.wraps(run)(decorate(run))  # `Cell.__setattr__` takes cells and parameters
    return target


_hidden: list[tuple[nn.Cell, Any, type]] = []  # cell, its cells, its class


def _hide(cell: nn.Cell) -> None:
    """Hide the cells and attributes of a wrapped cell; the cell itself can be wrapped once more."""
    if any(hidden is cell for hidden, _, _ in _hidden):
        return
    _hidden.append((cell, cell._cells, type(cell)))
    vars(cell)["_cells"] = type(cell._cells)()
    cell.__class__ = type(type(cell).__name__, (type(cell),), {"__dir__": lambda self: []})


def show_wrapped_cells() -> None:
    """Show what is in wrapped cells again, when all wrappers are made."""
    while _hidden:
        cell, cells, cell_type = _hidden.pop()
        vars(cell)["_cells"] = cells
        cell.__class__ = cell_type
