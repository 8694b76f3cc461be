"""Ledger of saved storages: live bytes on device and host over a step, predicted or executed."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from mindswap.pynative.schedule import ActionKind, StepSchedule
from mindswap.pynative.trace import Trace


@dataclass(frozen=True)
class Totals:
    """Bytes that a step copied and held."""

    device_bytes: tuple[int, ...]  # live saved bytes after each event
    peak_device_bytes: int  # maximum; it may occur between two events
    peak_host_bytes: int  # maximum on the host
    offloaded_bytes: int  # copied to the host
    prefetched_bytes: int  # copied back
    held_bytes: int = 0  # named by the policy but not released, because other code holds them


class Ledger:
    """Records actions: an executor passes the sizes that it observes, a prediction those of the trace."""

    def __init__(self) -> None:
        self.device: dict[int, int] = {}
        self.host: dict[int, int] = {}
        self.peak_device_bytes = self.peak_host_bytes = 0
        self.offloaded_bytes = self.prefetched_bytes = self.held_bytes = 0
        self._device_bytes = self._host_bytes = 0
        self._device_bytes_by_event: list[int] = []

    def book(self, kind: ActionKind, storage: int, size_bytes: int) -> None:
        """Record one action on one storage.

        Raises:
            ValueError: if the action is impossible in the current state of the storage.
        """
        if kind in (ActionKind.ADD, ActionKind.PREFETCH):
            self._expect(storage not in self.device, kind, storage)
            self.device[storage] = size_bytes
            self._device_bytes += size_bytes
            self.prefetched_bytes += size_bytes if kind is ActionKind.PREFETCH else 0
        elif kind in (ActionKind.RELEASE, ActionKind.DROP):
            self._expect(storage in self.device, kind, storage)
            self._device_bytes -= self.device.pop(storage)
        elif kind is ActionKind.OFFLOAD:
            self._expect(storage in self.device and storage not in self.host, kind, storage)
            self.host[storage] = size_bytes
            self._host_bytes += size_bytes
            self.offloaded_bytes += size_bytes
        elif kind is ActionKind.WAIT:
            self._expect(storage in self.device and storage in self.host, kind, storage)
            self._host_bytes -= self.host.pop(storage)
        self.peak_device_bytes = max(self.peak_device_bytes, self._device_bytes)
        self.peak_host_bytes = max(self.peak_host_bytes, self._host_bytes)

    def end_event(self) -> None:
        """Record the device memory at the end of an event."""
        self._device_bytes_by_event.append(self._device_bytes)

    @property
    def device_bytes(self) -> int:
        """Live saved bytes."""
        return self._device_bytes

    @property
    def totals(self) -> Totals:
        """Return the memory and the copies of the pass so far."""
        return Totals(
            tuple(self._device_bytes_by_event), self.peak_device_bytes, self.peak_host_bytes, self.offloaded_bytes,
            self.prefetched_bytes, self.held_bytes,
        )  # fmt: skip

    @staticmethod
    def _expect(is_so: bool, kind: ActionKind, storage: int) -> None:
        if not is_so:
            raise ValueError(f"storage {storage}: {kind.value} in the wrong state")


def predict(trace: Trace, schedule: StepSchedule) -> Totals:
    """Return the live bytes of a step that follows a schedule.

    Raises:
        ValueError: if the schedule is inconsistent.
    """
    ledger = Ledger()
    for actions in schedule.actions:
        for action in actions:
            ledger.book(action.kind, action.storage, trace.storages[action.storage].size_bytes)
        ledger.end_event()
    return ledger.totals


class JointPeak:
    """Highest sum of the live saved bytes of passes that are in flight at the same time, after any of their events.

    Args:
        predicted: of each pass, by its schedule.
        without_swap: the same without swap, with the same events.

    Attributes:
        device_bytes: as observed.
        predicted_bytes: according to the schedule, for the passes and events that were observed.
        without_swap_bytes: the same without swap.
        num_in_flight: passes at the same time, at most.
    """

    def __init__(self, predicted: Totals, without_swap: Totals):
        self._tables = (predicted.device_bytes, without_swap.device_bytes)
        self._live: dict[int, tuple[int, int, int]] = {}  # by pass: observed, predicted, without swap
        self._sums = [0, 0, 0]
        self.device_bytes = self.predicted_bytes = self.without_swap_bytes = self.num_in_flight = 0

    def update(self, key: int, num_events: int, device_bytes: int) -> None:
        """Observe a pass after an event.

        Args:
            key: identifies the pass.
            num_events: its events so far.
            device_bytes: its live saved bytes.
        """
        predicted, without_swap = (table[num_events - 1] for table in self._tables)
        before, now = self._live.get(key, (0, 0, 0)), (device_bytes, predicted, without_swap)
        self._live[key] = now
        self._sums = [total - old + new for total, old, new in zip(self._sums, before, now, strict=True)]
        self.num_in_flight = max(self.num_in_flight, len(self._live))
        self.device_bytes = max(self.device_bytes, self._sums[0])
        self.predicted_bytes = max(self.predicted_bytes, self._sums[1])
        self.without_swap_bytes = max(self.without_swap_bytes, self._sums[2])
        if num_events == len(self._tables[0]):
            self.end(key)

    def end(self, key: int) -> None:
        """End a pass, which holds nothing any more."""
        live = self._live.pop(key, (0, 0, 0))
        self._sums = [total - old for total, old in zip(self._sums, live, strict=True)]


# Report of a training: swapped and held bytes compared with the prediction.

SCHEMA, SCHEMA_VERSION = "mindswap-swap-report", 1


@dataclass(frozen=True)
class SwapReport:
    """All passes of a training on one rank; a pass is one forward with its backward."""

    device: str  # device target, e.g. `CPU`
    # layers without swap were observed, too, and memory for prefetched tensors was filled with NaN
    is_audited: bool = False
    num_passes: int = 0  # passes with swap
    num_as_predicted: int = 0  # passes whose bytes matched the prediction after every event
    num_recorded: int = 0  # passes that were recorded and ran without swap
    num_deviations: int = 0  # passes that differed from the recorded one and continued without swap
    offloaded_bytes: int = 0  # copied to the host in all passes
    prefetched_bytes: int = 0  # copied back
    peak_device_bytes: int = 0  # peak of saved activations of the observed layers on the device
    predicted_peak_bytes: int = 0  # the same according to the schedule
    peak_without_swap_bytes: int = 0  # the same according to a schedule without swap
    peak_host_bytes: int = 0  # peak of activations on the host, of all passes in flight together
    held_bytes: int = 0  # named by the policy but not swapped, because other code holds them
    num_in_flight: int = 0  # passes between the begin of forward and the end of backward at the same time
    left_bytes: int = 0  # left on device and host after the last pass; 0 if nothing leaked

    @property
    def is_as_predicted(self) -> bool:
        """Return whether every pass matched the prediction and nothing is left."""
        return 0 < self.num_passes == self.num_as_predicted and self.left_bytes == 0

    def with_pass(self, totals: Totals, predicted: Totals) -> "SwapReport":
        """Return the report with one more pass with swap."""
        return replace(
            self,
            num_passes=self.num_passes + 1,
            num_as_predicted=self.num_as_predicted + (totals == predicted),
            offloaded_bytes=self.offloaded_bytes + totals.offloaded_bytes,
            prefetched_bytes=self.prefetched_bytes + totals.prefetched_bytes,
            peak_device_bytes=max(self.peak_device_bytes, totals.peak_device_bytes),
            predicted_peak_bytes=max(self.predicted_peak_bytes, predicted.peak_device_bytes),
            peak_host_bytes=max(self.peak_host_bytes, totals.peak_host_bytes),
            held_bytes=max(self.held_bytes, totals.held_bytes),
            num_in_flight=max(self.num_in_flight, 1),
        )

    def with_joint_peak(self, peak: JointPeak) -> "SwapReport":
        """Return the report with the peaks of passes in flight, where they are above those of one pass."""
        return replace(
            self,
            peak_device_bytes=max(self.peak_device_bytes, peak.device_bytes),
            predicted_peak_bytes=max(self.predicted_peak_bytes, peak.predicted_bytes),
            peak_without_swap_bytes=max(self.peak_without_swap_bytes, peak.without_swap_bytes),
            num_in_flight=max(self.num_in_flight, peak.num_in_flight),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, with its schema and version."""
        header = {"schema": SCHEMA, "version": SCHEMA_VERSION}
        return {**header, **asdict(self), "is_as_predicted": self.is_as_predicted}
