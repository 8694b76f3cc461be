"""Which texts to read, and their bytes in blocks."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mindswap.errors import DataError

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".tokens")
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class TextSource:
    """One document."""

    path: Path | None  # its file; None is the standard input
    size_bytes: int | None = None  # None where it is not known before the end (pipes, the standard input)

    @property
    def name(self) -> str:
        """What messages call it."""
        return "<stdin>" if self.path is None else str(self.path)


def find_text_sources(names: list[str]) -> list[TextSource]:
    """The documents behind files, folders and '-', in the order given; folders sorted by path.

    In folders only TEXT_SUFFIXES count, and names with a leading dot are left out. A file that is
    named itself may have any suffix, and what is named twice is read twice.

    Raises:
        DataError: names that do not exist or hold no text, all at once.
    """
    sources: list[TextSource] = []
    problems = []
    for name in names:
        path = Path(name)
        try:
            if name == "-":
                if TextSource(None) in sources:
                    problems.append("-: the standard input can be read only once")
                sources.append(TextSource(None))
            elif path.is_dir():
                found = _files_of_folder(path)
                if not found:
                    problems.append(f"{name}: no text in this folder; looked for *{', *'.join(TEXT_SUFFIXES)}")
                sources += found
            else:
                sources.append(_source(path))
        except OSError as error:
            problems.append(f"{error.filename or name}: {error.strerror}")
    if problems:
        raise DataError("\n    ".join(["these texts cannot be read:", *problems]))
    return sources


def _files_of_folder(folder: Path) -> list[TextSource]:
    def give_up(error: OSError) -> NoReturn:
        raise error

    found = []
    for place, folders, files in os.walk(folder, onerror=give_up):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            _source(Path(place, name))
            for name in sorted(files)
            if name.endswith(TEXT_SUFFIXES) and not name.startswith(".")
        ]
    return found


def _source(path: Path) -> TextSource:
    status = path.stat()
    return TextSource(path, status.st_size if stat.S_ISREG(status.st_mode) else None)


def read_blocks(source: TextSource, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The bytes of a document, block by block.

    Raises:
        DataError: it cannot be read, or holds a NUL byte, so it is no text.
    """
    offset = 0
    try:
        with nullcontext(sys.stdin.buffer) if source.path is None else source.path.open("rb") as file:
            while block := file.read(block_bytes):
                if (nul := block.find(0)) >= 0:
                    raise DataError(
                        f"{source.name}: a NUL byte at offset {offset + nul}: this is a binary file, or UTF-16\n"
                        "    allowed: text\n"
                        "    fix:     leave it out, or, if it is UTF-16: iconv -f UTF-16 -t UTF-8"
                    )
                yield block
                offset += len(block)
    except OSError as error:
        raise DataError(f"{source.name}: cannot be read at byte {offset}: {error.strerror}") from error
