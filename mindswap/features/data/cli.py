"""Turn text into a MindRecord that MindFormers trains on.

examples:
  mindswap prepare-data book.txt docs/ --output data/train.mindrecord --seq-length 128
  zcat wiki.txt.gz | mindswap prepare-data - --output wiki.mindrecord --seq-length 4096 --tokenizer tokenizer.json

Without --tokenizer the tokens are bytes: pad 0, bos 1, eos 2, byte value + 3; vocab_size 259.
A document (file) ends with eos; documents follow each other and are cut into samples of
seq_length + 1 tokens, the column input_ids of CausalLanguageModelDataset.

options:
  TEXT...                 a file, a folder (its {suffixes} files), or - for the standard input
  -o --output X.mindrecord  file to write; X.mindrecord.db comes with it
  --seq-length N          seq_length of the model
  --tokenizer FILE        Hugging Face tokenizer.json or sentencepiece .model (default: bytes)
  --eos-token NAME        token of the tokenizer file that ends a document
  --newer-model           columns of the models with use_legacy: False, {columns}, instead of input_ids alone
  --overwrite             replace the output if it is there
  --json
"""

import argparse
from pathlib import Path
from typing import Any

from mindswap.command_line.options import answer
from mindswap.features.data import prepare_data
from mindswap.runtime.text.samples import NEWER_COLUMNS, TEXT_SUFFIXES
from mindswap.units import format_bytes

ARGUMENTS = {
    "--output": {"type": Path, "required": True},
    "--seq-length": {"type": int, "required": True},
    "--tokenizer": {"type": Path},
}
WORDS = {"suffixes": f"*{', *'.join(TEXT_SUFFIXES)}", "columns": ", ".join(NEWER_COLUMNS)}


def run(args: argparse.Namespace) -> int:
    """Run the command; see `mindswap.cli`."""
    words = (args.text, args.output, args.seq_length, args.tokenizer, args.eos_token, args.newer_model, args.overwrite)
    result = prepare_data(*words)
    return answer(args, result, format_result(result))


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
