"""Lines of a text whose line ends may be of any kind, and mixed."""

import re

_BREAK = re.compile(r"\r\n|\r|\n")


def line_start(text: str, index: int) -> int:
    """Where the line of a place begins."""
    index = max(index, 0)
    return max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1


def line_end(text: str, index: int) -> int:
    """Where the line of a place ends, before its line break."""
    found = _BREAK.search(text, index)
    return found.start() if found else len(text)


def after_line(text: str, index: int) -> int:
    """Where the line behind that of a place begins; the end of the text if there is none."""
    found = _BREAK.search(text, index)
    return found.end() if found else len(text)


def line_above(text: str, start: int) -> int:
    """Where the line above one that begins at `start` begins."""
    return line_start(text, start - (2 if text.startswith("\r\n", start - 2) and start > 1 else 1))


def newline_at(text: str, index: int) -> str:
    """How the line of a place ends; if it is the last one, how the one above ends."""
    found = _BREAK.search(text, index)
    if found:
        return found[0]
    above = line_start(text, index)
    return next(iter(_BREAK.findall(text, max(above - 2, 0), above)[-1:]), "\n")
