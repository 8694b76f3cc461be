"""Hooks on a network in PyNative mode that tell an observer what a step does."""

import dataclasses
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from mindspore import nn

from mindswap.adapters.pynative.saved_tensors import SavedTensor, frames
from mindswap.adapters.pynative.threads import SoleThread
from mindswap.adapters.pynative.values import tensors_in
from mindswap.adapters.versions import pynative_executor
from mindswap.errors import ApplyError
from mindswap.pynative.trace import EventKind

logger = logging.getLogger(__name__)

_HOOK_LOOPS = ("_run_forward_pre_hook", "_run_forward_hook")  # functions of MindSpore that iterate over hooks


class Observer(Protocol):
    """Methods that a `Watch` calls."""

    def begin(self, inputs) -> None:
        """The network begins forward."""

    def end_forward(self, outputs) -> None:
        """The network has ended forward."""

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors=()) -> None:
        """A layer begins forward with some inputs, ends it with some outputs, or begins backward."""

    def save(self, tensor, layer_index: int) -> Any:
        """Autograd keeps a tensor; return what it shall keep instead."""

    def read(self, kept):
        """Backward takes what `save` returned; return the tensor."""


class Hook:
    """A hook on a cell. The one in a copy of the cell, by `copy.deepcopy` or `pickle`, does nothing.

    Args:
        function: called by the hook; None for nothing.
    """

    def __init__(self, function: Callable[..., Any] | None = None):
        self.function = function

    def __call__(self, *args):
        """Call the function; do nothing in a copy."""
        return None if self.function is None else self.function(*args)

    def __reduce__(self) -> Any:
        return Hook, ()


class SavedTensorHook(Hook):
    """A hook on the tensors that autograd saves in a cell; a copy of the cell has None, which is no hook."""

    def __reduce__(self) -> Any:
        return type(None), ()


def drop_idle_hooks(network: nn.Cell) -> None:
    """Take hooks that do nothing off a network: a copy has them, and one whose swap was removed inside of a hook."""
    for _, cell in network.cells_and_names():
        for hooks, extra in ((cell._lazy_forward_pre_hook, cell._lazy_forward_pre_hook_with_kwargs),
                             (cell._lazy_forward_hook, cell._lazy_forward_hook_with_kwargs)):  # fmt: skip
            for key in [key for key, hook in (hooks or {}).items() if type(hook) is Hook and hook.function is None]:
                del hooks[key]
                (extra or {}).pop(key, None)


@dataclasses.dataclass
class _LayerCalls:
    """A cell that is one layer, or several: then its n-th call in a pass is the n-th of these layers."""

    cell: nn.Cell
    indices: list[int]  # layer indices, in order
    index: int  # of the call that runs or ran last
    num_calls: int = 0  # in this forward pass of the network


class _UnobservedSaves:
    """Takes the saved tensors of a thread that no observer is told of."""

    def save(self, tensor, layer_index: int) -> SavedTensor:
        """See `Observer`."""
        return SavedTensor(tensor)

    def read(self, kept: SavedTensor):
        """See `Observer`."""
        kept.require_unmodified()
        return kept.tensor


_UNOBSERVED = _UnobservedSaves()


class Watch:
    """Hooks on a network and its layers, until `remove`.

    The thread that called the network last is the one that is watched.

    Args:
        network: the cell that is called for a step.
        layers: its transformer layers.
        observer: who is told; may be replaced between steps.
        hooked_layers: layers whose saved tensors are told; default all.
        before_pass: called first, when the network begins forward; it may replace the observer.
    """

    def __init__(
        self, network: nn.Cell, layers: Sequence[nn.Cell], observer: Observer,
        hooked_layers: Iterable[int] | None = None, before_pass: Callable[[], None] = lambda: None,
    ):  # fmt: skip
        self.network = network
        self.layers = layers
        self.observer = observer
        self.before_pass = before_pass
        self.hooked_layers = frozenset(range(len(layers)) if hooked_layers is None else hooked_layers)
        by_cell: dict[int, _LayerCalls] = {}
        for index, layer in enumerate(layers):
            by_cell.setdefault(id(layer), _LayerCalls(layer, [], index)).indices.append(index)
        self._calls = tuple(by_cell.values())
        self._thread = SoleThread()
        self._last_backward: int | None = None  # layer that began backward last
        self._hooks: list[Hook] = []
        self._handles: list[Any] = []
        self.install()

    @property
    def has_shared_layers(self) -> bool:
        """Return whether one cell stands for several layers."""
        return len(self._calls) < len(self.layers)

    def install(self) -> None:
        """Put the hooks on the network.

        Raises:
            ApplyError: a hook of a cell calls this, while MindSpore iterates over the hooks of that cell.
        """
        if _is_in_hook():
            raise ApplyError("a swap cannot begin by a hook of a cell\n    fix:     mindswap.apply outside of the step")
        drop_idle_hooks(self.network)
        foreign = [index for calls in self._calls if _has_foreign_hook(calls.cell) for index in calls.indices]
        if foreign:
            logger.warning("layers %s have `register_saved_tensors_hooks` of their own: they are not swapped", foreign)
        self._add(self.network.register_forward_pre_hook, self._begin, with_kwargs=True)
        self._add(self.network.register_forward_hook, self._end)
        for calls in self._calls:
            self._hook(calls)
        self.choose(self.hooked_layers)

    def choose(self, hooked_layers: Iterable[int]) -> None:
        """Tell of the saved tensors of these layers only, and of others that are the same cell."""
        self.hooked_layers = frozenset(hooked_layers)
        for calls in self._calls:
            if _has_foreign_hook(calls.cell):
                continue
            if self.hooked_layers.isdisjoint(calls.indices):
                calls.cell.register_saved_tensors_hooks(None, None)
            else:
                # Who was told of a save is told of its reads, also if another observer has come meanwhile.
                calls.cell.register_saved_tensors_hooks(
                    SavedTensorHook(lambda tensor, calls=calls: self._pack(tensor, calls)),
                    SavedTensorHook(lambda kept: kept[0].read(kept[1])),
                )

    def remove(self) -> None:
        """Leave the network as it was."""
        for hook in self._hooks:
            hook.function = None
        if not _is_in_hook():  # else MindSpore would fail; idle ones go with the next `drop_idle_hooks`
            for handle in self._handles:
                handle.remove()
        self._hooks, self._handles = [], []
        for calls in self._calls:
            if not _has_foreign_hook(calls.cell):
                calls.cell.register_saved_tensors_hooks(None, None)

    def _add(self, register: Callable[..., Any], function: Callable[..., Any], **options: bool) -> None:
        self._hooks.append(Hook(function))
        self._handles.append(register(self._hooks[-1], **options))

    def _begin(self, cell, args, kwargs) -> None:
        self._thread.begin()
        for calls in self._calls:
            calls.num_calls = 0
        self.before_pass()
        self.observer.begin((args, kwargs))

    def _end(self, cell, args, outputs) -> None:
        if self._is_watched():
            self._thread.end_forward()
            self.observer.end_forward(outputs)

    def _is_watched(self) -> bool:
        """Return whether this thread called the network; not so in a step in the middle of which the hooks were put.

        Raises:
            ApplyError: it did, and another thread runs a network meanwhile.
        """
        if self._thread.is_this:
            self._thread.require()
            return True
        return False

    def _pack(self, tensor, calls: _LayerCalls) -> tuple[Any, Any]:
        if not self._thread.is_this:
            self._thread.disturb()
            return _UNOBSERVED, _UNOBSERVED.save(tensor, calls.index)
        return self.observer, self.observer.save(tensor, calls.index)

    def _hook(self, calls: _LayerCalls) -> None:
        own = weakref.ref(self)  # MindSpore never forgets the hooks of the last step: they must hold nothing

        def begin(cell, args, kwargs):
            if self._is_watched():
                self._count(calls)
                self.observer.pass_boundary(EventKind.FORWARD_BEGIN, calls.index, (args, kwargs))

        def end(cell, args, outputs):
            if not self._is_watched():
                return
            self.observer.pass_boundary(EventKind.FORWARD_END, calls.index, outputs)
            waiting = [calls.index]  # the first gradient that arrives begins backward of the layer

            def begin_backward(gradient):
                watch = own() if waiting else None
                if watch is not None:
                    watch._thread.require()
                    watch._last_backward = waiting.pop()
                    watch.observer.pass_boundary(EventKind.BACKWARD_BEGIN, watch._last_backward)

            # A backward hook of a cell puts a view around what goes in and out; one of a tensor does not.
            for tensor in tensors_in(outputs):
                if tensor._requires_grad and not tensor._is_leaf:
                    tensor.register_hook(begin_backward)

        self._add(calls.cell.register_forward_pre_hook, begin, with_kwargs=True)
        self._add(calls.cell.register_forward_hook, end)

    def _count(self, calls: _LayerCalls) -> None:
        """Find out which layer a call of a cell is; a recomputed layer is the one that began backward."""
        if len(calls.indices) == 1:
            return
        if pynative_executor.get_current_autodiff_engine_id() != -1 and self._last_backward in calls.indices:
            calls.index = self._last_backward
        else:
            calls.index = calls.indices[calls.num_calls % len(calls.indices)]
            calls.num_calls += 1


def _is_in_hook() -> bool:
    """Return whether a hook of a cell runs: MindSpore iterates over them."""
    return any(frame.f_code.co_name in _HOOK_LOOPS for frame in frames(sys._getframe()))


def _has_foreign_hook(cell: nn.Cell) -> bool:
    """Return whether other code has put hooks on the saved tensors of a cell; MindSpore holds one pair of them."""
    return not isinstance(cell._saved_tensors_pack_hook, SavedTensorHook | None)
