"""Runs a schedule while a network trains in PyNative mode: storages leave the device and come back.

Autograd keeps a `SavedTensor` instead of the tensor. When its values are on the host, and nobody else can reach its
memory any more, the executor lets go of the tensor. Until then nothing is different from a pass without swap, whatever
the user's code reads or writes; and what it can still reach when backward is about to need it stays for this pass.
Backward gets a tensor with the same values in memory of its own.

Each event of a pass is held against the trace that the schedule was made from. Where they differ (another shape,
another way through the network) everything is brought back, the pass goes on without swap, and the next one is recorded
anew.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import mindspore as ms

from mindswap.adapters.pynative.copies import CopyEngine, PendingCopy
from mindswap.adapters.pynative.saved_tensors import SavedTensor, is_differentiated, is_exclusively_held, is_nested
from mindswap.adapters.versions import pynative_executor
from mindswap.errors import ApplyError
from mindswap.pynative.ledger import Ledger, Totals
from mindswap.pynative.schedule import ActionKind, StepSchedule, StorageAction
from mindswap.pynative.trace import EventKind, Trace

logger = logging.getLogger(__name__)


@dataclass
class _LiveStorage:
    """A saved storage during a pass."""

    address: int
    itemsize: int
    saves: list[SavedTensor] = field(default_factory=list)  # tensors on it that autograd keeps

    @property
    def is_exclusive(self) -> bool:
        """Nobody else can reach it, and no tensor on it was given other memory.

        The second question waits for operators: MindSpore does not hold the memory of a copy between storages so long.
        """
        return is_exclusively_held([saved.tensor for saved in self.saves]) and all(s.is_unmodified for s in self.saves)

    def allocate(self, size_bytes: int):
        """Memory of its own for all tensors on it, still without their values."""
        storage = ms.mint.empty((size_bytes // self.itemsize,), dtype=self.saves[0].dtype).untyped_storage()
        for saved in self.saves:
            saved.move_to(storage)
        return storage


class Executor:
    """An observer that moves storages.

    Args:
        trace: the step.
        schedule: made from it.
        copies: how bytes move.
        poison: fill memory that is taken for a copy back with NaN before, for tests.
        on_pass: gets the totals of each pass that followed the schedule to its end.

    Attributes:
        totals: what the last whole pass moved and held.
        num_passes: passes that followed the schedule to their end.
        num_deviations: passes that did not.
        was_different: saves of the last pass were not those of the trace: a new trace is needed.
    """

    def __init__(
        self, trace: Trace, schedule: StepSchedule, copies: CopyEngine, poison: bool = False,
        on_pass: Callable[[Totals], None] = lambda totals: None,
    ):  # fmt: skip
        self.trace = trace
        self.on_pass = on_pass
        self.schedule = schedule
        self.copies = copies
        self.poison = poison
        self.totals: Totals | None = None
        self.num_passes = self.num_deviations = 0
        self.has_deviated = False
        self._moved = frozenset(schedule.moved)
        self._copies: dict[int, PendingCopy] = {}
        self._start()

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Memory that moved storages have at this moment, as the ledger says and as MindSpore says; for audits."""
        booked = sum(size for index, size in self._ledger.device.items() if index in self._moved)
        there = (live.saves[0].storage for index, live in self._live.items() if index not in self._pending_release)
        return booked, sum(storage.size() for storage in there if storage is not None)

    @property
    def is_unfinished(self) -> bool:
        """Return whether the last pass has not come to its end."""
        return 0 < self._position < len(self.schedule.events)

    def _start(self) -> None:
        self._position = 0
        self._thread = threading.get_ident()
        self._is_following = True
        self._has_saved = False
        self._live: dict[int, _LiveStorage] = {}
        self._pending_release: set[int] = set()  # on the host, to be let go of as soon as nobody else can reach them
        self._ledger = Ledger()

    # -- what the watch tells -------------------------------------------------------------------

    def begin(self, inputs) -> None:
        """A new pass, or one more forward of this one; what is left of one without a backward pass is given up."""
        is_same_thread = self._thread == threading.get_ident()
        if is_same_thread and self._is_following and self._position > 0 and self._expects(*self.schedule.first_event):
            return
        self.give_up()
        self._start()
        self.has_deviated = False
        if is_nested():
            self._deviate("gradients of gradients")

    def give_up(self) -> None:
        """Bring back what is away; the pass goes on without swap."""
        self._is_following = False
        while self._copies:
            index = next(iter(self._copies))
            self._restore(index)
            self.copies.wait(self._copies.pop(index))
        self._live.clear()

    def end_forward(self, outputs) -> None:
        """Nothing to do."""

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors=()) -> None:
        """A layer begins or ends."""
        if not self._is_following:
            return
        if self._expects(kind, layer_index):
            self._run_actions()
        else:
            self._deviate(f"{kind.value} of layer {layer_index}")

    def save(self, tensor, layer_index: int) -> tuple[int, SavedTensor]:
        """Number of the save, -1 where the schedule is not followed, and what stands for the tensor."""
        self._has_saved = True
        saved = SavedTensor(tensor)
        if not self._is_following:
            return -1, saved
        number = self._expected_save(saved, layer_index)
        if number is None:
            self._deviate(f"layer {layer_index} saves {tensor.dtype} {tuple(tensor.shape)}")
            return -1, saved
        self._run_actions()
        return number, saved

    def read(self, kept):
        """The tensor of a save, its memory there."""
        number, saved = kept
        if self._is_following:
            if number >= 0 and self._expects(EventKind.READ, number):
                self._run_actions()
            else:
                self._deviate(f"save {number} is read")
        try:
            saved.require_unmodified()
        except ApplyError:
            self.give_up()
            raise
        if saved.is_copy and is_differentiated():
            raise ApplyError(
                "a gradient of a gradient was asked for where activations were swapped: it would be wrong\n"
                "    allowed: gradients of gradients by nested mindspore.grad, value_and_grad or GradOperation\n"
                "    fix:     mindswap.running_swap(network).remove() before"
            )
        return saved.tensor

    # -- following ------------------------------------------------------------------------------

    def _next(self, kind: EventKind) -> int | None:
        """Index of the event that the schedule has next, if it is of this kind."""
        ahead = self.schedule.events[self._position : self._position + 1]
        return ahead[0].index if ahead and ahead[0].kind is kind else None

    def _expects(self, kind: EventKind, index: int) -> bool:
        return self._next(kind) == index

    def _expected_save(self, saved: SavedTensor, layer_index: int) -> int | None:
        """The save that the schedule has next, if this tensor is it."""
        if (number := self._next(EventKind.SAVE)) is None:
            return None
        save, tensor = self.trace.saves[number], saved.tensor
        properties = (layer_index, tuple(tensor.shape), str(tensor.dtype).lower())
        if properties != (save.layer_index, save.shape, save.dtype):
            return None
        if save.storage in self._moved:  # only of these the address matters, which waits for the kernel
            storage = saved.storage
            live_storage = self._live.get(save.storage)
            if live_storage is None:
                if storage.size() != self.trace.storages[save.storage].size_bytes:
                    return None
                live_storage = _LiveStorage(storage.data_ptr(), tensor.itemsize)
                self._live[save.storage] = live_storage
            elif live_storage.address != storage.data_ptr():
                return None
            live_storage.saves.append(saved)
        return number

    def _run_actions(self) -> None:
        for action in self.schedule.actions[self._position]:
            self._run_action(action)
        for index in sorted(self._pending_release):
            self._try_release(index)
        self._ledger.end_event()
        self._position += 1
        if self._position == len(self.schedule.events):
            self._finish()

    def _run_action(self, action: StorageAction) -> None:
        index = action.storage
        size = self.trace.storages[index].size_bytes
        if action.kind is ActionKind.OFFLOAD:
            self._copies[index] = self.copies.offload(self._live[index].saves[0].storage, size)
        elif action.kind is ActionKind.RELEASE:
            self._pending_release.add(index)
        elif action.kind is ActionKind.PREFETCH:
            if index in self._pending_release:
                pynative_executor.sync()  # operators that wait for their turn hold what they read
                self._try_release(index)
            if not self._restore(index):
                self._ledger.held_bytes += size
        elif action.kind is ActionKind.WAIT:
            self.copies.wait(self._copies.pop(index))
        elif action.kind is ActionKind.DROP:
            self._live.pop(index, None)
        self._ledger.book(action.kind, index, size)

    def _try_release(self, index: int) -> None:
        live = self._live[index]
        if live.is_exclusive:
            self.copies.release(self._copies[index])
            for saved in live.saves:
                saved.drop()
            self._pending_release.remove(index)

    def _finish(self) -> None:
        self.totals = self._ledger.totals
        self.num_passes += 1
        self._live.clear()
        self.on_pass(self.totals)

    # -- otherwise ------------------------------------------------------------------------------

    def _deviate(self, reason: str) -> None:
        """Give up the schedule for this pass. A pass without gradients saves nothing and is no other step."""
        self.give_up()
        if self._has_saved:
            self.has_deviated = True
            self.num_deviations += 1
            logger.warning("the step is not the one that was recorded (%s): it runs without swap", reason)

    def _restore(self, index: int) -> bool:
        """False for what is there, as others could reach it all the time."""
        copy = self._copies[index]
        self._pending_release.discard(index)
        if copy.storage is None:
            self.copies.prefetch(copy, self._live[index].allocate(copy.size_bytes), self.poison)
            return True
        return False
