"""Convert text to a MindRecord for MindFormers: `mindswap prepare-data`."""

import re
import sys
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mindswap.adapters.mindrecord import INDEX_SUFFIX, MAX_SAMPLE_LENGTH, MindRecordWriter, require_mindspore
from mindswap.errors import DataError
from mindswap.files import refuse_existing, staged
from mindswap.runtime.text.samples import (
    LEGACY_COLUMNS,
    NEWER_COLUMNS,
    SampleCounts,
    TextSource,
    find_text_sources,
    read_samples,
)
from mindswap.runtime.text.tokenizing import ByteTokenizer, Tokenizer, load_tokenizer

# Both from MindFormers/MindSpore: CausalLanguageModelDataset looks for this name, FileWriter refuses these characters.
_NAME = re.compile(r".*mindrecord\d*", re.DOTALL)
_FORBIDDEN = set("\\:*?\"<>|`&;'")


def prepare_data(
    texts: list[str],
    output: Path,
    seq_length: int,
    tokenizer_path: Path | None = None,
    eos_token: str | None = None,
    is_newer: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Convert text to a MindRecord, with a progress bar on a terminal.

    Args:
        texts: files, folders, or `-` for the standard input.
        output: file to write; its index is written, too.
        seq_length: sequence length of the model.
        tokenizer_path: tokenizer.json of Hugging Face, or a sentencepiece .model; None for bytes as tokens.
        eos_token: token of the tokenizer at the end of a document.
        is_newer: write the columns of models with use_legacy: False, not only `input_ids`.
        overwrite: replace existing files.

    Returns:
        Counts and settings of the MindRecord as JSON data.

    Raises:
        DataError: if a text cannot be read, or the file cannot be written.
    """
    if eos_token is not None and tokenizer_path is None:
        raise DataError("--eos-token names a token of --tokenizer FILE; byte tokens have eos 2")
    if not 1 <= seq_length < MAX_SAMPLE_LENGTH:
        raise DataError(f"--seq-length {seq_length}\n    allowed: 1 to {MAX_SAMPLE_LENGTH - 1}")
    _check_output(output, overwrite)
    sources = find_text_sources(texts)
    tokenizer = ByteTokenizer() if tokenizer_path is None else load_tokenizer(tokenizer_path, eos_token)
    require_mindspore()
    counts = _write_mindrecord(output, sources, tokenizer, seq_length, is_newer, overwrite)
    return {
        "output": str(output),
        "seq_length": seq_length,
        "vocab_size": tokenizer.vocab_size,
        "eos_token_id": tokenizer.eos_id,
        "tokenizer": tokenizer.name,
        **asdict(counts),
        "size_on_disk_bytes": sum(path.stat().st_blocks for path in _files(output)) * 512,
    }


def _check_output(output: Path, overwrite: bool) -> None:
    """Refuse names that MindFormers or MindSpore refuse, and existing files."""
    name = output.name
    if forbidden := sorted(_FORBIDDEN & set(name)):
        raise DataError(f"--output {output}: MindRecord names have no {' '.join(forbidden)}")
    if not _NAME.fullmatch(name) or name != name.strip():
        stem = output.with_suffix("") if output.suffix else output
        raise DataError(
            f"--output {output}: MindFormers finds only names that end with 'mindrecord' and digits\n"
            f"    fix:     --output {str(stem).strip()}.mindrecord"
        )
    if any(path.is_dir() for path in _files(output)):
        raise DataError(f"--output {output}: is a folder\n    fix:     --output {output / 'train.mindrecord'}")
    if not overwrite:
        refuse_existing(_files(output))


def _write_mindrecord(
    output: Path, sources: list[TextSource], tokenizer: Tokenizer, seq_length: int, is_newer: bool, overwrite: bool
) -> SampleCounts:
    """Read, tokenize and write all samples; the output appears only when complete."""
    counts = SampleCounts()
    sizes = [source.size_bytes for source in sources if source.size_bytes is not None]
    with tqdm(
        total=sum(sizes) if len(sizes) == len(sources) else None,
        unit="B",
        unit_scale=True,
        desc=output.name,
        disable=not sys.stderr.isatty(),
    ) as progress:
        samples = read_samples(sources, tokenizer, seq_length + 1, counts, progress.update)
        first = next(samples, None)
        if first is None:
            raise _too_little(counts, seq_length)
        with (
            staged(output, (INDEX_SUFFIX,), overwrite=overwrite) as path,
            MindRecordWriter(path, seq_length, NEWER_COLUMNS if is_newer else LEGACY_COLUMNS) as writer,
        ):
            for some in chain([first], samples):
                writer.write(some)
    return counts


def _too_little(counts: SampleCounts, seq_length: int) -> DataError:
    if not counts.num_tokens:
        return DataError("no text: every TEXT is empty")
    text = f"too little text: {counts.num_tokens} tokens, one sample needs seq_length + 1 = {seq_length + 1}"
    return DataError(f"{text}\n    fix:     more text, or --seq-length {counts.num_tokens - 1} at most")


def _files(output: Path) -> list[Path]:
    return [output, output.with_name(output.name + INDEX_SUFFIX)]
