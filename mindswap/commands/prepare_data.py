"""Turn text into a MindRecord that MindFormers trains on.

examples:
  mindswap prepare-data book.txt docs/ --output data/train.mindrecord --seq-length 128
  zcat wiki.txt.gz | mindswap prepare-data - --output wiki.mindrecord --seq-length 4096 --tokenizer tokenizer.json

Without --tokenizer the tokens are bytes: pad 0, bos 1, eos 2, byte value + 3; vocab_size 259.
A document (file) ends with eos; documents follow each other and are cut into samples of
seq_length + 1 tokens, the column input_ids of CausalLanguageModelDataset.
"""

import argparse
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tqdm import tqdm

from mindswap.adapters.mindrecord import INDEX_SUFFIX, MAX_SAMPLE_LENGTH, MindRecordWriter, require_mindspore
from mindswap.commands.options import add_common, option
from mindswap.errors import DataError
from mindswap.files import refuse_existing, staged
from mindswap.report.problems import answer_text
from mindswap.training.data.samples import (
    LEGACY_COLUMNS,
    NEWER_COLUMNS,
    TEXT_SUFFIXES,
    SampleCounts,
    TextSource,
    find_text_sources,
    read_samples,
)
from mindswap.training.data.tokenizing import ByteTokenizer, Tokenizer, load_tokenizer
from mindswap.units import format_bytes

# Both from MindFormers/MindSpore: CausalLanguageModelDataset looks for this name, FileWriter refuses these characters.
_NAME = re.compile(r".*mindrecord\d*", re.DOTALL)
_FORBIDDEN = set("\\:*?\"<>|`&;'")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "text",
        nargs="+",
        metavar="TEXT",
        help=f"a file, a folder (its *{', *'.join(TEXT_SUFFIXES)} files), or - for the standard input",
    )
    option(parser, "-o --output X.mindrecord", "file to write; X.mindrecord.db comes with it", Path, required=True)
    option(parser, "--seq-length N", "seq_length of the model", int, required=True)
    option(parser, "--tokenizer FILE", "Hugging Face tokenizer.json or sentencepiece .model (default: bytes)", Path)
    option(parser, "--eos-token NAME", "token of the tokenizer file that ends a document")
    option(
        parser,
        "--newer-model",
        f"columns of the models with use_legacy: False, {', '.join(NEWER_COLUMNS)}, instead of input_ids alone",
    )
    option(parser, "--overwrite", "replace the output if it is there")
    add_common(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Run the command; see `mindswap.cli`."""
    if args.eos_token is not None and args.tokenizer is None:
        raise DataError("--eos-token names a token of --tokenizer FILE; byte tokens have eos 2")
    if not 1 <= args.seq_length < MAX_SAMPLE_LENGTH:
        raise DataError(f"--seq-length {args.seq_length}\n    allowed: 1 to {MAX_SAMPLE_LENGTH - 1}")
    _check_output(args.output, args.overwrite)
    sources = find_text_sources(args.text)
    tokenizer = ByteTokenizer() if args.tokenizer is None else load_tokenizer(args.tokenizer, args.eos_token)
    require_mindspore()
    with _terminate_like_ctrl_c():
        counts = _write_mindrecord(args, sources, tokenizer)
    result = {
        "output": str(args.output),
        "seq_length": args.seq_length,
        "vocab_size": tokenizer.vocab_size,
        "eos_token_id": tokenizer.eos_id,
        "tokenizer": tokenizer.name,
        "num_samples": counts.num_samples,
        "num_tokens": counts.num_tokens,
        "num_documents": counts.num_documents,
        "num_text_bytes": counts.num_bytes,
        "size_on_disk_bytes": sum(path.stat().st_blocks for path in _files(args.output)) * 512,
    }
    print(answer_text("prepare-data", result, True) if args.json else format_result(result))
    return 0


def _check_output(output: Path, overwrite: bool) -> None:
    """Refuse names that MindFormers or MindSpore would, and files that are there."""
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


def _write_mindrecord(args: argparse.Namespace, sources: list[TextSource], tokenizer: Tokenizer) -> SampleCounts:
    """Read, tokenise and write everything; the output appears at the end, complete."""
    counts, seq_length = SampleCounts(), args.seq_length
    sizes = [source.size_bytes for source in sources if source.size_bytes is not None]
    with tqdm(
        total=sum(sizes) if len(sizes) == len(sources) else None,
        unit="B",
        unit_scale=True,
        desc=args.output.name,
        disable=not sys.stderr.isatty(),
    ) as progress:
        samples = read_samples(sources, tokenizer, seq_length + 1, counts, progress.update)
        first = next(samples, None)
        if first is None:
            raise _too_little(counts, seq_length)
        with (
            staged(args.output, (INDEX_SUFFIX,), overwrite=args.overwrite) as path,
            MindRecordWriter(path, seq_length, NEWER_COLUMNS if args.newer_model else LEGACY_COLUMNS) as writer,
        ):
            for some in chain([first], samples):
                writer.write(some)
    return counts


def _too_little(counts: SampleCounts, seq_length: int) -> DataError:
    if not counts.num_tokens:
        return DataError("no text: every TEXT is empty")
    text = f"too little text: {counts.num_tokens} tokens, one sample needs seq_length + 1 = {seq_length + 1}"
    return DataError(f"{text}\n    fix:     more text, or --seq-length {counts.num_tokens - 1} at most")


def format_result(result: dict[str, Any]) -> str:
    """The result as text, with the lines for the YAML."""
    length = result["seq_length"] + 1
    left = result["num_tokens"] - result["num_samples"] * length
    documents = f"{result['num_documents']:,} document{'s' * (result['num_documents'] != 1)}"
    return f"""\
{result["output"]}: {result["num_samples"]:,} samples of {length} tokens, {format_bytes(result["size_on_disk_bytes"])}
from {documents}, {result["num_text_bytes"]:,} bytes, {result["num_tokens"]:,} tokens \
({result["tokenizer"]}); the last {left} tokens fill no sample
in the YAML:
    train_dataset.data_loader: {{type: MindDataset, dataset_dir: "{result["output"]}"}}
    model.model_config: {{seq_length: {result["seq_length"]}, vocab_size: {result["vocab_size"]}}}  # at least"""


def _files(output: Path) -> list[Path]:
    return [output, output.with_name(output.name + INDEX_SUFFIX)]


@contextmanager
def _terminate_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that the temporary folder goes."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
