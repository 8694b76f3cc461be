"""Recording of one step by a recorder."""

from collections.abc import Callable, Sequence
from typing import Protocol

from mindspore import nn

from mindswap.adapters.pynative.dispatch import OperatorObserver, recording
from mindswap.adapters.pynative.hooks import Watch
from mindswap.adapters.pynative.observers import Observer
from mindswap.errors import ApplyError
from mindswap.pynative.trace import Trace


class PassRecorder(Observer, OperatorObserver, Protocol):
    """Interface of a recorder for `record_with`."""

    trace: Trace | None  # None before `finish`, and if there was no backward pass

    def finish(self) -> None:
        """Complete the trace."""


def record_with(
    recorder: PassRecorder, network: nn.Cell, layers: Sequence[nn.Cell], step: Callable[[], object]
) -> Trace:
    """Record one step with a recorder.

    Args:
        recorder: of this network.
        network: the cell whose call is the forward pass.
        layers: its transformer layers.
        step: runs one forward and backward pass of `network`.

    Raises:
        ApplyError: if the step has no backward pass through the layers.
    """
    watch = Watch(network, layers, recorder)
    try:
        with recording(recorder):
            step()
    finally:
        watch.remove()
    recorder.finish()
    if recorder.trace is None:
        raise ApplyError("the step had no backward pass through the layers: nothing was recorded")
    return recorder.trace
