"""Convert documents to samples of equal length."""

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

# Text files, read in blocks.

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".tokens")
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class TextSource:
    """Source of one document."""

    path: Path | None  # file of the document; None for the standard input
    size_bytes: int | None = None  # None if unknown (pipes, the standard input)

    @property
    def name(self) -> str:
        """Name in messages."""
        return "<stdin>" if self.path is None else str(self.path)


def find_text_sources(names: list[str]) -> list[TextSource]:
    """Find the documents in files, folders and '-', in the given order; folders are sorted by path.

    In folders only files with TEXT_SUFFIXES are read, and hidden ones are skipped. Files in `names` may have any
    suffix, and repeated names are read repeatedly.

    Raises:
        DataError: if names do not exist or have no text; lists all of them.
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
                files = _files_of_folder(path)
                if not files:
                    problems.append(f"{name}: no text in this folder; looked for *{', *'.join(TEXT_SUFFIXES)}")
                sources += files
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

    sources = []
    for parent, folders, files in os.walk(folder, onerror=give_up):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        sources += [
            _source(Path(parent, name))
            for name in sorted(files)
            if name.endswith(TEXT_SUFFIXES) and not name.startswith(".")
        ]
    return sources


def _source(path: Path) -> TextSource:
    status = path.stat()
    return TextSource(path, status.st_size if stat.S_ISREG(status.st_mode) else None)


def read_blocks(source: TextSource, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the bytes of a document in blocks.

    Raises:
        DataError: if it cannot be read, or contains a NUL byte and is no text.
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


# Columns of the legacy models of MindFormers, and of the newer ones (as of BlendedMegatronDatasetDataLoader).
LEGACY_COLUMNS = ("input_ids",)
SLICED_COLUMNS = ("input_ids", "labels")
NEWER_COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")
# Legacy models that use the columns of the dataset unchanged (models/glm2/glm2.py, construct). The others split samples
# of seq_length + 1 tokens into inputs and labels (models/llama/llama.py, construct), unless `input_sliced_sig` is True.
TAKES_COLUMNS = ("ChatGLM2Config",)


def data_columns(document: Document) -> tuple[str, ...]:
    """Return the names of the data columns that the model of a configuration reads."""
    if not document.is_legacy:
        return NEWER_COLUMNS
    model = ("model", "model_config")
    takes_columns = document.value(*model, "type") in TAKES_COLUMNS
    return SLICED_COLUMNS if takes_columns or document.value(*model, "input_sliced_sig") is True else LEGACY_COLUMNS


def vocabulary_size(document: Document) -> int:
    """Return the vocabulary size of the model; 1 if the configuration does not have it."""
    names = ("vocab_size", "padded_vocab_size")
    return max(document.count("model", "model_config", name) for name in names)


@dataclass
class SampleCounts:
    """Running counts of `read_samples`."""

    num_samples: int = 0  # samples returned
    num_tokens: int = 0  # tokens of all documents, including one eos after each
    num_documents: int = 0  # documents that are not empty
    num_text_bytes: int = 0  # size of all documents


def read_samples(
    sources: Iterable[TextSource],
    tokenizer: Tokenizer,
    sample_length: int,
    counts: SampleCounts,
    on_bytes: Callable[[int], object] = lambda num_bytes: None,
) -> Iterator["array[int]"]:
    """Concatenate all documents, with an eos after each, and split them into samples; the remainder is dropped.

    Only one block of text and one sample are in memory at a time.

    Args:
        sources: the documents.
        tokenizer: converts text to tokens.
        sample_length: tokens per sample.
        counts: updated while reading.
        on_bytes: function called with the size of every block.

    Yields:
        One or more samples in an array of type code 'i', shape (n * sample_length,).

    Raises:
        DataError: if a text cannot be read or decoded.
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

    buffer = array("i")
    for tokens in all_tokens():
        buffer.extend(tokens)
        if num_complete := len(buffer) // sample_length:
            counts.num_samples += num_complete
            yield buffer[: num_complete * sample_length]
            buffer = buffer[num_complete * sample_length :]


def cut_columns(tokens: "array[int]", num_columns: int) -> "array[int]":
    """Split a sample into columns: tokens, next tokens, a mask of ones, positions.

    Args:
        tokens: shape (seq_length + 1,), type code 'i'.
        num_columns: number of columns; a single column has all tokens.

    Returns:
        The columns in sequence, shape (num_columns * seq_length,), type code 'i'.
    """
    if num_columns == 1:
        return tokens
    length = len(tokens) - 1
    columns = tokens[:-1] + tokens[1:] + array("i", [1]) * length + array("i", range(length))
    return columns[: num_columns * length]
