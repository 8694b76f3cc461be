"""Documents to samples of equal length."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mindswap.config.nodes import Document
from mindswap.training.data.text_files import TextSource, read_blocks
from mindswap.training.data.tokenizing import Tokenizer

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
    """What `read_samples` has read so far."""

    num_documents: int = 0  # documents that hold any text; empty ones are passed over
    num_bytes: int = 0  # their bytes
    num_tokens: int = 0  # their tokens, one eos after each document included
    num_samples: int = 0  # samples handed out


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
            counts.num_bytes += len(block)
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
