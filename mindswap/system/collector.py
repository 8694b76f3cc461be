"""Python's garbage collector, switched off where it costs more than it frees."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_disabled() -> Iterator[bool]:
    """Disable the garbage collector; enable it at the end if it was enabled.

    Yields:
        Whether the collector was enabled.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield was_enabled
    finally:
        if was_enabled:
            gc.enable()
