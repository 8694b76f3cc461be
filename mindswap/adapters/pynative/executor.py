"""Runs a schedule while a network trains in PyNative mode: storages leave the device and come back.

The tensors stay in the graph of autograd; only their memory goes (`UntypedStorage.resize_(0)`) and comes back. Each
event of a pass is held against the trace that the schedule was made from. Where they differ (another shape, another
way through the network) everything is brought back, the pass goes on without swap, and the next one is recorded anew.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindswap.adapters.pynative.copies import CopyEngine, PendingCopy
from mindswap.errors import ApplyError
from mindswap.pynative.ledger import Ledger, Totals
from mindswap.pynative.schedule import ActionKind, StepSchedule, StorageAction
from mindswap.pynative.trace import EventKind, Trace

logger = logging.getLogger(__name__)


@dataclass
class _Live:
    """A saved storage during a pass."""

    tensor: Any
    storage: Any
    version: int
    address: int


class Executor:
    """An observer that moves storages.

    Args:
        trace: the step.
        schedule: made from it.
        copies: how bytes move.
        poison: fill memory with NaN before it is given back, for tests.
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
        self.was_different = False
        self._moved = frozenset(schedule.moved)
        self._copies: dict[int, PendingCopy] = {}
        self._released: set[int] = set()
        self._start()

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Memory that moved storages have at this moment, as the ledger says and as MindSpore says; for audits."""
        booked = sum(size for index, size in self._ledger.device.items() if index in self._moved)
        return booked, sum(live.storage.size() for live in self._live.values())

    def _start(self) -> None:
        self._position = 0
        self._is_following = True
        self._has_saved = False
        self._live: dict[int, _Live] = {}
        self._ledger = Ledger()

    # -- what the watch tells -------------------------------------------------------------------

    def begin(self, inputs) -> None:
        """A new pass, or one more forward of this one; what is left of one without a backward pass is given up."""
        if self._is_following and self._position > 0 and self._expects(*self.schedule.first_event):
            return
        self.give_up()
        self._start()
        self.was_different = False

    def give_up(self) -> None:
        """Bring back what is away."""
        self._bring_all_back()
        self._live.clear()

    def end_forward(self, outputs) -> None:
        """Nothing to do."""

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors=()) -> None:
        """A layer begins or ends."""
        if not self._is_following:
            return
        if self._expects(kind, layer_index):
            self._act()
        else:
            self._deviate(f"{kind.value} of layer {layer_index}")

    def save(self, tensor, layer_index: int) -> tuple[int, object]:
        """Number of the save, -1 where the schedule is not followed, and the tensor."""
        self._has_saved = True
        if not self._is_following:
            return -1, tensor
        number = self._expected_save(tensor, layer_index)
        if number is None:
            self._deviate(f"layer {layer_index} saves {tensor.dtype} {tuple(tensor.shape)}")
            return -1, tensor
        self._act()
        return number, tensor

    def read(self, kept):
        """The tensor of a save, its memory there."""
        number, tensor = kept
        if self._is_following:
            if number >= 0 and self._expects(EventKind.READ, number):
                self._act()
            else:
                self._deviate(f"save {number} is read")
        return tensor

    # -- following ------------------------------------------------------------------------------

    def _expects(self, kind: EventKind, index: int) -> bool:
        if self._position >= len(self.schedule.events):
            return False
        event = self.schedule.events[self._position]
        return event.kind is kind and event.index == index

    def _expected_save(self, tensor, layer_index: int) -> int | None:
        """The save that the schedule has next, if this tensor is it."""
        if self._position >= len(self.schedule.events):
            return None
        event = self.schedule.events[self._position]
        if event.kind is not EventKind.SAVE:
            return None
        save = self.trace.saves[event.index]
        same = (layer_index, tuple(tensor.shape), str(tensor.dtype).lower())
        if same != (save.layer_index, save.shape, save.dtype):
            return None
        if save.storage in self._moved:  # only of these the address matters, which waits for the kernel
            storage = tensor.untyped_storage()
            known = self._live.get(save.storage)
            if known is None:
                if storage.size() != self.trace.storages[save.storage].size_bytes:
                    return None
                self._live[save.storage] = _Live(tensor, storage, tensor._version, storage.data_ptr())
            elif known.address != storage.data_ptr():
                return None
        return event.index

    def _act(self) -> None:
        for action in self.schedule.actions[self._position]:
            self._do(action)
        self._ledger.end_event()
        self._position += 1
        if self._position == len(self.schedule.events):
            self._finish()

    def _do(self, action: StorageAction) -> None:
        index = action.storage
        size = self.trace.storages[index].size_bytes
        if action.kind is ActionKind.OFFLOAD:
            self._copies[index] = self.copies.offload(self._live[index].storage)
            size = self._copies[index].size_bytes
        elif action.kind is ActionKind.RELEASE:
            self._check_version(index)
            self.copies.release(self._copies[index], self.poison)
            self._released.add(index)
        elif action.kind is ActionKind.PREFETCH:
            self.copies.prefetch(self._copies[index])
            self._released.discard(index)
            size = self._live[index].storage.size()
        elif action.kind is ActionKind.WAIT:
            self.copies.wait(self._copies.pop(index))
        elif action.kind is ActionKind.DROP:
            self._live.pop(index, None)
        self._ledger.book(action.kind, index, size)

    def _check_version(self, index: int) -> None:
        live = self._live[index]
        if live.tensor._version != live.version:
            self._bring_all_back()
            self._is_following = False
            raise ApplyError(
                f"a tensor of shape {tuple(live.tensor.shape)} was changed in place after autograd saved it: "
                "its swap would change the gradients; take its operator out of the policy"
            )

    def _finish(self) -> None:
        self.totals = self._ledger.totals
        self.num_passes += 1
        self._live.clear()
        self.on_pass(self.totals)

    # -- otherwise ------------------------------------------------------------------------------

    def _deviate(self, what: str) -> None:
        """Give up the schedule for this pass. A pass without gradients saves nothing and is no other step."""
        self.give_up()
        self._is_following = False
        if self._has_saved:
            self.was_different = True
            self.num_deviations += 1
            logger.warning("the step is not the one that was recorded (%s): it runs without swap", what)

    def _bring_all_back(self) -> None:
        for index, copy in self._copies.items():
            if index in self._released:
                self.copies.prefetch(copy)
            self.copies.wait(copy)
        self._copies = {}
        self._released = set()
