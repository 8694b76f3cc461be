"""Detection of other threads that run a network during a pass.

MindSpore 2.9.0 records operators for autograd, and switches recording off while it calls a hook, in one state for all
threads of a process. Operators of another thread may enter that record, or operators of this thread may be missing from
it; losses and gradients are then wrong without an error, with swap and without.
"""

import sys
import threading
from types import FrameType

from mindspore import nn

from mindswap.adapters.pynative.saved_tensors import frames
from mindswap.adapters.versions import pynative_executor
from mindswap.errors import ApplyError

_CALL, _GRADIENT_NAME = nn.Cell.__call__.__code__, "after_grad"  # forward; backward in ops/composite/base.py

_disturbed: set[int] = set()  # `get_ident` of threads during whose pass another thread ran a network


class SoleThread:
    """The thread of the running pass, which must be the only one that runs a network."""

    def __init__(self) -> None:
        self.ident: int | None = None  # thread that called the network last
        self._is_recorded = True  # whether MindSpore recorded for autograd when the pass began

    @property
    def is_this(self) -> bool:
        """Return whether the pass belongs to the calling thread."""
        return self.ident == threading.get_ident()

    def begin(self) -> None:
        """Start a pass in this thread.

        Raises:
            ApplyError: if another thread runs a network.
        """
        _disturbed.discard(threading.get_ident())
        self._require_sole()
        self.ident = threading.get_ident()
        self._is_recorded = pynative_executor.enable_grad()

    def require(self) -> None:
        """Check the other threads when a layer begins or ends.

        Raises:
            ApplyError: if another thread runs a network, or ran one during this pass.
        """
        self._require_sole()
        if threading.get_ident() in _disturbed:
            raise _refusal()

    def end_forward(self) -> None:
        """Check at the end of forward that MindSpore still records as at its start.

        Raises:
            ApplyError: if another thread switched recording off.
        """
        if pynative_executor.enable_grad() != self._is_recorded:
            raise _refusal()

    def disturb(self) -> None:
        """Report that another thread runs one of the layers."""
        if self.ident is not None:
            _disturbed.add(self.ident)

    def _require_sole(self) -> None:
        this = threading.get_ident()
        others = {ident for ident, frame in sys._current_frames().items() if ident != this and _runs_network(frame)}
        if others:
            _disturbed.update(others)
            raise _refusal()


def _runs_network(innermost: FrameType) -> bool:
    return any(frame.f_code is _CALL or frame.f_code.co_name == _GRADIENT_NAME for frame in frames(innermost))


def _refusal() -> ApplyError:
    return ApplyError(
        "two threads ran a network at the same time, and one of them swaps: MindSpore has one record for autograd in a "
        "process, so losses and gradients would be wrong\n"
        "    allowed: threads that take turns: a step, an evaluation ends before the next one begins\n"
        "    fix:     a lock around each step and each evaluation, or a process for each"
    )
