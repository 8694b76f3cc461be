"""Hooks on a network in PyNative mode that report the events of a step to an observer."""

import dataclasses
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mindspore import nn

from mindswap.adapters.pynative.observers import UNOBSERVED, Observer, read_saved
from mindswap.adapters.pynative.recompute_whole import WHOLE_BLOCKS
from mindswap.adapters.pynative.saved_tensors import frames
from mindswap.adapters.pynative.threads import SoleThread
from mindswap.adapters.pynative.values import tensors_in
from mindswap.adapters.versions import pynative_executor
from mindswap.errors import ApplyError
from mindswap.pynative.trace import EventKind

logger = logging.getLogger(__name__)

_HOOK_LOOPS = ("_run_forward_pre_hook", "_run_forward_hook")  # functions of MindSpore that iterate over hooks


class Hook:
    """Hook on a cell; its copies (`copy.deepcopy`, `pickle`) do nothing.

    Args:
        function: called by the hook; None for no action.
    """

    def __init__(self, function: Callable[..., Any] | None = None):
        self.function = function

    def __call__(self, *args):
        """Call the function; do nothing in a copy."""
        return None if self.function is None else self.function(*args)

    def __reduce__(self) -> Any:
        return Hook, ()


class SavedTensorHook(Hook):
    """Hook on the tensors that autograd saves in a cell; a copy of the cell has None, which is no hook."""

    def __reduce__(self) -> Any:
        return type(None), ()


def drop_idle_hooks(network: nn.Cell) -> None:
    """Remove hooks without action: those of copied cells, and of a swap that was removed inside a hook."""
    for _, cell in network.cells_and_names():
        for hooks, extra in ((cell._lazy_forward_pre_hook, cell._lazy_forward_pre_hook_with_kwargs),
                             (cell._lazy_forward_hook, cell._lazy_forward_hook_with_kwargs)):  # fmt: skip
            for key in [key for key, hook in (hooks or {}).items() if type(hook) is Hook and hook.function is None]:
                del hooks[key]
                (extra or {}).pop(key, None)


@dataclasses.dataclass
class _LayerCalls:
    """A cell that is one layer or several; its n-th call in a pass is the n-th of these layers."""

    cell: nn.Cell
    indices: list[int]  # layer indices, in order
    index: int  # layer of the current or last call
    num_calls: int = 0  # calls in this forward pass of the network


class Watch:
    """Hooks on a network and its layers, until `remove`.

    The thread that called the network last is observed.

    Args:
        network: the cell that is called for a step.
        layers: its transformer layers.
        observer: receives the events; may be replaced between steps.
        hooked_layers: layers whose saved tensors are reported; default all.
        before_pass: called before forward of the network; it may replace the observer.
        has_passes_in_flight: each forward of the network has an observer of its own, which also gets its backward.
    """

    def __init__(
        self, network: nn.Cell, layers: Sequence[nn.Cell], observer: Observer,
        hooked_layers: Iterable[int] | None = None, before_pass: Callable[[], None] = lambda: None,
        has_passes_in_flight: bool = False,
    ):  # fmt: skip
        self.has_passes_in_flight = has_passes_in_flight
        self._in_backward: weakref.ref[Observer] | None = None  # observer of the pass that was in backward last
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
        """Return whether one cell is used as several layers."""
        return len(self._calls) < len(self.layers)

    def install(self) -> None:
        """Add the hooks to the network.

        Raises:
            ApplyError: if called inside a hook of a cell, because MindSpore is iterating over the hooks.
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
        """Report the saved tensors of these layers only, and of layers that share a cell with them."""
        self.hooked_layers = frozenset(hooked_layers)
        for calls in self._calls:
            if _has_foreign_hook(calls.cell):
                continue
            if self.hooked_layers.isdisjoint(calls.indices):
                calls.cell.register_saved_tensors_hooks(None, None)
            else:
                calls.cell.register_saved_tensors_hooks(
                    SavedTensorHook(lambda tensor, calls=calls: self._pack(tensor, calls)),
                    SavedTensorHook(self._read if self.has_passes_in_flight else read_saved),
                )

    def remove(self) -> None:
        """Remove the hooks from the network."""
        WHOLE_BLOCKS.end(self)
        for hook in self._hooks:
            hook.function = None
        if not _is_in_hook():  # MindSpore would fail otherwise; idle hooks are removed by the next `drop_idle_hooks`
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
        WHOLE_BLOCKS.end(self)  # of a pass that broke off
        self._thread.begin()
        for calls in self._calls:
            calls.num_calls = 0
        self.before_pass()
        self.observer.begin((args, kwargs))
        WHOLE_BLOCKS.begin(self)  # last: whatever raises before leaves nothing switched

    def _end(self, cell, args, outputs) -> None:
        WHOLE_BLOCKS.end(self)
        if self._is_watched():
            self._thread.end_forward()
            self.observer.end_forward(outputs)

    def _is_watched(self) -> bool:
        """Return whether this thread called the network; False in a step that began before the hooks were installed.

        Raises:
            ApplyError: if it did, and another thread runs a network at the same time.
        """
        if self._thread.is_this:
            self._thread.require()
            return True
        return False

    def _pack(self, tensor, calls: _LayerCalls) -> tuple[Any, Any]:
        if not self._thread.is_this:
            self._thread.disturb()
            return UNOBSERVED, UNOBSERVED.save(tensor, calls.index)
        observer = self._current()
        return observer, observer.save(tensor, calls.index)

    def _current(self) -> Observer:
        """Return the observer of the running pass; a recomputed layer runs in the pass whose backward runs."""
        if not self.has_passes_in_flight or pynative_executor.get_current_autodiff_engine_id() == -1:
            return self.observer
        observer = self._in_backward and self._in_backward()
        return observer or self.observer

    def _read(self, packed: tuple[Any, Any]) -> Any:
        self._in_backward = weakref.ref(packed[0])
        return read_saved(packed)

    def _hook(self, calls: _LayerCalls) -> None:
        watch_ref = weakref.ref(self)  # MindSpore keeps the hooks of the last step, so they must not hold references

        def begin(cell, args, kwargs):
            if self._is_watched():
                self._count(calls)
                self._current().pass_boundary(EventKind.FORWARD_BEGIN, calls.index, (args, kwargs))

        def end(cell, args, outputs):
            if not self._is_watched():
                return
            current = self._current()
            current.pass_boundary(EventKind.FORWARD_END, calls.index, outputs)
            own_ref = weakref.ref(current) if self.has_passes_in_flight else None
            waiting = [calls.index]  # the first gradient that arrives begins backward of the layer

            def begin_backward(gradient):
                watch = watch_ref() if waiting else None
                if watch is not None:
                    watch._thread.require()
                    watch._last_backward = waiting.pop()
                    watch._in_backward = own_ref
                    observer = watch.observer if own_ref is None else own_ref()
                    if observer is not None:
                        observer.pass_boundary(EventKind.BACKWARD_BEGIN, watch._last_backward)

            # A backward hook of a cell would insert views around its inputs and outputs; one of a tensor does not.
            for tensor in tensors_in(outputs):
                if tensor._requires_grad and not tensor._is_leaf:
                    tensor.register_hook(begin_backward)

        self._add(calls.cell.register_forward_pre_hook, begin, with_kwargs=True)
        self._add(calls.cell.register_forward_hook, end)
        self._hook_cells(calls.cell)

    def _hook_cells(self, layer: nn.Cell) -> None:
        """Report the ends of the cells in a layer, where no operator runs."""

        def end_of_cell(cell, args, outputs):
            if self._is_watched():
                self._current().between_operators()

        for _, cell in layer.cells_and_names():
            if cell is not layer:
                self._add(cell.register_forward_hook, end_of_cell)

    def _count(self, calls: _LayerCalls) -> None:
        """Determine the layer of a call of a shared cell; a recomputed layer is the one that began backward."""
        if len(calls.indices) == 1:
            return
        if pynative_executor.get_current_autodiff_engine_id() != -1 and self._last_backward in calls.indices:
            calls.index = self._last_backward
        else:
            calls.index = calls.indices[calls.num_calls % len(calls.indices)]
            calls.num_calls += 1


def _is_in_hook() -> bool:
    """Return whether a hook of a cell is running, so that MindSpore is iterating over hooks."""
    return any(frame.f_code.co_name in _HOOK_LOOPS for frame in frames(sys._getframe()))


def _has_foreign_hook(cell: nn.Cell) -> bool:
    """Return whether other code has set saved tensor hooks on a cell; MindSpore supports one pair."""
    return not isinstance(cell._saved_tensors_pack_hook, SavedTensorHook | None)
