"""Observation of every operator of a thread by `MsDispatchMode` (experimental in MindSpore 2.9.0)."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

import mindspore as ms
from mindspore.utils.ms_dispatch import _DispatchGuardStack as DispatchStack

from mindswap.adapters.pynative.hooks import Hook
from mindswap.adapters.pynative.paths import CallPaths


class OperatorObserver(Protocol):
    """Interface of a recorder for `recording`."""

    paths: CallPaths
    thread: int | None  # thread whose operators it observes; None if it observes none

    def begin_operator(self, name: str, args) -> None:
        """Observe the start of an operator."""

    def end_operator(self, outputs) -> None:
        """Observe the end of an operator."""


class _ModeStack(list["_Dispatch"]):
    """Dispatch modes that a thread opened, the innermost last.

    A thread removes them from MindSpore's stack when it ends, because that stack is destroyed when Python objects no
    longer may be.
    """

    def __del__(self) -> None:
        for mode in self:
            mode.recorder = None
        self.leave_closed()

    def leave_closed(self) -> None:
        """Remove the closed modes that are innermost; a mode of the user above them prevents that."""
        while self and self[-1].recorder is None and DispatchStack.depth() <= self[-1].depth:
            mode = self.pop()
            if DispatchStack.depth() == mode.depth:
                mode.__exit__(None, None, None)


class _ThreadModes(threading.local):
    """The modes of this thread."""

    def __init__(self) -> None:
        self.modes = _ModeStack()


_thread_modes = _ThreadModes()


class _Dispatch(ms.MsDispatchMode):
    """Reports every operator of the thread that opened it to a recorder."""

    def __init__(self, recorder: OperatorObserver):
        super().__init__()
        self.recorder: OperatorObserver | None = recorder
        self.depth = 0  # number of open modes of its thread, including itself

    def open(self) -> None:
        """Start in this thread."""
        self.__enter__()
        self.depth = DispatchStack.depth()
        _thread_modes.modes.append(self)

    def close(self) -> None:
        """Stop, called from any thread."""
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
    """Remove the modes of this thread from MindSpore's stack that another thread closed."""
    _thread_modes.modes.leave_closed()


@contextlib.contextmanager
def recording(recorder: OperatorObserver) -> Iterator[None]:
    """Report the operators of this thread, and the cells that call them, to a recorder; a `Watch` reports the rest.

    The block may end in another thread; operators of this thread are not reported any more then.
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
