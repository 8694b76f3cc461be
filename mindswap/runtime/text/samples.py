"""Documents to samples of equal length."""

import os
import stat
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mindswap.config.nodes import Document
from mindswap.errors import DataError
from mindswap.runtime.text.tokenizing import Tokenizer

# Which texts to read, and their bytes in blocks.

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".tokens")
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class TextSource:
    """One document."""

    path: Path | None  # its file; None is the standard input
    size_bytes: int | None = None  # None where it is not known before the end (pipes, the standard input)

    @property
    def name(self) -> str:
        """Name in messages."""
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


# What the legacy models of MindFormers read, and the newer ones (BlendedMegatronDatasetDataLoader gives the same four).
LEGACY_COLUMNS = ("input_ids",)
SLICED_COLUMNS = ("input_ids", "labels")
NEWER_COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")
# Legacy models that take the columns of the data set as they are (models/glm2/glm2.py, construct); the others take one
# token more and cut it into inputs and labels (models/llama/llama.py, construct), or are told not to: input_sliced_sig.
TAKES_COLUMNS = ("ChatGLM2Config",)


def data_columns(document: Document) -> tuple[str, ...]:
    """Columns that the model of a configuration reads."""
    if not document.is_legacy:
        return NEWER_COLUMNS
    model = ("model", "model_config")
    takes_columns = document.value(*model, "type") in TAKES_COLUMNS
    return SLICED_COLUMNS if takes_columns or document.value(*model, "input_sliced_sig") is True else LEGACY_COLUMNS


def vocabulary_size(document: Document) -> int:
    """Tokens that the model knows; 1 where the configuration does not say it."""
    names = ("vocab_size", "padded_vocab_size")
    return max(document.count("model", "model_config", name) for name in names)


@dataclass
class SampleCounts:
    """Counts of `read_samples` so far."""

    num_samples: int = 0  # samples handed out
    num_tokens: int = 0  # of all documents, one eos after each included
    num_documents: int = 0  # documents that hold any text; empty ones are passed over
    num_text_bytes: int = 0  # their bytes


def read_samples(
    sources: Iterable[TextSource],
    tokenizer: Tokenizer,
    sample_length: int,
    counts: SampleCounts,
    on_bytes: Callable[[int], object] = lambda num_bytes: None,
) -> Iterator["array[int]"]:
    """All documents one after the other, an eos after each, cut into samples; what is left over is dropped.

    Holds one block of text, and one sample, at a time. `counts` are kept up to date; `on_bytes` is called with the size
    of every block read.

    Yields:
        Whole samples, one or several in one array of type code 'i', shape (n * sample_length,).

    Raises:
        DataError: a text that cannot be read or decoded.
    """

    def blocks(source: TextSource) -> Iterator[bytes]:
        for block in read_blocks(source):
            counts.num_text_bytes += len(block)
            on_bytes(len(block))
            yield block

    def all_tokens() -> Iterator["array[int]"]:
        for source in sources:
            before = counts.num_tokens
            for tokens in tokenizer.tokens(source.name, blocks(source)):
                counts.num_tokens += len(tokens)
                yield tokens
            if counts.num_tokens > before:
                counts.num_tokens += 1
                counts.num_documents += 1
                yield array("i", [tokenizer.eos_id])

    rest = array("i")
    for tokens in all_tokens():
        rest.extend(tokens)
        if whole := len(rest) // sample_length:
            counts.num_samples += whole
            yield rest[: whole * sample_length]
            rest = rest[whole * sample_length :]


def cut_columns(tokens: "array[int]", num_columns: int) -> "array[int]":
    """One sample in columns: tokens, the tokens that follow them, a mask that takes all, positions.

    From shape (seq_length + 1,) to (num_columns * seq_length,), type code 'i'; one column has all tokens.
    """
    if num_columns == 1:
        return tokens
    length = len(tokens) - 1
    columns = tokens[:-1] + tokens[1:] + array("i", [1]) * length + array("i", range(length))
    return columns[: num_columns * length]
