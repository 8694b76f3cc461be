"""Standard streams of a command line: closed, full, or not UTF-8.

A result that cannot be written is an error. A message on the standard error that cannot be written is dropped: it must
not end the work that it is about.
"""

import io
import logging
import os
import re
import sys
import unicodedata
from contextlib import suppress
from typing import Any, TextIO

from mindswap.errors import MindswapError
from mindswap.language import translate


class OutputError(MindswapError):
    """The standard output cannot be written."""


class _OutputFile(io.FileIO):
    """Standard output that raises OutputError; BrokenPipeError is not converted, as it is no error of the command."""

    def write(self, data: Any) -> int:
        """Write as `FileIO.write`. Raises OutputError: it cannot."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"the standard output cannot be written: {error.strerror or error}") from error


class _MessageFile(io.FileIO):
    """Standard error that drops messages that cannot be written."""

    def write(self, data: Any) -> int:
        """Write what can be written, and return the size of all."""
        view = memoryview(data).cast("B")
        num_written = 0
        with suppress(OSError):
            while num_written < view.nbytes and (count := super().write(view[num_written:])):
                num_written += count
        return view.nbytes


def prepare_streams() -> None:
    """Set up the standard streams of a command, before it opens other files.

    Closed streams are opened; writing to a closed standard output fails, as in other programs. Characters outside of
    the encoding of a stream are escaped. With unbuffered Python (`-u`) the streams are unbuffered.
    """
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        if _is_closed(descriptor):
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 for as long as the process runs
    sys.stdout = _text_stream(sys.stdout, _OutputFile(1, "wb", closefd=False), os.isatty(1))
    sys.stderr = _text_stream(sys.stderr, _MessageFile(2, "wb", closefd=False), True)


def _text_stream(before: Any, file: io.FileIO, line_buffering: bool) -> io.TextIOWrapper:
    """Return the stream of a file, with the encoding of the one before; None was closed."""
    if before is not None:
        before.flush()
    is_unbuffered = getattr(before, "write_through", False)
    return io.TextIOWrapper(
        file if is_unbuffered else io.BufferedWriter(file),
        getattr(before, "encoding", None) or "utf-8",
        "backslashreplace",
        line_buffering=line_buffering,
        write_through=is_unbuffered,
    )


_UNUSUAL = re.compile(r"[^\t\n -~]")


def printable(text: str) -> str:
    """Return a text with escapes in place of control characters, except line ends, tabs and blanks of any width.

    Names, files and logs may have any; a terminal would obey them.
    """
    return _UNUSUAL.sub(lambda match: match[0] if _is_shown(match[0]) else _escaped(match[0]), text)


def _is_shown(character: str) -> bool:
    """Return whether a terminal shows a character: `isprintable` is not true of blanks (U+00A0, U+3000)."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def print_text(text: object, end: str = "\n", is_message: bool = False) -> None:
    """Print a text on the standard output at once, or a message on the standard error.

    The text is in the chosen language, and has `printable` characters.
    """
    shown = translate(printable(str(text)))
    print(shown, end=end, flush=True, file=sys.stderr if is_message else sys.stdout)


def print_data(text: str) -> None:
    """Print JSON on the standard output at once, with `printable` characters; it is not translated."""
    print(printable(text), flush=True)  # noqa: T201 as in print_text


class MessageFormatter(logging.Formatter):
    """Format log records with `printable` characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return printable(super().format(record))


def write_message(descriptor: int, text: str) -> None:
    """Write to a descriptor of the standard error, without Python's buffers; nothing if that is impossible.

    The encoding is that of the standard error, as in other messages; other characters are escaped.
    """
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with suppress(OSError):
        os.write(descriptor, text.encode(encoding, "backslashreplace"))


def drop_output(stream: TextIO | None = None) -> None:
    """Discard all further output of a stream, including its buffer; None for the standard output."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (stream or sys.stdout).fileno())
        os.close(null)


def _is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False
