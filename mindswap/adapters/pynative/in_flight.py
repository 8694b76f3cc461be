"""Passes whose backward runs after forward of later ones, as the micro-batches in a stage of a pipeline do.

Each pass has an executor of its own, so the order of the passes is free. Autograd keeps the executor of a pass, with
what it saved: a pass without backward ends when its graph is freed, and its copies on the host with it.
"""

import weakref
from collections.abc import Callable

from mindswap.adapters.pynative.copies import CopyEngine, PendingCopy
from mindswap.adapters.pynative.executor import Executor
from mindswap.pynative.ledger import JointPeak

NewExecutor = Callable[..., Executor]


class PassesInFlight:
    """Executors of the passes that run one schedule.

    Args:
        new_executor: makes an executor; its argument `on_event` is called after each event.
        peak: sums over all passes.

    Attributes:
        peak: sums over all passes.
        has_deviated: a pass differed from the recorded one.
    """

    def __init__(self, new_executor: NewExecutor, peak: JointPeak):
        self.peak = peak
        self.has_deviated = False
        self._new_executor = new_executor
        self._executors: weakref.WeakSet[Executor] = weakref.WeakSet()

    def next(self) -> Executor:
        """Return the executor of the next pass."""
        executor = self._new_executor(on_event=self._observe)
        self._executors.add(executor)
        end = weakref.finalize(executor, _free, id(executor), self.peak, executor.copies, executor.pending_copies)
        end.atexit = False  # MindSpore may be gone then
        return executor

    def _observe(self, executor: Executor) -> None:
        if executor.has_deviated:
            self.has_deviated = True
            self.peak.end(id(executor))
        else:
            self.peak.update(id(executor), executor.num_events, executor.booked_bytes)

    def give_up_unfinished(self) -> None:
        """Restore the storages of passes that have not ended."""
        for executor in list(self._executors):
            if executor.is_unfinished:
                executor.give_up()

    def give_up(self) -> None:
        """Restore the storages of all passes; they go on without swap."""
        for executor in list(self._executors):
            executor.give_up()


def _free(key: int, peak: JointPeak, copies: CopyEngine, pending: dict[int, PendingCopy]) -> None:
    """Free what a pass without backward left on the host."""
    peak.end(key)
    while pending:
        copies.wait(pending.popitem()[1])
