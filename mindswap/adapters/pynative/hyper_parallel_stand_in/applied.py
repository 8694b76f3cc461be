"""What the wrappers of this process did since the last reset, for `mindswap verify`: copies, bytes, recomputations."""

from dataclasses import dataclass, field
from typing import Any

SWAP, RECOMPUTE = "swap", "recompute"


@dataclass(eq=False)
class CopyCounts:
    """Copies between device and host memory.

    Attributes:
        out_bytes: size of the storages copied to the host.
        back_bytes: size of those copied back.
        num_out: copies to the host.
        num_back: copies to the device.
    """

    out_bytes: int = 0
    back_bytes: int = 0
    num_out: int = 0
    num_back: int = 0

    def count_out(self, size_bytes: int) -> None:
        """Count a copy to the host."""
        self.out_bytes += size_bytes
        self.num_out += 1

    def count_back(self, size_bytes: int) -> None:
        """Count a copy to the device."""
        self.back_bytes += size_bytes
        self.num_back += 1


@dataclass(eq=False, kw_only=True)
class AppliedWrapper(CopyCounts):
    """A wrapper of a cell or of a function, and what it did; copies are those of storages saved within it.

    Attributes:
        action: `SWAP` or `RECOMPUTE`.
        target: the wrapped cell, or the function that replaces the wrapped one.
        num_runs: runs in forward.
        num_recomputed: runs in backward.
    """

    action: str
    target: Any = None
    num_runs: int = 0
    num_recomputed: int = 0

    def reset(self) -> None:
        """Forget what it did."""
        vars(self).update(vars(AppliedWrapper(action=self.action, target=self.target)))


@dataclass(eq=False)
class CopyCounter(CopyCounts):
    """Copies of a layer, each storage once, and the cells whose begin or end triggers them."""

    released_by: Any = None  # at the end of its forward
    fetched_by: Any = None  # at the begin of its backward


@dataclass(eq=False)
class Applied:
    """All wrappers of this process, in the order in which they were made."""

    wrappers: list[AppliedWrapper] = field(default_factory=list)

    def add(self, action: str) -> AppliedWrapper:
        """Return a new wrapper."""
        self.wrappers.append(AppliedWrapper(action=action))
        return self.wrappers[-1]

    def reset(self) -> None:
        """Forget what the wrappers did."""
        for wrapper in self.wrappers:
            wrapper.reset()


applied = Applied()
