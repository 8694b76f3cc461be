"""Memory budget of a card, and the definition of "fits" for simulations, plans, comparisons and dry runs."""

from dataclasses import dataclass
from enum import Enum

from mindswap.simulator.cost.hardware import SET_BY_USER, Device
from mindswap.units import format_bytes


class Fit(Enum):
    """Whether a peak fits, as table text."""

    YES = "yes"
    IN_MARGIN = "in the margin"  # it fits, and a plan would keep more memory free
    NO = "no"


@dataclass(frozen=True)
class MemoryBudget:
    """Usable memory of a card, and the margin that plans keep free for memory that is not simulated."""

    usable_bytes: int
    margin_permille: int = 0  # of the usable memory

    @property
    def planned_bytes(self) -> int:
        """Memory limit of plans, in bytes."""
        return self.usable_bytes * (1000 - self.margin_permille) // 1000

    def fit(self, peak_bytes: int) -> Fit:
        """Classify a peak: within the limit of plans, within the usable memory, or above it."""
        if peak_bytes > self.usable_bytes:
            return Fit.NO
        return Fit.YES if peak_bytes <= self.planned_bytes else Fit.IN_MARGIN

    def fits(self, peak_bytes: int) -> bool:
        """Return whether a peak is within the usable memory: exit code 0 of `simulate`, `compare` and `dryrun`."""
        return self.fit(peak_bytes) is not Fit.NO

    def describe(self, peak_bytes: int) -> str:
        """`fits in 58.0 GiB with 1.2 GiB to spare, 1.7 GiB less than the margin of 5 %`."""
        usable, spare_bytes = format_bytes(self.usable_bytes), self.usable_bytes - peak_bytes
        fit = self.fit(peak_bytes)
        if fit is Fit.NO:
            return f"does NOT fit, {format_bytes(-spare_bytes)} more than {usable}"
        text = f"fits in {usable} with {format_bytes(spare_bytes)} to spare"
        if fit is Fit.YES:
            return text
        return f"{text}, {format_bytes(peak_bytes - self.planned_bytes)} less than {self.margin}"

    @property
    def margin(self) -> str:
        """The margin as text: `the margin of 5 %`."""
        return f"the margin of {self.margin_permille / 10:g} %"


def has_margin(device: Device) -> bool:
    """Return whether plans keep a margin free of the memory that may be used.

    Memory that the user sets has no margin, unless the user sets the margin, too. Memory from the device file or the
    configuration has the margin of the device.
    """
    return device.sources["usable_memory"] != SET_BY_USER or device.sources["margin"] == SET_BY_USER


def budget_of_device(device: Device) -> MemoryBudget:
    """Return the memory budget of a device, with its margin where `has_margin`."""
    return MemoryBudget(device.usable_memory_bytes, device.margin_permille if has_margin(device) else 0)
