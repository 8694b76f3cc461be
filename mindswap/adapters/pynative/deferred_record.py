"""Recording of one step on a device that launches operators later than Python calls them.

An address, a shape or the version of a tensor is known when its operator was launched, and asking waits for that. A
recorder that asks for each tensor of each operator takes up to ten times as long as the step. Here everything is noted
during the step, and the questions are asked when it has ended. All tensors are held until then, so that no address is
used twice. Which tensors an operator or a layer has is noted at once: the caller may change its lists and dicts later.
No tensor may get other memory within the step, as by `set_data`: it would be recorded with that.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.ops import Primitive

from mindswap.adapters.pynative.paths import Path
from mindswap.adapters.pynative.record import Recorder
from mindswap.adapters.pynative.record_with import record_with
from mindswap.adapters.pynative.values import tensors_in
from mindswap.pynative.launched_operators import MARK
from mindswap.pynative.trace import EventKind, Trace


class _NotedPaths:
    """Paths of operators in the order in which they were noted, in place of `CallPaths`."""

    def __init__(self) -> None:
        self.layer_index: int | None = None
        self.noted: deque[tuple[Path, list[str]]] = deque()

    def begin_layer(self, layer_index: int) -> None:
        """Start forward of a layer."""
        self.layer_index = layer_index

    def of_operator(self, name: str, primitive: Any | None, is_forward: bool) -> tuple[Path, list[str]]:
        """Return the path of the next operator, and its alternative names."""
        return self.noted.popleft()


class DeferredRecorder:
    """Observer that records one forward and backward pass with its values, as a `Recorder` does.

    It does not notice a tensor that is changed in place after autograd saved it: dry runs have no values.

    Args:
        network: the cell whose call is the forward pass; it is called once.
        layers: its transformer layers.

    Attributes:
        paths: paths of the running cells.
        thread: observed thread; None for none.
        trace: the recorded pass; None before `finish`.
    """

    def __init__(self, network: nn.Cell, layers: Sequence[nn.Cell]):
        self._recorder = Recorder(network, layers, with_values=True)
        self.paths = self._recorder.paths
        self._noted_paths = self._recorder.paths = _NotedPaths()  # type: ignore[assignment]
        self.thread: int | None = None
        self.trace: Trace | None = None
        self._calls: list[Callable[[], object]] = []
        self._num_saves = 0
        self._is_forward = True
        self._is_mark = False

    def begin(self, inputs: Any) -> None:
        """Start a pass; one that was noted before is discarded."""
        self._calls.clear()
        self._noted_paths.noted.clear()
        self._num_saves, self._is_forward = 0, True
        self.paths.layer_index = None
        self._recorder.begin(inputs)

    def end_forward(self, outputs: Any) -> None:
        """Note the end of forward."""
        self._is_forward = False
        noted = tuple(tensors_in(outputs))
        self._calls.append(lambda: self._recorder.end_forward(noted))

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors: Any = ()) -> None:
        """Note the start or end of a layer."""
        if kind is EventKind.FORWARD_BEGIN:
            self.paths.begin_layer(layer_index)
        self.paths.layer_index = None if kind is EventKind.FORWARD_END else layer_index
        noted = tuple(tensors_in(tensors))
        self._calls.append(lambda: self._recorder.pass_boundary(kind, layer_index, noted))

    def between_operators(self) -> None:
        """Do nothing."""

    def save(self, tensor: ms.Tensor, layer_index: int) -> tuple[int, ms.Tensor]:
        """Return the number of the save, and the tensor."""
        self._calls.append(lambda: self._recorder.save(tensor, layer_index))
        self._num_saves += 1
        return self._num_saves - 1, tensor

    def read(self, packed: tuple[int, ms.Tensor]) -> ms.Tensor:
        """Return the tensor of a save."""
        number, tensor = packed
        self._calls.append(lambda: self._recorder.note_read(number))
        return tensor

    def begin_operator(self, name: str, args: Any) -> None:
        """Note the start of an operator; those that separate the phases of a step belong to no network."""
        self._is_mark = name == MARK
        if self._is_mark:
            return
        primitive = next((arg for arg in args if isinstance(arg, Primitive)), None)
        self._noted_paths.noted.append(self.paths.of_operator(name, primitive, self._is_forward))
        noted = tuple(tensors_in(args))
        self._calls.append(lambda: self._recorder.begin_operator(name, noted))

    def end_operator(self, outputs: Any) -> None:
        """Note the outputs of an operator."""
        if self._is_mark:
            return
        noted = tuple(tensors_in(outputs))
        self._calls.append(lambda: self._recorder.end_operator(noted))

    def finish(self) -> None:
        """Record what was noted; afterwards `trace` has the pass, if it had a backward pass."""
        ms.runtime.synchronize()
        for call in self._calls:
            call()
        self._calls.clear()
        self._recorder.finish()
        self.trace = self._recorder.trace


def record_deferred(network: nn.Cell, layers: Sequence[nn.Cell], step: Callable[[], object]) -> Trace:
    """Record one step of a dry run as a trace with the values of operators.

    Args:
        network: the cell whose call is the forward pass.
        layers: its transformer layers.
        step: runs one forward and backward pass of `network`.

    Raises:
        ApplyError: the step has no backward pass through the layers.
    """
    return record_with(DeferredRecorder(network, layers), network, layers, step)
