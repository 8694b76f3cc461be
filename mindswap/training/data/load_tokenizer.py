"""A tokenizer file (Hugging Face tokenizer.json or sentencepiece .model) as a `Tokenizer`."""

from pathlib import Path

from mindswap.errors import DataError
from mindswap.training.data.tokenizing import TextTokenizer

# What models call the token that ends a document, most telling first.
EOS_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|im_end|>", "[EOS]", "[SEP]")


def load_tokenizer(path: Path, eos_token: str | None = None) -> TextTokenizer:
    """Load a tokenizer.json, or a sentencepiece .model.

    `eos_token` ends a document; None: what the file names, or for a tokenizer.json the first of EOS_TOKENS in it.

    Raises:
        DataError: the file cannot be read or has no such token; or the package that reads it is not installed.
    """
    if path.is_dir():
        inner = [name for name in ("tokenizer.json", "tokenizer.model") if (path / name).is_file()]
        fix = f"--tokenizer {path / inner[0]}" if inner else "name a tokenizer.json or a sentencepiece .model"
        raise DataError(f"{path}: is a folder\n    fix:     {fix}")
    try:
        with path.open("rb") as file:
            is_json = file.read(64).lstrip().startswith(b"{")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    return _load_json(path, eos_token) if is_json else _load_sentencepiece(path, eos_token)


def _load_json(path: Path, eos_token: str | None) -> TextTokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError(f"{path}: reading it needs a package\n    fix:     pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 it raises plain Exception
        raise DataError(f"{path}: {error}\n    allowed: the tokenizer.json of a Hugging Face model") from error
    # A file may ask to cut or to fill every text to one length; and "</s>" in a text is just text.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    ids = tokenizer.get_vocab(with_added_tokens=True)
    found = [name for name in ([eos_token] if eos_token else EOS_TOKENS) if name in ids]
    if not found:
        raise _no_eos(path, eos_token, [token.content for token in tokenizer.get_added_tokens_decoder().values()])
    return TextTokenizer(
        path.name,
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        vocab_size=max(ids.values()) + 1,
        eos_id=ids[found[0]],
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
    what = f"no token {eos_token!r}" if eos_token else "no token that is known to end a document"
    return DataError(
        f"{path}: {what}\n    allowed: its special tokens are {', '.join(special[:20]) or 'none'}\n"
        "    fix:     --eos-token NAME"
    )
