"""Wrappers for recompute and swap. They replace `construct` of a cell, so names of cells and parameters stay."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import mindspore as ms
from mindspore import nn

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

    def recomputed(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return ms.recompute(
                run,
                *args,
                use_reentrant=False,
                output_recompute=output_recompute,
                early_stop=early_stop,
                context_fn=context_fn,
                **kwargs,
            )

        return call

    return _wrap(target, recomputed)


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

    def swapped(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with saves_observed(SwapManager(), policy_fn):
                return run(*args, **kwargs)

        return call

    return _wrap(target, swapped)


def _wrap(target: Any, decorate: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    if not isinstance(target, nn.Cell):
        return decorate(target)
    run = target.construct
    vars(target)["construct"] = functools.wraps(run)(decorate(run))  # `Cell.__setattr__` takes cells and parameters
    return target
