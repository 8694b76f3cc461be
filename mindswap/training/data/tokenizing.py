"""Text to tokens: one class for bytes, one for any tokenizer that works on str."""

import codecs
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from mindswap.errors import DataError

# A long document is cut before a line that begins with text, else before a word, else anywhere, so
# that a tokenizer meets whole words.
_LAST_LINE = re.compile(r".*\n(?=\S)", re.DOTALL)
_LAST_WORD = re.compile(r".*\S(?=\s)", re.DOTALL)


class Tokenizer(Protocol):
    """What `prepare-data` needs of a tokenizer; token arrays have type code 'i' (int32)."""

    name: str
    vocab_size: int
    eos_id: int

    def tokens(self, name: str, blocks: Iterable[bytes]) -> Iterator["array[int]"]:
        """The tokens of one document, without special tokens; `name` is for messages."""
        ...


class ByteTokenizer:
    """Token = byte + 3, after the special tokens pad 0, bos 1, eos 2 (the ids that Llama uses).

    Takes any bytes, so no text is ever undecodable. A UTF-8 byte order mark is skipped.
    """

    name = "bytes"
    num_special, eos_id = 3, 2
    vocab_size = num_special + 256

    def tokens(self, name: str, blocks: Iterable[bytes]) -> Iterator["array[int]"]:
        """See `Tokenizer.tokens`."""
        for index, block in enumerate(blocks):
            data = block.removeprefix(b"" if index else codecs.BOM_UTF8)
            tokens = np.frombuffer(data, np.uint8).astype(np.intc) + self.num_special
            yield array("i", tokens.tobytes())


class TextTokenizer:
    """A tokenizer that takes str: text must be UTF-8.

    Documents longer than a block are cut at the beginning of a line, so memory stays bounded.

    Args:
        name: what messages call it, for example its file.
        encode: text -> token ids, without special tokens.
        vocab_size: largest id + 1.
        eos_id: the token that ends a document.
    """

    def __init__(self, name: str, encode: Callable[[str], list[int]], vocab_size: int, eos_id: int):
        self.name = name
        self.vocab_size = vocab_size
        self.eos_id = eos_id
        self._encode = encode

    def tokens(self, name: str, blocks: Iterable[bytes]) -> Iterator["array[int]"]:
        """See `Tokenizer.tokens`. Raises DataError: bytes that are not UTF-8, with their offset."""
        for piece in split_pieces(decode_utf8(name, blocks)):
            yield array("i", self._encode(piece))


def decode_utf8(name: str, blocks: Iterable[bytes]) -> Iterator[str]:
    """Blocks of UTF-8 as text, also where a block ends within a character; a byte order mark is skipped.

    Raises:
        DataError: with the offset of the first byte that is wrong.
    """
    rest, offset, at_start = b"", 0, True
    for block in blocks:
        text, used = _decode(name, rest + block, offset, is_last=False)
        rest, offset = (rest + block)[used:], offset + used
        if text:
            yield text.removeprefix("\ufeff") if at_start else text
            at_start = False
    _decode(name, rest, offset, is_last=True)


def _decode(name: str, data: bytes, offset: int, *, is_last: bool) -> tuple[str, int]:
    try:
        return codecs.utf_8_decode(data, "strict", is_last)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: byte {data[error.start]:#04x} at offset {offset + error.start} is not UTF-8 ({error.reason})\n"
            "    allowed: UTF-8; without --tokenizer (byte tokens) any encoding\n"
            "    fix:     iconv -f LATIN1 -t UTF-8, with the encoding that the file has"
        ) from error


def split_pieces(texts: Iterable[str]) -> Iterator[str]:
    """The same text in pieces: one if it comes in one, else cut where a line ends, else between words."""
    rest = ""
    for text in texts:
        if rest:
            cut = _LAST_LINE.match(rest) or _LAST_WORD.match(rest)
            end = cut.end() if cut else len(rest)
            yield rest[:end]
            rest = rest[end:]
        rest += text
    if rest:
        yield rest
