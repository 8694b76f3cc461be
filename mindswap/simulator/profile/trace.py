"""Reader of the copies between device and host in `trace_view.json` (`msprof*.json`).

The file is decoded event by event, because such files have hundreds of MB.

Fields of a copy (`MEMCPY_ASYNC`): `data size(Byte)` and `memcpy direction` as CANN writes them today, `size(B)` and
`operation` in versions before; both only at profiler level 2.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindswap.errors import CostError
from mindswap.simulator.profile.profile import ProfiledCopy
from mindswap.simulator.profile.tables import CHUNK_CHARS, Progress, number, to_ns

COPY_NAME = "MEMCPY_ASYNC"
SIZE_KEYS, DIRECTION_KEYS = ("data size(Byte)", "size(B)"), ("memcpy direction", "operation")
# "ex": the host side is memory that the runtime keeps itself, such as arguments of kernels.
DIRECTIONS = {"device to host": True, "device to host ex": True, "host to device": False, "host to device ex": False}
# A copy within the device is none over the link: engine SDMA.
LINK_TASK = "PCIE_DMA_SQE"
# The longest event: call stacks have some KB.
MAX_EVENT_CHARS = 2**24
EVENTS_KEY = "traceEvents"
# How the list of events begins, by the first character of the file.
BEGIN = {"[": re.compile(r"\["), "{": re.compile(rf'"{EVENTS_KEY}"\s*:\s*\[')}
MAX_BEGIN_CHARS = 256


def read_copies(path: Path, rank: int = 0, progress: Progress | None = None) -> tuple[list[ProfiledCopy], int]:
    """Read the copies over the link to the host.

    Args:
        path: trace of one rank.
        rank: number of the rank.
        progress: called with numbers of characters that were read.

    Returns:
        The copies, and the number of copies without a size. Memory use is that of the copies and one event.

    Raises:
        CostError: if the file is no trace; the text has the position.
    """
    copies: list[ProfiledCopy] = []
    num_unsized = 0
    for index, event in enumerate(read_events(path, progress)):
        if not isinstance(event, dict):
            raise CostError(f"{path}: is no trace of the profiler: event {index} is no object")
        if event.get("name") != COPY_NAME or event.get("ph") != "X":
            continue
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        size, direction = (next((args[key] for key in keys if key in args), None)
                           for keys in (SIZE_KEYS, DIRECTION_KEYS))  # fmt: skip
        if size is None:
            num_unsized += args.get("Task Type") == LINK_TASK
            continue
        is_out = DIRECTIONS.get(str(direction).strip().lower())
        place = f"{path}: event {index}"
        size_bytes = int(number(place, str(size)))
        if is_out is not None and size_bytes:
            start, duration = (to_ns(place, str(event.get(key, ""))) for key in ("ts", "dur"))
            copies.append(ProfiledCopy(start, duration, size_bytes, is_out, rank))
    return copies, num_unsized


def read_events(path: Path, progress: Progress | None = None) -> Iterator[Any]:
    """Yield the entries of the list of events one by one.

    Raises:
        CostError: if the file is no trace; the text has the position.
    """
    try:
        with path.open(encoding="utf-8-sig") as stream:
            yield from _Scanner(stream, path, progress).events()
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise CostError(f"{path}: is no trace of the profiler: {error}") from error


class _Scanner:
    """Incremental JSON decoder over a window of the text."""

    def __init__(self, stream: Any, path: Path, progress: Progress | None):
        self.stream = stream
        self.path = path
        self.progress = progress or (lambda num_bytes: None)
        self.decoder = json.JSONDecoder()
        self.text = ""
        self.position = 0
        self.num_dropped = 0
        self.is_at_end = False

    def events(self) -> Iterator[Any]:
        """Yield the members of the top-level list, or of `traceEvents` of the top-level object."""
        first = self.next_char()
        if first not in "{[" or not first:
            raise self.error("begins with neither [ nor {")
        while not (begin := BEGIN[first].search(self.text, self.position)):
            self.position = max(self.position, len(self.text) - MAX_BEGIN_CHARS)
            if not self.read_more():
                raise self.error(f"has no list {EVENTS_KEY}")
        self.position = begin.end()
        while (char := self.next_char()) != "]":
            if not char:
                raise self.error("ends within the list of events: was the profiler stopped?")
            if char == ",":
                self.position += 1
            else:
                yield self.value()

    def next_char(self) -> str:
        """Return the next character that is no space; "" at the end."""
        while True:
            while self.position < len(self.text) and self.text[self.position].isspace():
                self.position += 1
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.read_more():
                return ""

    def value(self) -> Any:
        self.next_char()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.position)
            except ValueError as error:
                # Most likely the window ends within the value; an invalid text stays invalid after more is read.
                if len(self.text) - self.position > MAX_EVENT_CHARS or not self.read_more():
                    raise self.error(str(error).partition(":")[0]) from None
                continue
            if end == len(self.text) and self.read_more():
                continue  # a number may go on
            self.position = end
            return value

    def read_more(self) -> bool:
        if self.is_at_end:
            return False
        more = self.stream.read(CHUNK_CHARS)
        self.num_dropped += self.position
        self.text, self.position = self.text[self.position :] + more, 0
        self.is_at_end = not more
        self.progress(len(more))
        return bool(more)

    def error(self, reason: str) -> CostError:
        place = self.num_dropped + self.position
        return CostError(f"{self.path}: is no trace of the profiler: {reason} (character {place})")
