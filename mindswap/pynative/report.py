"""What a training in PyNative mode moved and held, against what its schedule predicts. Pure."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from mindswap.pynative.ledger import Totals

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
        )

    def to_json(self) -> dict[str, Any]:
        header = {"schema": SCHEMA, "version": SCHEMA_VERSION}
        return {**header, **asdict(self), "is_as_predicted": self.is_as_predicted}
