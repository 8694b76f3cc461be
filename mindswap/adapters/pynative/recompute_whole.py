"""Recomputation of whole blocks in backward, instead of up to the last tensor that is needed.

`mindspore.recompute` (2.10.0) stops a recomputation by an exception while its last operator runs. The output of this
operator stays in memory without a value, and everything that asks for one of its properties waits for ever. So does
mindswap, which asks all tensors for their address before it frees memory.
"""

import importlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast


def recomputing_whole_blocks() -> AbstractContextManager[Any]:
    """Return a context in which forward is run so that backward recomputes whole blocks; values are the same."""
    module = importlib.import_module("mindspore.common.recompute")
    set_early_stop = getattr(module, "_set_recompute_early_stop", None)
    return nullcontext() if set_early_stop is None else cast(AbstractContextManager[Any], set_early_stop(False))
