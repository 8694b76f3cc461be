"""Scan a log of any size for relevant lines, block by block."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mindswap.runtime.logs.oom import (
    OomEvent,
    SetLine,
    WorkerLog,
    clean_line,
    has_header,
    parse_oom,
    parse_set_line,
    split_messages,
)

# Environment variable that makes workers log their peak memory while they train.
REPORT_MEMORY = "MINDSWAP_REPORT_MEMORY"

# Every relevant line contains one of these. They are few, long and rare because each costs a search of the full log.
NEEDLES = (
    b" at layer ",
    b"emory",  # out of memory in most of its forms, and memory statistics
    b"lloc mem size[",  # rtMalloc, aclrtMalloc
    b"std::bad_alloc",
    b" - Formative layer swap: ",
    b" lazy_inline",
    b"..Training Over!..",
)
# An INFO or DEBUG line without any of these is irrelevant.
_TELLING = (
    b" at layer ", b"lazy_inline", b"[WARNING]", b"[ERROR]", b"] - ", b"Error", b"peak", b"Device ", b"\r", b"\x1b",
    b"Training Over!",
)  # fmt: skip
MAX_LINE_BYTES = 1 << 20
MAX_SET_LINES = 20_000
MAX_EVENTS = 100
_MAX_TEXT = 300
_OFFLOAD_WARNING = "Offload does not take effect outside the scope of the lazy_inline Cell"
# DevMemStatistics() of plugin/ascend/res_manager/mem_manager/ascend_{two_pointer,dynamic}_mem_adapter.cc, printed by
# AscendMemAdapter::DeInitialize as a WARNING with MS_MEMORY_STATISTIC=1. 1M is 1024 << 10 bytes (kMBToByte). Until
# MindSpore 2.4 it printed HBM for MOC; "Actual peak memory usage:" alone is the form with memory pool recycling.
_STATISTICS = (
    ("device_bytes", re.compile(r"Device (?:MOC|HBM) memory size: (\d{1,9})M")),
    ("available_bytes", re.compile(r"MindSpore Used memory size: (\d{1,9})M")),
    ("used_peak_bytes", re.compile(r"Used peak memory usage \(without fragments\): (\d{1,9})M")),
    ("actual_peak_bytes", re.compile(r"Actual peak memory usage(?: \(with fragments\))?: (\d{1,9})M")),
)
# Peak memory that mindswap logs during training (`adapters/plugin.py`), in bytes.
_REPORT = re.compile(r"mindswap: peak memory (\d{1,15}) bytes used, (\d{1,15}) bytes reserved")


Search = Callable[[bytes, int, int], Callable[[int], int]]


def search(block: bytes, position: int, stop: int) -> Callable[[int], int]:
    """Return a function that finds the next needle in a block.

    Args:
        block: bytes to search.
        position: start of the search.
        stop: end of the search.

    Returns:
        Function: position -> position of the first needle at or after it, `stop` without any. The positions of
        successive calls must not decrease.
    """

    def find(needle: bytes, position: int) -> int:
        hit = block.find(needle, position, stop)
        return hit if hit >= 0 else stop

    hits = [find(needle, position) for needle in NEEDLES]

    def first(position: int) -> int:
        for number, hit in enumerate(hits):
            if hit < position:
                hits[number] = find(NEEDLES[number], position)
        return min(hits)

    return first


class LogScanner:
    """Incremental scanner of a log, which is fed in blocks of any size.

    Memory is bounded: lines are limited to 1 MiB, and lists have a limit.

    Args:
        find: `search` or an equivalent function.
    """

    def __init__(self, find: Search = search) -> None:
        self._find = find
        self._carry = b""
        self._pending = ""  # start of a `Set` line that another line interrupted; its end may follow
        self._is_repairing = False  # whether the current message was joined from pieces
        self._set_lines: dict[str, SetLine] = {}
        self._broken: dict[str, None] = {}
        self._oom: dict[tuple[str, int | None], OomEvent] = {}
        self._log = WorkerLog(0)  # all fields that are not lists

    def feed(self, block: bytes) -> None:
        """Scan the next block of the log, which may end within a line."""
        if b"\0" in block:
            block = block.replace(b"\0", b"")  # a sparse file
        if b"\n" not in block and len(self._carry) + len(block) < MAX_LINE_BYTES:
            self._carry += block
            return
        if self._carry:  # the line that started in the previous block
            first = block.find(b"\n") + 1
            line, self._carry = self._carry + block[:first], b""
            self._scan(line, 0, len(line))
        else:
            first = 0
        end = block.rfind(b"\n") + 1
        if len(block) - end >= MAX_LINE_BYTES:
            end = len(block)
        self._carry = block[end:]
        self._scan(block, first, end)

    def finish(self, worker: int, size_bytes: int = 0) -> WorkerLog:
        """Return the result for a complete log; a last line without a newline counts as broken."""
        is_cut_off = bool(self._carry)
        if is_cut_off:
            carry, self._carry = self._carry, b""
            self._take_line(clean_line(carry), is_cut_off=True)
        self._drop_pending()
        return self.snapshot(worker, size_bytes, is_cut_off)

    def snapshot(self, worker: int, size_bytes: int = 0, is_cut_off: bool = False) -> WorkerLog:
        """Return the result for all complete lines so far; scanning may continue."""
        return replace(
            self._log,
            worker=worker,
            size_bytes=size_bytes,
            set_lines=tuple(self._set_lines.values()),
            broken_lines=tuple(self._broken),
            oom_events=tuple(self._oom.values()),
            is_cut_off=is_cut_off,
        )

    def _note(self, **changes: Any) -> None:
        self._log = replace(self._log, **changes)

    def _scan(self, block: bytes, position: int, stop: int) -> None:
        """Scan the lines of a part of a block that contain a needle or follow a broken line."""
        first = self._find(block, position, stop)
        while position < stop:
            if not self._pending:
                hit = first(position)
                if hit >= stop:
                    return
                position = max(position, block.rfind(b"\n", position, hit) + 1)
            end = block.find(b"\n", position, stop)
            end = stop if end < 0 else end
            raw = block[position:end]
            if self._pending or (not _is_idle(raw) and any(needle in raw for needle in NEEDLES)):
                for part in clean_line(raw).split("\r"):
                    self._take_line(part)
            position = end + 1

    def _take_line(self, line: str, is_cut_off: bool = False) -> None:
        if self._pending and (not line or line.isspace()):
            self._is_repairing = True
            self._take_message(self._pending)
            self._pending = ""
            return
        messages = split_messages(line)
        self._is_repairing = bool(self._pending) and not has_header(line)
        if self._is_repairing:
            messages[0] = self._pending + messages[0]
            self._pending = ""
        self._drop_pending()
        for message in messages[:-1]:
            if " at layer " in message:
                self._drop_pending()
                self._pending = message
            else:
                self._take_message(message)
            self._is_repairing = False
        if is_cut_off and " at layer " in messages[-1]:
            self._add_broken(messages[-1])
        else:
            self._take_message(messages[-1])

    def _take_message(self, message: str) -> None:
        if " at layer " in message and "Set " in message:
            self._take_set_line(message)
        if "emory" in message or "lloc" in message:
            self._take_memory(message)
        if "lazy_inline" in message:
            if "mindswap: lazy_inline is on" in message:
                self._note(is_lazy_inline_on=True)
            elif "mindswap: the CPU backend cannot execute lazy_inline" in message:
                self._note(is_cpu_run=True)
            elif _OFFLOAD_WARNING in message:
                self._note(num_offload_warnings=self._log.num_offload_warnings + 1)
        if " - Formative layer swap: " in message:
            self._note(has_upstream_swap=True)
        if "Training Over!" in message:
            self._note(is_finished=True)

    def _take_set_line(self, message: str) -> None:
        line = parse_set_line(message)
        if line is None:
            if re.search(r"Set [a-z_ ]+ at layer ", message):
                self._add_broken(message)
        elif line.text in self._set_lines:
            previous = self._set_lines[line.text]
            self._set_lines[line.text] = replace(
                previous,
                is_upstream=previous.is_upstream or line.is_upstream,
                is_repaired=previous.is_repaired and self._is_repairing,
            )
        elif len(self._set_lines) < MAX_SET_LINES:
            self._set_lines[line.text] = replace(line, is_repaired=self._is_repairing)
        else:
            self._note(num_lines_left_out=self._log.num_lines_left_out + 1)

    def _take_memory(self, message: str) -> None:
        if "emory size: " in message or "peak memory usage" in message:
            matches = ((name, pattern.search(message)) for name, pattern in _STATISTICS)
            self._take_statistics(**{name: int(match[1]) << 20 for name, match in matches if match})
        if match := _REPORT.search(message):
            self._take_statistics(used_peak_bytes=int(match[1]), actual_peak_bytes=int(match[2]))
        event = parse_oom(message)
        if event and len(self._oom) < MAX_EVENTS:
            self._oom.setdefault((event.form, event.requested_bytes), event)

    def _take_statistics(self, **sizes: int) -> None:
        statistics = self._log.memory
        highest = {name: max(size, getattr(statistics, name) or 0) for name, size in sizes.items()}
        self._note(memory=replace(statistics, **highest))

    def _drop_pending(self) -> None:
        if self._pending:
            self._add_broken(self._pending)
            self._pending = ""

    def _add_broken(self, message: str) -> None:
        start = message.find("Set ")
        if start >= 0 and len(self._broken) < MAX_EVENTS:
            self._broken.setdefault(message[start:].strip()[:_MAX_TEXT])


def _is_idle(raw: bytes) -> bool:
    """Return whether the line is a single irrelevant INFO or DEBUG message: with GLOG_v=1 there are very many."""
    return raw.startswith((b"[INFO]", b"[DEBUG]")) and not any(map(raw.__contains__, _TELLING))
