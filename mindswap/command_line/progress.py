"""Progress of long commands: a line for each phase, a progress bar for a search."""

import signal
import sys
import time
from contextlib import ExitStack
from types import FrameType
from typing import NoReturn, TextIO

from tqdm import tqdm

from mindswap.language import translate
from mindswap.system.heartbeat import heartbeat
from mindswap.system.streams import printable, write_message
from mindswap.units import format_count


class PhaseLines:
    """One line per phase, with the time since the start."""

    def __init__(self, begin_s: float, stream: TextIO):
        self.begin_s = begin_s
        self.stream = stream

    def __call__(self, text: str) -> None:
        """Print a line."""
        shown = translate(printable(text))
        print(f"[{time.monotonic() - self.begin_s:4.0f} s] {shown}", file=self.stream, flush=True)


# A search that takes longer shows its progress.
PATIENCE_S = 2.0
INTERRUPTED = "\nmindswap: interrupted: printing the best plan so far; press Ctrl-C again to stop at once\n"


class SearchBar:
    """Progress of a search in simulations; the first Ctrl-C stops the search, which then returns its best plan.

    A long search shows a progress bar on a terminal, and occasional lines elsewhere.
    """

    def __init__(self) -> None:
        self.begin_s = time.monotonic()
        self.bar: tqdm[NoReturn] | None = None
        self.num_interrupts = 0
        self.num_simulations = 0
        self.lines = ExitStack()

    def __enter__(self) -> "SearchBar":
        self.handler = signal.getsignal(signal.SIGINT)
        if self.handler != signal.SIG_IGN:  # nohup and `&` in a script ignore the signal
            signal.signal(signal.SIGINT, self._interrupt)
        if not sys.stderr.isatty():
            self.lines.enter_context(heartbeat(self._describe, sys.stderr.write))
        return self

    def __exit__(self, *error: object) -> None:
        if self.handler != signal.SIG_IGN:
            signal.signal(signal.SIGINT, self.handler)
        if self.bar is not None:
            self.bar.close()
        self.lines.close()
        self._end_if_interrupted()

    def _describe(self) -> str:
        return f"planning, {format_count(self.num_simulations, 'simulation')}" if self.num_simulations else ""

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.num_interrupts += 1
        if self.num_interrupts == 1:
            # not print: the signal may arrive inside print
            write_message(sys.stderr.fileno(), translate(INTERRUPTED))
        elif callable(self.handler):
            self.handler(number, frame)

    def _end_if_interrupted(self) -> None:
        """Raise KeyboardInterrupt after the second Ctrl-C: Python drops exceptions of a handler inside a finalizer."""
        if self.num_interrupts > 1:
            raise KeyboardInterrupt

    def raise_if_interrupted(self) -> None:
        """Raise `Stop` after Ctrl-C; for a search in another process."""
        self._end_if_interrupted()
        if self.num_interrupts:
            from mindswap.planner.solver.search import Stop  # imports numba, which `check` does not need

            raise Stop

    def __call__(self) -> None:
        """Count a simulation; raise `Stop` after Ctrl-C."""
        self.raise_if_interrupted()
        self.num_simulations += 1
        if self.bar is None and time.monotonic() - self.begin_s > PATIENCE_S:
            self.bar = tqdm(desc="planning", unit=" simulations", leave=False, disable=None)
        if self.bar is not None:
            self.bar.update()
