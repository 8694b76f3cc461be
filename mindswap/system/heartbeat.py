"""Progress lines of long work, for outputs that cannot show a progress bar."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mindswap.language import translate

# Seconds until the first line. The time doubles for each line, but no pause is longer than `PERIOD_S`.
FIRST_S, PERIOD_S = 5.0, 30.0
# Variable that switches the lines off if it is 0, for users who compare the content of stderr.
PROGRESS = "MINDSWAP_PROGRESS"


@contextmanager
def heartbeat(describe: Callable[[], str], write: Callable[[str], object]) -> Iterator[None]:
    """Within the context write a line now and then: `mindswap: planning, 210 simulations, 65 s so far`.

    Args:
        describe: returns the activity; "" while there is nothing to report. It is called in another thread.
        write: writes a line, which ends with a newline.
    """
    if os.environ.get(PROGRESS) == "0":
        yield
        return
    is_over = threading.Event()

    def repeat() -> None:
        begin_s, next_s = time.monotonic(), FIRST_S
        while not is_over.wait(begin_s + next_s - time.monotonic()):
            if text := describe():
                write(translate(f"mindswap: {text}, {time.monotonic() - begin_s:.0f} s so far\n"))
            next_s += min(next_s, PERIOD_S)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
