"""Live bytes of saved storages over a step, on the device and on the host: predicted from a schedule."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from mindswap.pynative.schedule import ActionKind, StepSchedule
from mindswap.pynative.trace import Trace


@dataclass(frozen=True)
class Totals:
    """Bytes that a step moved and held."""

    device_bytes: tuple[int, ...]  # live saved bytes behind each event
    peak_device_bytes: int  # the most at once; a peak may lie between two events
    peak_host_bytes: int  # likewise
    offloaded_bytes: int  # copied to the host
    prefetched_bytes: int  # and back
    held_bytes: int = 0  # of these were on the device all the time, as other code could reach them


class Ledger:
    """Books actions; an executor feeds it with the sizes that it sees, a prediction with those of the trace."""

    def __init__(self) -> None:
        self.device: dict[int, int] = {}
        self.host: dict[int, int] = {}
        self.peak_device_bytes = self.peak_host_bytes = 0
        self.offloaded_bytes = self.prefetched_bytes = self.held_bytes = 0
        self._device_bytes = self._host_bytes = 0
        self._device_bytes_by_event: list[int] = []

    def book(self, kind: ActionKind, storage: int, size_bytes: int) -> None:
        """One action on one storage.

        Raises:
            ValueError: if the storage cannot be in the state that the action needs.
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
        self._device_bytes_by_event.append(self._device_bytes)

    @property
    def totals(self) -> Totals:
        return Totals(
            tuple(self._device_bytes_by_event), self.peak_device_bytes, self.peak_host_bytes, self.offloaded_bytes,
            self.prefetched_bytes, self.held_bytes,
        )  # fmt: skip

    @staticmethod
    def _expect(is_so: bool, kind: ActionKind, storage: int) -> None:
        if not is_so:
            raise ValueError(f"storage {storage}: {kind.value} in the wrong state")


def predict(trace: Trace, schedule: StepSchedule) -> Totals:
    """Live bytes of a step that follows a schedule.

    Raises:
        ValueError: if the schedule contradicts itself.
    """
    ledger = Ledger()
    for actions in schedule.actions:
        for action in actions:
            ledger.book(action.kind, action.storage, trace.storages[action.storage].size_bytes)
        ledger.end_event()
    return ledger.totals


# What a training moved and held, against what its schedule predicts.

SCHEMA, SCHEMA_VERSION = "mindswap-swap-report", 1


@dataclass(frozen=True)
class SwapReport:
    """All passes of a training on one rank; a pass is one forward and its backward."""

    device: str  # where it ran, e.g. `CPU`
    # layers without swap were watched too, and memory taken for copies back was filled with NaN
    is_audited: bool = False
    num_passes: int = 0  # passes that swapped
    num_as_predicted: int = 0  # those of them whose bytes were the predicted ones behind every event
    num_recorded: int = 0  # passes that were recorded, and ran without swap
    num_deviations: int = 0  # passes that were not as recorded, and went on without swap
    offloaded_bytes: int = 0  # copied to the host, all passes
    prefetched_bytes: int = 0  # and back
    peak_device_bytes: int = 0  # saved activations on the device at once, at most, of the watched layers
    predicted_peak_bytes: int = 0  # the same by the schedule
    peak_without_swap_bytes: int = 0  # the same by the schedule that moves nothing
    peak_host_bytes: int = 0  # activations on the host at once, at most
    held_bytes: int = 0  # named by the policy and not moved, in the recorded or another pass: other code held them
    left_bytes: int = 0  # on device and host behind the last pass; 0 if nothing was lost

    @property
    def is_as_predicted(self) -> bool:
        """Every pass moved and held what was predicted, and nothing stayed behind."""
        return 0 < self.num_passes == self.num_as_predicted and self.left_bytes == 0

    def with_pass(self, totals: Totals, predicted: Totals) -> "SwapReport":
        """One pass that swapped more."""
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
        )

    def to_json(self) -> dict[str, Any]:
        header = {"schema": SCHEMA, "version": SCHEMA_VERSION}
        return {**header, **asdict(self), "is_as_predicted": self.is_as_predicted}
