"""Runs a schedule while a network trains in PyNative mode: storages leave the device and come back.

Autograd keeps a `KeptTensor` instead of the tensor. When its values are on the host, the executor lets go of the
tensor, and its memory is free as soon as nobody else holds it: what the user's code can still reach is never taken from
it. Backward gets a tensor with the same values in memory of its own.

Each event of a pass is held against the trace that the schedule was made from. Where they differ (another shape,
another way through the network) everything is brought back, the pass goes on without swap, and the next one is recorded
anew.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

import mindspore as ms

from mindswap.adapters.pynative.copies import CopyEngine, PendingCopy
from mindswap.adapters.versions import pynative_executor
from mindswap.errors import ApplyError
from mindswap.pynative.ledger import Ledger, Totals
from mindswap.pynative.schedule import ActionKind, StepSchedule, StorageAction
from mindswap.pynative.trace import EventKind, Trace

logger = logging.getLogger(__name__)
# The function of MindSpore's ops/composite/base.py in which every gradient runs its forward.
_GRADIENT = "_pynative_forward_run"


class KeptTensor:
    """Stands for a tensor that autograd keeps; the tensor itself is None while its memory is away."""

    __slots__ = ("dtype", "is_copy", "layout", "tensor")

    def __init__(self, tensor):
        self.tensor = tensor
        self.is_copy = False  # it came back: autograd does not know how it was made
        self.dtype = tensor.dtype
        self.layout = (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))

    def put_into(self, storage) -> None:
        """The same tensor in other memory."""
        tensor = ms.mint.empty((0,), dtype=self.dtype)
        tensor.set_(storage, *self.layout)
        self.tensor, self.is_copy = tensor, True


def is_nested() -> bool:
    """The network runs for a gradient that itself is differentiated: its saved tensors must stay what they are."""
    frame: FrameType | None = sys._getframe()
    number = 0
    while frame is not None:
        number += frame.f_code.co_name == _GRADIENT
        frame = frame.f_back
    return number > 1


@dataclass
class _Live:
    """A saved storage during a pass."""

    version: int
    address: int
    itemsize: int
    saves: list[KeptTensor] = field(default_factory=list)  # tensors on it that autograd keeps

    @property
    def storage(self):
        """Its memory on the device."""
        return self.saves[0].tensor.untyped_storage()

    def let_go(self) -> None:
        """Hold no tensor on it any more."""
        for saved in self.saves:
            saved.tensor = None

    def take_memory(self, size_bytes: int):
        """Memory of its own for all tensors on it, still without their values."""
        storage = ms.mint.empty((size_bytes // self.itemsize,), dtype=self.saves[0].dtype).untyped_storage()
        for saved in self.saves:
            saved.put_into(storage)
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
        self.was_different = False
        self._moved = frozenset(schedule.moved)
        self._copies: dict[int, PendingCopy] = {}
        self._released: set[int] = set()
        # Forward broke off: MindSpore may still take every operator for a part of it, in backward, too.
        self._is_left_on = False
        self._start()

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Memory that moved storages have at this moment, as the ledger says and as MindSpore says; for audits."""
        booked = sum(size for index, size in self._ledger.device.items() if index in self._moved)
        there = (live for index, live in self._live.items() if index not in self._released)
        return booked, sum(live.storage.size() for live in there)

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
        seen = {event.kind for event in self.schedule.events[: self._position]}
        self._is_left_on |= self._has_saved and bool(seen) and EventKind.BACKWARD_BEGIN not in seen
        self.give_up()
        self._start()
        self.was_different = False
        if is_nested():
            self._deviate("gradients of gradients")
        elif self._is_left_on:
            logger.warning("the pass before broke off: this one runs without swap")
            self._is_following = False

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

    def save(self, tensor, layer_index: int) -> tuple[int, KeptTensor]:
        """Number of the save, -1 where the schedule is not followed, and what stands for the tensor."""
        self._has_saved = True
        saved = KeptTensor(tensor)
        if not self._is_following:
            return -1, saved
        number = self._expected_save(saved, layer_index)
        if number is None:
            self._deviate(f"layer {layer_index} saves {tensor.dtype} {tuple(tensor.shape)}")
            return -1, saved
        self._act()
        return number, saved

    def read(self, kept):
        """The tensor of a save, its memory there."""
        number, saved = kept
        if self._is_following:
            if number >= 0 and self._expects(EventKind.READ, number):
                self._act()
            else:
                self._deviate(f"save {number} is read")
        is_recorded = pynative_executor.requires_grad()
        self._is_left_on &= is_recorded
        if saved.is_copy and is_recorded:
            raise ApplyError(
                "a gradient of a gradient was asked for where activations were swapped: it would be wrong\n"
                "    allowed: gradients of gradients by nested mindspore.grad, value_and_grad or GradOperation\n"
                "    fix:     mindswap.running_swap(network).remove() before"
            )
        return saved.tensor

    # -- following ------------------------------------------------------------------------------

    def _expects(self, kind: EventKind, index: int) -> bool:
        if self._position >= len(self.schedule.events):
            return False
        event = self.schedule.events[self._position]
        return event.kind is kind and event.index == index

    def _expected_save(self, saved: KeptTensor, layer_index: int) -> int | None:
        """The save that the schedule has next, if this tensor is it."""
        if self._position >= len(self.schedule.events):
            return None
        event = self.schedule.events[self._position]
        if event.kind is not EventKind.SAVE:
            return None
        save, tensor = self.trace.saves[event.index], saved.tensor
        same = (layer_index, tuple(tensor.shape), str(tensor.dtype).lower())
        if same != (save.layer_index, save.shape, save.dtype):
            return None
        if save.storage in self._moved:  # only of these the address matters, which waits for the kernel
            storage = tensor.untyped_storage()
            known = self._live.get(save.storage)
            if known is None:
                if storage.size() != self.trace.storages[save.storage].size_bytes:
                    return None
                known = _Live(tensor._version, storage.data_ptr(), tensor.itemsize)
                self._live[save.storage] = known
            elif known.address != storage.data_ptr():
                return None
            known.saves.append(saved)
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
            self.copies.release(self._copies[index])
            self._live[index].let_go()
            self._released.add(index)
        elif action.kind is ActionKind.PREFETCH:
            self._bring_back(index)
            size = self._live[index].storage.size()
        elif action.kind is ActionKind.WAIT:
            self.copies.wait(self._copies.pop(index))
        elif action.kind is ActionKind.DROP:
            self._live.pop(index, None)
        self._ledger.book(action.kind, index, size)

    def _check_version(self, index: int) -> None:
        live = self._live[index]
        tensor = live.saves[0].tensor
        if tensor._version != live.version:
            self._bring_all_back()
            self._is_following = False
            raise ApplyError(
                f"a tensor of shape {tuple(tensor.shape)} was changed in place after autograd saved it: "
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

    def _bring_back(self, index: int) -> None:
        copy = self._copies[index]
        self.copies.prefetch(copy, self._live[index].take_memory(copy.size_bytes), self.poison)
        self._released.discard(index)

    def _bring_all_back(self) -> None:
        for index, copy in self._copies.items():
            if index in self._released:
                self._bring_back(index)
            self.copies.wait(copy)
        self._copies = {}
