"""Tells a recorder of every operator of a thread, by `MsDispatchMode` (experimental in MindSpore 2.9.0)."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

import mindspore as ms
from mindspore.utils.ms_dispatch import _DispatchGuardStack as DispatchStack

from mindswap.adapters.pynative.hooks import Hook
from mindswap.adapters.pynative.paths import CallPaths


class OperatorObserver(Protocol):
    """A recorder, as `recording` needs it."""

    paths: CallPaths
    thread: int | None  # whose operators it is told of; None for none

    def begin_operator(self, name: str, args) -> None:
        """An operator is about to run."""

    def end_operator(self, outputs) -> None:
        """It has run."""


class _ModeStack(list["_Dispatch"]):
    """Dispatch modes that a thread opened, the innermost last.

    A thread that ends takes them off MindSpore's stack: that one is destroyed later, when no object of Python may be.
    """

    def __del__(self) -> None:
        for mode in self:
            mode.recorder = None
        self.leave_closed()

    def leave_closed(self) -> None:
        """Take off what was closed. Not while one of the user's modes is above: only the innermost can be taken."""
        while self and self[-1].recorder is None and DispatchStack.depth() <= self[-1].depth:
            mode = self.pop()
            if DispatchStack.depth() == mode.depth:
                mode.__exit__(None, None, None)


class _ThreadModes(threading.local):
    """The modes of this thread."""

    def __init__(self) -> None:
        self.modes = _ModeStack()


_opened = _ThreadModes()


class _Dispatch(ms.MsDispatchMode):
    """Tells a recorder of every operator of the thread that opened it."""

    def __init__(self, recorder: OperatorObserver):
        super().__init__()
        self.recorder: OperatorObserver | None = recorder
        self.depth = 0  # of the modes of its thread, with it

    def open(self) -> None:
        """Begin, in this thread."""
        self.__enter__()
        self.depth = DispatchStack.depth()
        _opened.modes.append(self)

    def close(self) -> None:
        """End, from any thread."""
        self.recorder = None
        leave_closed_modes()

    def __ms_dispatch__(self, func, args, kwargs=None):
        recorder = self.recorder
        if recorder is not None:
            recorder.begin_operator(func.name, args)
        outputs = func(*args) if not kwargs else func(*args, **kwargs)
        if recorder is not None:
            recorder.end_operator(outputs)
        return outputs


def leave_closed_modes() -> None:
    """Take the modes of this thread off MindSpore's stack that were closed in another one."""
    _opened.modes.leave_closed()


@contextlib.contextmanager
def recording(recorder: OperatorObserver) -> Iterator[None]:
    """Tell a recorder of the operators of this thread, and of the cells in which they run; a `Watch` tells it the rest.

    May be left in another thread: this one is told of no more operators then.
    """
    hooks: list[Hook] = []
    handles = []

    def add(register, function) -> None:
        hooks.append(Hook(function))
        handles.append(register(hooks[-1]))

    for cell in recorder.paths.cells:
        add(cell.register_forward_pre_hook, lambda cell, inputs: recorder.paths.enter(cell))
        add(cell.register_forward_hook, lambda *_: recorder.paths.leave())
    dispatch = _Dispatch(recorder)
    try:
        recorder.thread = threading.get_ident()
        dispatch.open()
        yield
    finally:
        recorder.thread = None
        dispatch.close()
        for hook in hooks:
            hook.function = None
        for handle in handles:
            handle.remove()
