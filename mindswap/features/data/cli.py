"""Command line of `mindswap prepare-data`."""

import argparse
from pathlib import Path
from typing import Any

from mindswap.command_line.options import add_json, answer
from mindswap.features.data import prepare_data
from mindswap.runtime.text.samples import NEWER_COLUMNS, TEXT_SUFFIXES
from mindswap.units import format_bytes

EPILOG = """\
examples:
  mindswap prepare-data book.txt docs/ --output data/train.mindrecord --seq-length 128
  zcat wiki.txt.gz | mindswap prepare-data - --output wiki.mindrecord --seq-length 4096 --tokenizer tokenizer.json

Without --tokenizer the tokens are bytes: pad 0, bos 1, eos 2, byte value + 3; vocab_size 259.
A document (file) ends with eos. Documents are concatenated and split into samples of seq_length + 1 tokens, the
column input_ids of CausalLanguageModelDataset.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="+",
        help=f"a file, a folder (its *{', *'.join(TEXT_SUFFIXES)} files), or - for the standard input",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="X.mindrecord",
        type=Path,
        required=True,
        help="file to write; X.mindrecord.db is written as well",
    )
    parser.add_argument("--seq-length", metavar="N", type=int, required=True, help="seq_length of the model")
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        type=Path,
        help="Hugging Face tokenizer.json or sentencepiece .model (default: bytes)",
    )
    parser.add_argument("--eos-token", metavar="NAME", help="token of the tokenizer file that ends a document")
    parser.add_argument(
        "--newer-model",
        action="store_true",
        help=f"columns of the models with use_legacy: False, {', '.join(NEWER_COLUMNS)}, instead of input_ids alone",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it is there")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; see `mindswap.cli`."""
    words = (args.text, args.output, args.seq_length, args.tokenizer, args.eos_token, args.newer_model, args.overwrite)
    result = prepare_data(*words)
    return answer(args, result, format_result(result))


def format_result(result: dict[str, Any]) -> str:
    """Format the result as text, with the lines for the YAML."""
    length = result["seq_length"] + 1
    num_unused_tokens = result["num_tokens"] - result["num_samples"] * length
    documents = f"{result['num_documents']:,} document{'s' * (result['num_documents'] != 1)}"
    return f"""\
{result["output"]}: {result["num_samples"]:,} samples of {length} tokens, {format_bytes(result["size_on_disk_bytes"])}
from {documents}, {result["num_text_bytes"]:,} bytes, {result["num_tokens"]:,} tokens \
({result["tokenizer"]}); the last {num_unused_tokens} tokens fill no sample
in the YAML:
    train_dataset.data_loader: {{type: MindDataset, dataset_dir: "{result["output"]}"}}
    model.model_config: {{seq_length: {result["seq_length"]}, vocab_size: {result["vocab_size"]}}}  # at least"""
