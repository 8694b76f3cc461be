"""Compiled search for relevant log lines in one pass, more than twice as fast for logs of gigabytes.

Import it for large logs only, because importing numba takes half a second.
"""

from collections.abc import Callable

import numpy as np

from mindswap.simulator.engine_state import compiled

# Five bytes of each needle of `scan.NEEDLES`, chosen so that the last two are rare in logs.
WINDOWS = (b" laye", b"emory", b"size[", b"d::ba", b" lazy", b"Over!")
_SIZE = 5
_PARTS = np.array([list(window) for window in WINDOWS], np.uint8)
# Last two bytes -> number of bytes to advance without missing a window; 0: a window may end here.
_STEPS = np.full(1 << 16, _SIZE - 1, np.uint8)
for _window in WINDOWS:
    for _at in range(1, _SIZE):
        _pair = _window[_at - 1] << 8 | _window[_at]
        _STEPS[_pair] = min(_STEPS[_pair], _SIZE - 1 - _at)


@compiled
def _first(block: np.ndarray, position: int, stop: int, steps: np.ndarray, parts: np.ndarray) -> int:
    """Return the start of the first window in the block; `stop` without any."""
    end = position + _SIZE - 1
    while end < stop:
        step = int(steps[int(block[end - 1]) << 8 | int(block[end])])
        if step == 0:
            for window in range(parts.shape[0]):
                same = 0
                while same < _SIZE and block[end - _SIZE + 1 + same] == parts[window, same]:
                    same += 1
                if same == _SIZE:
                    return end - _SIZE + 1
            step = 1
        end += step
    return stop


def search_compiled(block: bytes, _position: int, stop: int) -> Callable[[int], int]:
    """Return a function as `scan.search`, which may also return irrelevant positions."""
    array = np.frombuffer(block, np.uint8)
    return lambda position: int(_first(array, position, stop, _STEPS, _PARTS))
