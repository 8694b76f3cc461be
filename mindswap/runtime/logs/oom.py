"""Parse lines of a worker's log: settings of layers, memory statistics and out-of-memory errors.

Sources of the patterns: MindSpore's messages from the libraries in the wheel of mindspore 2.9.0 (`strings`), CANN's
from its list of error codes (hiascend.com, "maintenref/troubleshooting") and from public reports.
"""

import itertools
import re
from dataclasses import dataclass, field
from functools import cache

from mindswap.files import package_data

# Results of reading the log of one worker: plain data.


@dataclass(frozen=True)
class SetLine:
    """Log line of a setting of a layer, such as `Set op_swap at layer 0: .attention, value=20`."""

    layer_index: int  # index of the layer
    title: str  # `op_swap`, `layer swap`, `full recompute`, `select recompute`, ...
    text: str  # the line from `Set` on, with single spaces
    is_upstream: bool = False  # whether MindFormers wrote it, not mindswap
    is_repaired: bool = False  # whether it was joined from two pieces and never read in one piece


@dataclass(frozen=True)
class OomEvent:
    """A failed allocation of a worker."""

    form: str  # name of the message form in `data/logs/out_of_memory.yaml`
    text: str  # the line, shortened
    requested_bytes: int | None = None  # size of the allocation; None if the line has none
    is_host: bool = False  # whether host memory ran out, not device memory
    free_bytes: int | None = None  # free memory; None if the line has none

    @property
    def missing_bytes(self) -> int | None:
        """Shortage of this allocation in bytes; None if the line has no size."""
        return None if self.requested_bytes is None else max(self.requested_bytes - (self.free_bytes or 0), 0)


@dataclass(frozen=True)
class MemoryStatistics:
    """Memory statistics that MindSpore (with `MS_MEMORY_STATISTIC=1`) or mindswap logged; None if not logged."""

    device_bytes: int | None = None  # total memory of the device
    available_bytes: int | None = None  # part of it that MindSpore may use
    used_peak_bytes: int | None = None  # peak without fragments, maximum over the log
    actual_peak_bytes: int | None = None  # peak with fragments, maximum over the log


@dataclass(frozen=True)
class WorkerLog:
    """Contents of the log of one worker."""

    worker: int  # number of the worker over all nodes
    node: str = ""  # folder of its node, such as `node_3`; "" if all logs are in one folder
    size_bytes: int = 0  # length of the log when it was read
    problem: str = ""  # why it could not be read; "" if it was read
    # distinct `Set ...` lines in order; `num_lines_left_out` counts those beyond the limit
    set_lines: tuple[SetLine, ...] = ()
    num_lines_left_out: int = 0
    # incomplete `Set ...` lines: truncated, or interleaved with another line
    broken_lines: tuple[str, ...] = ()
    is_lazy_inline_on: bool = False  # mindswap logged that lazy_inline is on
    is_cpu_run: bool = False  # mindswap logged that the run is on CPU, where nothing is offloaded
    has_upstream_swap: bool = False  # MindFormers logged its own swap_config (`Formative layer swap`)
    num_offload_warnings: int = 0  # compiler warnings that an offload has no effect
    oom_events: tuple[OomEvent, ...] = ()  # distinct events in order
    memory: MemoryStatistics = field(default_factory=MemoryStatistics)
    is_finished: bool = False  # the training completed (`Training Over!`)
    last_step: str = ""  # last training step in the log, such as `37/40`; "" without any
    last_error: str = ""  # last error line; "" without any
    is_cut_off: bool = False  # the last line has no newline


_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])?")
# Start of a line of MindFormers' or Python's logger, or of GLOG.
_HEADER = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - |\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|EXCEPTION)\] [\w ]+\(\d+[:,]"
)
_FULL_HEADER = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - \S*\[\S*\] - \w+ - "
    r"|\[\w+\] [\w ]+\([^)]*\): ?[\d.: -]* \[[^\]]*\](?: [\w:~<>]+\])? "
)
_NAMES = r": *[^,\s]+(?:, +[^,\s]+)*"
# Title of a setting -> pattern of the rest of a complete line.
_TITLES = {
    "full recompute": "",
    "select recompute exclude": _NAMES,
    "select recompute": _NAMES,
    "select comm recompute exclude": _NAMES,
    "select comm recompute": _NAMES,
    "layer swap": r"and value is: ?\w+",
    "op_swap": r": *[^,\s]+, value=\w+(?:, +[^,\s]+, value=\w+)*",
}
_SET = re.compile(rf"Set ({'|'.join(_TITLES)}) at layer (\d{{1,6}})(?!\d)(.*)")
# `mindformers/parallel_core/training_graph/transformer/utils.py:339`, in older versions `mindformers/modules/...`.
_UPSTREAM_SOURCE = re.compile(r"\[mindformers/(?:parallel_core|modules|models)/[\w/.]+:\d+\] - ")
_SPACES = re.compile(r"\s\s+")


def clean_line(raw: bytes) -> str:
    """Decode a line and remove colour codes; bytes that are not UTF-8 become U+FFFD."""
    text = raw.decode("utf-8", errors="replace")
    return _ANSI.sub("", text) if "\x1b" in text else text


def has_header(text: str) -> bool:
    """Return whether the text starts with the header of a log line."""
    return _HEADER.match(text) is not None


def without_header(text: str) -> str:
    """Remove time, process and source location, so that equal messages of several workers compare equal."""
    return _FULL_HEADER.sub("", text, count=1)


def split_messages(text: str) -> list[str]:
    """Split a line into which another process wrote, at each further log header.

    All pieces but the last are truncated; the rest of each is usually on the next line.
    """
    starts = [match.start() for match in _HEADER.finditer(text)]
    cuts = [0, *(start for start in starts if start > 0), len(text)]
    return [text[low:high] for low, high in itertools.pairwise(cuts)]


def parse_set_line(text: str) -> SetLine | None:
    """Parse the `Set ...` line in a log line.

    Lines that MindFormers wrote have two or more consecutive spaces (`Set op_swap at layer 0:  attention.x`, 29 or 33
    in `Set layer swap`), or name one of its source files.

    Returns:
        The setting; None if the line has none, or an incomplete one.
    """
    match = _SET.search(text)
    if match is None:
        return None
    title, layer_index, argument = match.groups()
    line = match.group().rstrip()
    if "Set " in argument or not re.fullmatch(_TITLES[title], argument.strip()):
        return None
    has_gap = _SPACES.search(line) is not None
    return SetLine(
        layer_index=int(layer_index),
        title=title,
        text=_SPACES.sub(" ", line),
        is_upstream=has_gap or _UPSTREAM_SOURCE.search(text[: match.start()]) is not None,
    )


MAX_TEXT = 300
HOST = "host"  # name of the form for host memory


@cache
def oom_forms() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return names and patterns of the message forms, in order of precedence."""
    return tuple((form["form"], re.compile(form["pattern"])) for form in package_data("logs/out_of_memory.yaml"))


def parse_oom(line: str) -> OomEvent | None:
    """Parse an out-of-memory error; None if the line is none, or of level INFO or DEBUG.

    Those levels are skipped because the memory pool tries twice and logs its first failure at level INFO.
    """
    if line.startswith(("[INFO]", "[DEBUG]")) or " - INFO - " in line or " - DEBUG - " in line:
        return None
    for name, pattern in oom_forms():
        if match := pattern.search(line):
            text = line[
                match.start() :
            ].strip()  # without time and process, so that equal events of several workers compare equal
            return OomEvent(
                name,
                text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ...",
                _size(match, "size"),
                name == HOST,
                _size(match, "free"),
            )
    return None


def _size(match: re.Match[str], group: str) -> int | None:
    """Return the bytes in a group; None for an implausibly large number, as lines can be damaged."""
    digits = match.groupdict().get(group)
    return int(digits) if digits and len(digits) < 16 else None
