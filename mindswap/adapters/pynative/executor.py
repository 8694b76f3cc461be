"""Execution of a swap schedule while a network trains in PyNative mode.

Autograd saves a `SavedTensor` in place of the tensor. Once the values are on the host and no other code references the
memory, the executor drops the tensor; backward later receives a tensor with the same values in new memory. Until then
the pass does not differ from one without swap, whatever the user's code reads or writes. A storage that is still
referenced when backward is about to need it stays on the device for this pass.

Each event of a pass is compared with the trace from which the schedule was made. If they differ (another shape, another
path through the network), all storages are restored, the pass continues without swap, and the next pass is recorded.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import mindspore as ms

from mindswap.adapters.pynative.copies import CopyEngine, PendingCopy
from mindswap.adapters.pynative.references import MemoryReferences
from mindswap.adapters.pynative.saved_tensors import SavedTensor, is_differentiated, is_nested
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
    saves: list[SavedTensor] = field(default_factory=list)  # saved tensors that use it

    @property
    def is_unmodified(self) -> bool:
        """Return whether all tensors still use this memory, and no change in place was counted."""
        return all(saved.is_unmodified for saved in self.saves)

    @property
    def memory(self) -> tuple[int, int]:
        """Address and size in bytes of the memory, as the user's code left it."""
        storage = self.saves[0].storage
        return storage.data_ptr(), storage.size()

    def allocate(self, size_bytes: int):
        """Move all tensors to new memory, without their values, and return it."""
        storage = ms.mint.empty((size_bytes // self.itemsize,), dtype=self.saves[0].dtype).untyped_storage()
        for saved in self.saves:
            saved.move_to(storage)
        return storage


class Executor:
    """Observer that swaps storages.

    Args:
        trace: the step.
        schedule: made from the trace.
        copies: engine that copies between device and host.
        poison: fill memory for prefetched tensors with NaN first, for tests.
        on_pass: receives the totals of each pass that followed the entire schedule.
        on_event: called after each event that followed the schedule, and when a pass differs.

    Attributes:
        totals: of the last pass that followed the entire schedule.
        num_events: events of the pass so far.
        num_passes: passes that followed the entire schedule.
        num_deviations: passes that did not.
        has_deviated: the saves of the last pass differed from the trace, so a new trace is needed.
    """

    def __init__(
        self, trace: Trace, schedule: StepSchedule, copies: CopyEngine, poison: bool = False,
        on_pass: Callable[[Totals], None] = lambda totals: None,
        on_event: Callable[["Executor"], None] = lambda executor: None,
    ):  # fmt: skip
        self.trace = trace
        self.on_event = on_event
        self.on_pass = on_pass
        self.schedule = schedule
        self.copies = copies
        self.poison = poison
        self.totals: Totals | None = None
        self.num_passes = self.num_deviations = 0
        self.has_deviated = False
        self._moved = frozenset(schedule.moved)
        self.pending_copies: dict[int, PendingCopy] = {}
        self._start()

    @property
    def booked_bytes(self) -> int:
        """Device memory of saved storages according to the ledger."""
        return self._ledger.device_bytes

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Device memory of swapped storages according to the ledger and according to MindSpore, for audits."""
        booked = sum(size for index, size in self._ledger.device.items() if index in self._moved)
        storages = (live.saves[0].storage for index, live in self._live.items() if index not in self._pending_release)
        return booked, sum(storage.size() for storage in storages if storage is not None)

    @property
    def is_unfinished(self) -> bool:
        """Return whether the last pass has not ended."""
        return 0 < self.num_events < len(self.schedule.events)

    def _start(self) -> None:
        self.num_events = 0
        self._thread = threading.get_ident()
        self._is_following = True
        self._has_saved = False
        self._live: dict[int, _LiveStorage] = {}
        self._pending_release: set[int] = set()  # on the host, to be dropped as soon as no other code references them
        self._just_copied: set[int] = set()  # its copy to the host began at the last event
        self._ledger = Ledger()

    # -- called by the watch

    def begin(self, inputs) -> None:
        """Start a pass, or one more forward of the same pass; a previous pass without backward is given up."""
        is_same_thread = self._thread == threading.get_ident()
        if is_same_thread and self._is_following and self.num_events > 0 and self._expects(*self.schedule.first_event):
            return
        self.give_up()
        self._start()
        if self._moved:  # a search lists all objects of the process
            self._references = MemoryReferences()
        self.has_deviated = False
        if is_nested():
            self._deviate("gradients of gradients")

    def give_up(self) -> None:
        """Restore all offloaded storages and continue the pass without swap."""
        self._is_following = False
        while self.pending_copies:
            index = next(iter(self.pending_copies))
            self._restore(index)
            self.copies.wait(self.pending_copies.pop(index))
        self._live.clear()

    def end_forward(self, outputs) -> None:
        """See `between_operators`."""
        self.between_operators()

    def between_operators(self) -> None:
        """Drop storages on the host that no other code can reach.

        During an operator that is unknown, because the addresses of its outputs are.
        """
        if not self._is_following or not (self._pending_release or self._just_copied):
            return
        own = {
            id(item) for live in self._live.values() for saved in live.saves for item in (saved.tensor, saved.storage)
        }
        memories = {index: self._live[index].memory for index in self._pending_release | self._just_copied}
        unreferenced = memories.keys() - self._references.find_referenced(memories, own)
        for index in unreferenced & self._just_copied:  # from now on nobody can write into it
            self.pending_copies[index].is_final = self._live[index].is_unmodified
        self._just_copied.clear()
        for index in sorted(unreferenced & self._pending_release):
            live = self._live[index]
            if live.is_unmodified:
                self.copies.release(self.pending_copies[index])
                for saved in live.saves:
                    saved.drop()
                self._pending_release.remove(index)

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors=()) -> None:
        """Process the start or end of a layer."""
        if not self._is_following:
            return
        if self._expects(kind, layer_index):
            self._run_actions()
            self.between_operators()
        else:
            self._deviate(f"{kind.value} of layer {layer_index}")

    def save(self, tensor, layer_index: int) -> tuple[int, SavedTensor]:
        """Return the number of the save (-1 if the schedule is not followed) and the replacement of the tensor."""
        self._has_saved = True
        saved = SavedTensor(tensor)
        if not self._is_following:
            return -1, saved
        number = self._expected_save(saved, layer_index)
        if number is None:
            self._deviate(f"layer {layer_index} saves {tensor.dtype} {tuple(tensor.shape)}")
            return -1, saved
        self._run_actions()
        self._just_copied.clear()  # code that runs until the next look may write
        return number, saved

    def read(self, packed):
        """Return the tensor of a save, in device memory."""
        number, saved = packed
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

    # -- following the schedule ---------------------------------------------------------------------

    def _next(self, kind: EventKind) -> int | None:
        """Return the index of the next event of the schedule, if it is of this kind."""
        ahead = self.schedule.events[self.num_events : self.num_events + 1]
        return ahead[0].index if ahead and ahead[0].kind is kind else None

    def _expects(self, kind: EventKind, index: int) -> bool:
        return self._next(kind) == index

    def _expected_save(self, saved: SavedTensor, layer_index: int) -> int | None:
        """Return the next save of the schedule, if this tensor matches it."""
        if (number := self._next(EventKind.SAVE)) is None:
            return None
        save, tensor = self.trace.saves[number], saved.tensor
        properties = (layer_index, tuple(tensor.shape), str(tensor.dtype).lower())
        if properties != (save.layer_index, save.shape, save.dtype):
            return None
        # reading the address waits for the kernel, and it matters for swapped storages only
        if save.storage in self._moved:
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
        for action in self.schedule.actions[self.num_events]:
            self._run_action(action)
        self._ledger.end_event()
        self.num_events += 1
        self.on_event(self)
        if self.num_events == len(self.schedule.events):
            self._finish()

    def _run_action(self, action: StorageAction) -> None:
        index = action.storage
        size = self.trace.storages[index].size_bytes
        if action.kind is ActionKind.OFFLOAD:
            self.pending_copies[index] = self.copies.offload(self._live[index].saves[0].storage, size)
            self._just_copied.add(index)
        elif action.kind is ActionKind.RELEASE:
            self._pending_release.add(index)
        elif action.kind is ActionKind.PREFETCH:
            if not self._restore(index):
                self._ledger.held_bytes += size
        elif action.kind is ActionKind.WAIT:
            self.copies.wait(self.pending_copies.pop(index))
        elif action.kind is ActionKind.DROP:
            self._live.pop(index, None)
        self._ledger.book(action.kind, index, size)

    def _finish(self) -> None:
        self.totals = self._ledger.totals
        self.num_passes += 1
        self._live.clear()
        self.on_pass(self.totals)

    # -- deviations ---------------------------------------------------------------------------------

    def _deviate(self, reason: str) -> None:
        """Give up the schedule for this pass; one without gradients saves nothing and does not count as different."""
        self.give_up()
        if self._has_saved:
            self.has_deviated = True
            self.num_deviations += 1
            self.on_event(self)
            logger.warning("the step is not the one that was recorded (%s): it runs without swap", reason)

    def _restore(self, index: int) -> bool:
        """Restore a storage; return False if it was never dropped, because other code references it."""
        copy = self.pending_copies[index]
        self._pending_release.discard(index)
        if copy.storage is None:
            self.copies.prefetch(copy, self._live[index].allocate(copy.size_bytes), self.poison)
            return True
        return False
