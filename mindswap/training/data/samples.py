"""Documents to samples of equal length."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mindswap.training.data.text_files import TextSource, read_blocks
from mindswap.training.data.tokenizing import Tokenizer

# What the legacy models of MindFormers read, and the newer ones (BlendedMegatronDatasetDataLoader gives the same four).
LEGACY_COLUMNS = ("input_ids",)
NEWER_COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")


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


def four_columns(tokens: "array[int]") -> "array[int]":
    """One sample for the newer models: tokens, the tokens that follow them, a mask that takes all, positions.

    From shape (seq_length + 1,) to (4 * seq_length,), type code 'i'.
    """
    length = len(tokens) - 1
    return tokens[:-1] + tokens[1:] + array("i", [1]) * length + array("i", range(length))
