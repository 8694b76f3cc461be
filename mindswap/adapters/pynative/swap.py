"""Swap of a network in PyNative mode: the first pass is recorded, and all later passes swap."""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import mindspore as ms
from mindspore import nn

from mindswap.adapters.pynative.copies import CopyEngine, default_copies
from mindswap.adapters.pynative.dispatch import leave_closed_modes, recording
from mindswap.adapters.pynative.executor import Executor
from mindswap.adapters.pynative.hooks import Watch
from mindswap.adapters.pynative.in_flight import PassesInFlight
from mindswap.adapters.pynative.observers import UnobservedPass
from mindswap.adapters.pynative.record import Recorder
from mindswap.adapters.pynative.saved_tensors import require_known_gradients
from mindswap.errors import ApplyError
from mindswap.policy.resolve import LayerDecisions
from mindswap.pynative.ledger import JointPeak, SwapReport, Totals, predict
from mindswap.pynative.schedule import Distance, StepSchedule, Unit, find_distances, make_schedule
from mindswap.pynative.trace import HELD, Trace

FindDistances = Callable[[Trace], dict[int, Distance]]
# A swap lives as long as its hooks on the network.
_running: "weakref.WeakKeyDictionary[nn.Cell, weakref.ref[Swap]]" = weakref.WeakKeyDictionary()


class Swap:
    """Swap of one network.

    A pass is one call of the network in forward with its backward. The first pass is recorded and runs without swap,
    and so does each pass after one that differed (another shape of the inputs, for example).

    Args:
        network: the cell that is called.
        layers: its transformer layers.
        decisions: of the policy, for each layer; or a function from a trace to the distance of each storage to swap.
        unit: unit of the prefetch distances of the policy.
        copies: engine for copies; default is a thread on CPU, and an error on other devices.
        poison: fill memory for prefetched tensors with NaN first, for tests.
        watch_all: observe the saves of all layers, so that the ledger includes tensors that are not swapped.
        trace: a step of this network that was recorded before, so that the first pass swaps and needs no more memory
            than the others; None to record the first pass.

    Attributes:
        has_passes_in_flight: see `PipelineSwap`.
        watch: its hooks on the network.
        trace: recorded pass; None before.
        schedule: made from the trace; None before.
        executor: runs the schedule, in the last pass; None before.
        passes: executors of passes in flight; None before, and without such passes.
        predicted: totals of a pass by the schedule; None before.
        report: all passes so far.

    Raises:
        ApplyError: if a swap is active on this network, there is no copy engine for this device, or this MindSpore
            differentiates by other functions.
    """

    has_passes_in_flight = False

    def __init__(
        self, network: nn.Cell, layers: Sequence[nn.Cell], decisions: Sequence[LayerDecisions] | FindDistances,
        unit: Unit = Unit.OPERATORS, copies: CopyEngine | None = None, poison: bool = False, watch_all: bool = False,
        trace: Trace | None = None,
    ):  # fmt: skip
        if running_swap(network) is not None:
            raise ApplyError("a swap runs on this network already: mindswap.running_swap(network).remove() ends it")
        require_known_gradients()
        self.network = network
        self.layers = list(layers)
        self.unit = unit
        self._find_distances: FindDistances = (
            decisions if callable(decisions) else lambda trace: find_distances(trace, tuple(decisions), unit)
        )
        self.copies = copies or default_copies(ms.get_context("device_target"))
        self.poison = poison
        self.watch_all = watch_all
        self.trace: Trace | None = None
        self.schedule: StepSchedule | None = None
        self.predicted: Totals | None = None
        self.executor: Executor | None = None
        self.passes: PassesInFlight | None = None
        self.report = SwapReport(ms.get_context("device_target"))
        recorder = self._new_recorder()
        self._recorder: Recorder | None = recorder if trace is None else None
        self._recording = contextlib.ExitStack()
        self.watch = Watch(
            network,
            self.layers,
            recorder,
            before_pass=self._before_pass,
            has_passes_in_flight=self.has_passes_in_flight,
        )
        _running[network] = weakref.ref(self)
        if trace is not None:
            self._follow(trace)

    @property
    def totals(self) -> Totals | None:
        """Totals of the last pass; None before the first pass with swap."""
        return self.executor.totals if self.executor is not None else None

    def finish(self) -> SwapReport:
        """End the training: restore what is still on the host, and return the report."""
        if self.executor is not None and self.executor.is_unfinished:  # the last pass has no backward, or broke off
            self.executor.give_up()
        if self.passes is not None:
            self.passes.give_up_unfinished()
        left_bytes = self.copies.host_bytes + (self.totals.device_bytes[-1] if self.totals is not None else 0)
        last_pass_deviated = self._has_deviated()
        self._stop()
        return replace(
            self.report,
            left_bytes=left_bytes,
            peak_host_bytes=max(self.report.peak_host_bytes, self.copies.peak_host_bytes),
            num_deviations=self.report.num_deviations + last_pass_deviated,
        )

    def remove(self) -> None:
        """Remove the swap from the network; storages on the host are restored."""
        self._stop()
        self.watch.remove()
        _running.pop(self.network, None)

    def _stop(self) -> None:
        self._recording.close()
        if self.executor is not None:
            self.executor.give_up()
        if self.passes is not None:
            self.passes.give_up()

    def _new_recorder(self) -> Recorder:
        return Recorder(self.network, self.layers, has_passes_in_flight=self.has_passes_in_flight)

    def _before_pass(self) -> None:
        """Prepare a pass: switch from recording to swapping, and back if the last pass differed."""
        leave_closed_modes()
        if self._recorder is not None and self._recorder.is_open and self.has_passes_in_flight:
            observer = self.watch.observer
            if not (isinstance(observer, UnobservedPass) and observer.has_backward):
                self.watch.observer = UnobservedPass()
                return
            self._record(self._new_recorder())  # a later pass had its backward, so the recorded one has none
        if self._recorder is not None:
            self._recorder.finish()
            if self._recorder.trace is not None:
                self._recording.close()
                self._follow(self._recorder.trace)
            elif self._recorder.thread != threading.get_ident():
                self._record(self._recorder)
            else:
                self.watch.observer = self._recorder
        elif self._has_deviated():
            if self.executor is not None:
                self.executor.give_up()
            self.report = replace(self.report, num_deviations=self.report.num_deviations + 1)
            self.executor = self.passes = None
            self._record(self._new_recorder())
        elif self.passes is not None:
            self.executor = self.watch.observer = self.passes.next()

    def _has_deviated(self) -> bool:
        if self.passes is not None:
            return self.passes.has_deviated
        return self.executor is not None and self.executor.has_deviated

    def _record(self, recorder: Recorder) -> None:
        self._recording.close()
        self._recorder = self.watch.observer = recorder
        self.watch.choose(range(len(self.layers)))
        self._recording.enter_context(recording(recorder))

    def _follow(self, trace: Trace) -> None:
        self.trace = trace
        # Calls of a cell that is several layers share their hooks.
        watched = range(len(self.layers)) if self.watch_all or self.watch.has_shared_layers else ()
        named = self._find_distances(trace)
        held = [trace.storages[index] for index in named if trace.storages[index].protection == HELD]
        self.schedule = make_schedule(trace, named, watched)
        self.predicted = predict(trace, self.schedule)
        without = predict(trace, make_schedule(trace, {}, self.schedule.hooked_layers))
        self.report = replace(
            self.report,
            is_audited=self.watch_all and self.poison,
            num_recorded=self.report.num_recorded + (self._recorder is not None),
            held_bytes=max(self.report.held_bytes, sum(storage.size_bytes for storage in held)),
            peak_without_swap_bytes=max(self.report.peak_without_swap_bytes, without.peak_device_bytes),
        )
        self._recorder = None
        new_executor = functools.partial(Executor, trace, self.schedule, self.copies, self.poison, self._count)
        if self.has_passes_in_flight:
            self.passes = PassesInFlight(new_executor, JointPeak(self.predicted, without))
            self.executor = self.watch.observer = self.passes.next()
        else:
            self.executor = self.watch.observer = new_executor()
        self.watch.choose(self.schedule.hooked_layers)

    def _count(self, totals: Totals) -> None:
        if self.predicted is None:
            raise AssertionError("a pass before the schedule was made")
        self.report = self.report.with_pass(totals, self.predicted)
        if self.passes is not None:
            self.report = self.report.with_joint_peak(self.passes.peak)


class PipelineSwap(Swap):
    """Swap of a network whose forward runs again before backward of an earlier call, as in a stage of a pipeline.

    Each call is a pass of its own. In `Swap` such calls are one pass, as they have one backward.
    """

    has_passes_in_flight = True


@contextlib.contextmanager
def swaps_paused(network: nn.Cell) -> Iterator[None]:
    """Remove the hooks of swaps from a network and its cells inside the block; a compiler would compile them."""
    cells = {id(cell) for _, cell in network.cells_and_names()}
    swaps = [swap for cell, swap_ref in _running.items() if id(cell) in cells and (swap := swap_ref()) is not None]
    for swap in swaps:
        swap.watch.remove()
    try:
        yield
    finally:
        for swap in swaps:
            swap.watch.install()


def running_swap(network: nn.Cell) -> Swap | None:
    """Return the active swap of a network in PyNative mode; None if there is none."""
    swap_ref = _running.get(network)
    return swap_ref() if swap_ref is not None else None
