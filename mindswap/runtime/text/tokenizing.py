"""Convert text to tokens, by bytes or with any tokenizer for str."""

import codecs
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from mindswap.errors import DataError, system_errors_as

# Long documents are split before a line that starts with text, else before a word, else anywhere, so that tokenizers
# get complete words.
_LAST_LINE = re.compile(r".*\n(?=\S)", re.DOTALL)
_LAST_WORD = re.compile(r".*\S(?=\s)", re.DOTALL)


class ByteTokenizer:
    """Tokenizer with token = byte + 3, after the special tokens pad 0, bos 1, eos 2 (ids of Llama).

    It accepts any bytes, so there are no decoding errors. A UTF-8 byte order mark is skipped.
    """

    name = "bytes"
    num_special, eos_id = 3, 2
    vocab_size = num_special + 256

    def tokens(self, name: str, blocks: Iterable[bytes]) -> Iterator["array[int]"]:
        """Yield the tokens of one document, without special tokens.

        Args:
            name: name of the document, for messages.
            blocks: its bytes.

        Yields:
            Arrays of type code 'i' (int32).
        """
        for index, block in enumerate(blocks):
            data = block.removeprefix(b"" if index else codecs.BOM_UTF8)
            tokens = np.frombuffer(data, np.uint8).astype(np.intc) + self.num_special
            yield array("i", tokens.tobytes())


class TextTokenizer:
    """Tokenizer for str; documents must be UTF-8.

    Documents longer than a block are split at the start of a line, so memory is bounded.

    Args:
        name: name in messages, for example its file.
        encode: text -> token ids, without special tokens.
        vocab_size: largest id + 1.
        eos_id: id of the token at the end of a document.
    """

    def __init__(self, name: str, encode: Callable[[str], list[int]], vocab_size: int, eos_id: int):
        self.name = name
        self.vocab_size = vocab_size
        self.eos_id = eos_id
        self._encode = encode

    def tokens(self, name: str, blocks: Iterable[bytes]) -> Iterator["array[int]"]:
        """Yield the tokens of one document, see `ByteTokenizer.tokens`.

        Raises:
            DataError: if bytes are not UTF-8; names their offset.
        """
        for piece in split_pieces(decode_utf8(name, blocks)):
            yield array("i", self._encode(piece))


# Of `prepare-data`.
Tokenizer = ByteTokenizer | TextTokenizer


def decode_utf8(name: str, blocks: Iterable[bytes]) -> Iterator[str]:
    """Decode blocks of UTF-8, which may end within a character; a byte order mark is skipped.

    Raises:
        DataError: if bytes are not UTF-8; names the offset of the first.
    """
    num_read = 0

    def counted() -> Iterator[bytes]:
        nonlocal num_read
        for block in blocks:
            num_read += len(block)
            yield block

    try:
        # Not "utf-8-sig": it accepts a text that ends within a byte order mark.
        texts = codecs.iterdecode(counted(), "utf-8")
        yield next(texts, "").removeprefix("\ufeff")
        yield from texts
    except UnicodeDecodeError as error:  # its object is the incomplete rest of the previous block, and this block
        offset = num_read - len(error.object) + error.start
        raise DataError(
            f"{name}: byte {error.object[error.start]:#04x} at offset {offset} is not UTF-8 ({error.reason})\n"
            "    allowed: UTF-8; without --tokenizer (byte tokens) any encoding\n"
            "    fix:     iconv -f LATIN1 -t UTF-8, with the encoding that the file has"
        ) from error


def split_pieces(texts: Iterable[str]) -> Iterator[str]:
    """Split text at ends of lines, else between words; a text of one block is not split."""
    buffer = ""
    for text in texts:
        if buffer:
            cut = _LAST_LINE.match(buffer) or _LAST_WORD.match(buffer)
            end = cut.end() if cut else len(buffer)
            yield buffer[:end]
            buffer = buffer[end:]
        buffer += text
    if buffer:
        yield buffer


# Load a tokenizer file (Hugging Face tokenizer.json or sentencepiece .model).

# Names of the token at the end of a document, in order of precedence.
EOS_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]")


def load_tokenizer(path: Path, eos_token: str | None = None) -> TextTokenizer:
    """Load a tokenizer.json, or a sentencepiece .model.

    Args:
        path: the file.
        eos_token: token at the end of a document; None for that of the file, or for a tokenizer.json the first of
            EOS_TOKENS in its vocabulary.

    Raises:
        DataError: if the file cannot be read, has no such token, or the package that reads it is not installed.
    """
    if path.is_dir():
        inner = [name for name in ("tokenizer.json", "tokenizer.model") if (path / name).is_file()]
        fix = f"--tokenizer {path / inner[0]}" if inner else "name a tokenizer.json or a sentencepiece .model"
        raise DataError(f"{path}: is a folder\n    fix:     {fix}")
    with system_errors_as(DataError, str(path)), path.open("rb") as file:
        is_json = file.read(64).lstrip().startswith(b"{")
    return _load_json(path, eos_token) if is_json else _load_sentencepiece(path, eos_token)


def _load_json(path: Path, eos_token: str | None) -> TextTokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError(f"{path}: reading it needs a package\n    fix:     pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # it raises plain Exception
        raise DataError(f"{path}: {error}\n    allowed: the tokenizer.json of a Hugging Face model") from error
    # A file may enable truncation and padding, and "</s>" in a text must not become a special token.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    ids = tokenizer.get_vocab(with_added_tokens=True)
    eos_names = [name for name in ([eos_token] if eos_token else EOS_TOKENS) if name in ids]
    if not eos_names:
        raise _no_eos(path, eos_token, [token.content for token in tokenizer.get_added_tokens_decoder().values()])
    return TextTokenizer(
        path.name,
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        vocab_size=max(ids.values()) + 1,
        eos_id=ids[eos_names[0]],
    )


def _load_sentencepiece(path: Path, eos_token: str | None) -> TextTokenizer:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise DataError(f"{path}: reading it needs a package\n    fix:     pip install sentencepiece") from error
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(path.read_bytes())
    except (RuntimeError, OSError) as error:
        raise DataError(f"{path}: no tokenizer file\n    allowed: tokenizer.json, sentencepiece .model") from error
    size = processor.GetPieceSize()
    if eos_token is None:
        eos_id = processor.eos_id()
    else:
        eos_id = next((i for i in range(size) if processor.IdToPiece(i) == eos_token), -1)
    if eos_id < 0:
        raise _no_eos(path, eos_token, [processor.IdToPiece(i) for i in range(size) if processor.IsControl(i)])
    return TextTokenizer(path.name, processor.EncodeAsIds, vocab_size=size, eos_id=eos_id)


def _no_eos(path: Path, eos_token: str | None, special: list[str]) -> DataError:
    problem = f"no token {eos_token!r}" if eos_token else "no token that is known to end a document"
    return DataError(
        f"{path}: {problem}\n    allowed: its special tokens are {', '.join(special[:20]) or 'none'}\n"
        "    fix:     --eos-token NAME"
    )
