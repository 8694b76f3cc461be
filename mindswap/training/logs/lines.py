"""One line of a log: what is text, where a message begins, what a `Set` line says."""

import re

from mindswap.training.logs.model import SetLine

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])?")
# The start of a line of MindFormers' or Python's logger, and of GLOG.
_HEADER = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - |\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|EXCEPTION)\] [\w ]+\(\d+[:,]"
)
_WHOLE_HEADER = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - \S*\[\S*\] - \w+ - "
    r"|\[\w+\] [\w ]+\([^)]*\): ?[\d.: -]* \[[^\]]*\](?: [\w:~<>]+\])? "
)
_TITLES = (
    "full recompute",
    "select recompute exclude",
    "select recompute",
    "select comm recompute exclude",
    "select comm recompute",
    "layer swap",
    "op_swap",
)
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
    return [text[low:high] for low, high in zip(cuts[:-1], cuts[1:], strict=True)]


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
    if "Set " in rest or not _is_whole(title, rest.strip()):
        return None
    has_gap = _SPACES.search(line) is not None
    return SetLine(
        layer_index=int(layer_index),
        title=title,
        text=_SPACES.sub(" ", line),
        is_upstream=has_gap or _UPSTREAM_SOURCE.search(text[: match.start()]) is not None,
    )


def _is_whole(title: str, rest: str) -> bool:
    if title == "full recompute":
        return not rest
    if title == "layer swap":
        return re.fullmatch(r"and value is: ?\w+", rest) is not None
    if title == "op_swap":
        return re.fullmatch(r": *[^,\s]+, value=\w+(?:, +[^,\s]+, value=\w+)*", rest) is not None
    return re.fullmatch(r": *[^,\s]+(?:, +[^,\s]+)*", rest) is not None
