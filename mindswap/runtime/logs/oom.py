"""Lines of a worker's log: settings of layers, memory, out of memory.

MindSpore's texts are those of the libraries in the wheel of mindspore 2.9.0 (`strings`), CANN's are
from its list of error codes (hiascend.com, "maintenref/troubleshooting") and public reports.
"""

import itertools
import re
from dataclasses import dataclass, field
from functools import cache

from mindswap.files import package_data

# One line of a log: what is text, where a message begins, what a `Set` line says.

# What was read from the log of one worker: plain data.


@dataclass(frozen=True)
class SetLine:
    """One line that says what was set on a layer: `Set op_swap at layer 0: .attention, value=20`."""

    layer_index: int  # the layer it speaks of
    title: str  # `op_swap`, `layer swap`, `full recompute`, `select recompute`, ...
    text: str  # the line from `Set` on, runs of spaces as one
    is_upstream: bool = False  # MindFormers' own code wrote it, not mindswap
    is_repaired: bool = False  # put together from two pieces; never seen whole


@dataclass(frozen=True)
class OomEvent:
    """A worker asked for memory and did not get it."""

    form: str  # name of the form, of `data/logs/out_of_memory.yaml`
    text: str  # the line, shortened
    requested_bytes: int | None = None  # what it asked for; None if the line does not say
    is_host: bool = False  # memory of the host, not of the device
    free_bytes: int | None = None  # what it could have had; None if the line does not say

    @property
    def missing_bytes(self) -> int | None:
        """Bytes that this one request lacked; None if the line does not say how much it was."""
        return None if self.requested_bytes is None else max(self.requested_bytes - (self.free_bytes or 0), 0)


@dataclass(frozen=True)
class MemoryStatistics:
    """Memory as MindSpore prints it with `MS_MEMORY_STATISTIC=1`, or mindswap; None for what was not printed."""

    device_bytes: int | None = None  # all memory of the device
    available_bytes: int | None = None  # what MindSpore may use of it
    used_peak_bytes: int | None = None  # highest use without fragments, over all statistics of the log
    actual_peak_bytes: int | None = None  # highest use with fragments, over all statistics of the log


@dataclass(frozen=True)
class WorkerLog:
    """The log of one worker."""

    worker: int  # number of the worker, counted over all nodes
    node: str = ""  # folder of its node, as `node_3`; "" where the logs of all workers are in one folder
    size_bytes: int = 0  # length of the log when it was read
    problem: str = ""  # why it could not be read; "" if it was read
    # distinct `Set ...` lines in order; `num_lines_left_out` counts those over the limit
    set_lines: tuple[SetLine, ...] = ()
    num_lines_left_out: int = 0
    # `Set ...` lines of which a part is missing: cut off, or mixed with another line
    broken_lines: tuple[str, ...] = ()
    is_lazy_inline_on: bool = False  # mindswap said that lazy_inline is on
    is_cpu_run: bool = False  # mindswap said that this run is on CPU, where nothing is offloaded
    has_upstream_swap: bool = False  # MindFormers logged a swap_config of its own (`Formative layer swap`)
    num_offload_warnings: int = 0  # warnings of the compiler that an offload has no effect
    oom_events: tuple[OomEvent, ...] = ()  # distinct ones in order
    memory: MemoryStatistics = field(default_factory=MemoryStatistics)  # memory statistics
    is_finished: bool = False  # the training ended by itself (`Training Over!`)
    last_step: str = ""  # last training step in the log, as `37/40`; "" for none
    last_error: str = ""  # last error line; "" for none
    is_cut_off: bool = False  # the last line has no end


_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])?")
# The start of a line of MindFormers' or Python's logger, and of GLOG.
_HEADER = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - |\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|EXCEPTION)\] [\w ]+\(\d+[:,]"
)
_WHOLE_HEADER = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - \S*\[\S*\] - \w+ - "
    r"|\[\w+\] [\w ]+\([^)]*\): ?[\d.: -]* \[[^\]]*\](?: [\w:~<>]+\])? "
)
_NAMES = r": *[^,\s]+(?:, +[^,\s]+)*"
# What is set on a layer, and what follows in a line that is whole.
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
    """Text without colour codes; bytes that are no UTF-8 become U+FFFD."""
    text = raw.decode("utf-8", errors="replace")
    return _ANSI.sub("", text) if "\x1b" in text else text


def has_header(text: str) -> bool:
    """The text begins like a log line."""
    return _HEADER.match(text) is not None


def without_header(text: str) -> str:
    """Without time, process and place, so that the same message of several workers is equal."""
    return _WHOLE_HEADER.sub("", text, count=1)


def split_messages(text: str) -> list[str]:
    """Pieces of a line that another process broke into: each further log header begins a new one.

    All but the last piece lack their end, which usually stands on the next line.
    """
    starts = [match.start() for match in _HEADER.finditer(text)]
    cuts = [0, *(start for start in starts if start > 0), len(text)]
    return [text[low:high] for low, high in itertools.pairwise(cuts)]


def parse_set_line(text: str) -> SetLine | None:
    """The `Set ...` line that a log line holds.

    MindFormers' own lines have two or more spaces in a row (`Set op_swap at layer 0:  attention.x`, and 29 or 33
    in `Set layer swap`); where they equal those of mindswap, the source file in the line tells them apart.
    """
    match = _SET.search(text)
    if match is None:
        return None
    title, layer_index, rest = match.groups()
    line = match.group().rstrip()
    if "Set " in rest or not re.fullmatch(_TITLES[title], rest.strip()):
        return None
    has_gap = _SPACES.search(line) is not None
    return SetLine(
        layer_index=int(layer_index),
        title=title,
        text=_SPACES.sub(" ", line),
        is_upstream=has_gap or _UPSTREAM_SOURCE.search(text[: match.start()]) is not None,
    )


MAX_TEXT = 300
HOST = "host"  # memory of the host, not of the device


@cache
def oom_forms() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Names and patterns of the forms, in order."""
    return tuple((one["form"], re.compile(one["pattern"])) for one in package_data("logs/out_of_memory.yaml"))


def parse_oom(line: str) -> OomEvent | None:
    """The event a line speaks of; None for none, and for lines of level INFO or DEBUG.

    The memory pool tries twice and logs its first failure at level INFO.
    """
    if line.startswith(("[INFO]", "[DEBUG]")) or " - INFO - " in line or " - DEBUG - " in line:
        return None
    for name, pattern in oom_forms():
        if match := pattern.search(line):
            text = line[match.start() :].strip()  # without time and process, so that workers compare equal
            return OomEvent(
                name,
                text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ...",
                _size(match, "size"),
                name == HOST,
                _size(match, "free"),
            )
    return None


def _size(match: re.Match[str], group: str) -> int | None:
    """The bytes of a group; a line can be cut or damaged: a number no memory ever had is no size."""
    digits = match.groupdict().get(group)
    return int(digits) if digits and len(digits) < 16 else None
