"""Recomputation of whole blocks in backward, instead of up to the last tensor that is needed.

`mindspore.recompute` (2.10.0) stops a recomputation by an exception while its last operator runs. The output of this
operator stays in memory without a value, and everything that asks for one of its properties waits for ever. So does
mindswap, which asks all tensors for their address before it frees memory.
"""

import importlib
import weakref
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, cast


def recomputing_whole_blocks() -> AbstractContextManager[Any]:
    """Return a context in which forward is run so that backward recomputes whole blocks; values are the same."""
    module = importlib.import_module("mindspore.common.recompute")
    set_early_stop = getattr(module, "_set_recompute_early_stop", None)
    return nullcontext() if set_early_stop is None else cast(AbstractContextManager[Any], set_early_stop(False))


class WholeBlocks:
    """Recomputation of whole blocks while at least one network runs forward, in whatever order they end.

    MindSpore has one switch for the process, and a context restores the value that it found: of two networks that end
    in the order in which they began the second one would restore that of the first.
    """

    def __init__(self) -> None:
        self._ends: dict[int, weakref.finalize[..., object]] = {}  # by `id` of those whose network runs forward
        self._context = ExitStack()

    def begin(self, owner: object) -> None:
        """Recompute whole blocks until `end`, or until the owner is freed, as after an error in forward."""
        if not self._ends:
            self._context.enter_context(recomputing_whole_blocks())
        if id(owner) not in self._ends:
            self._ends[id(owner)] = weakref.finalize(owner, self._discard, id(owner))

    def end(self, owner: object) -> None:
        """End it for an owner; nothing happens if it has none."""
        if id(owner) in self._ends:
            self._ends[id(owner)].detach()
            self._discard(id(owner))

    def _discard(self, key: int) -> None:
        del self._ends[key]
        if not self._ends:
            self._context.close()


WHOLE_BLOCKS = WholeBlocks()
