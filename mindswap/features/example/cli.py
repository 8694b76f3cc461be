"""Command line of `mindswap example`."""

import argparse
from pathlib import Path

from mindswap.features.example import NAME, TEXT, write_example
from mindswap.system.streams import print_text

NEXT = """\
written: {folder}/{name} and {folder}/{text}; next:
  cd {folder}
  mindswap check {name}
  mindswap simulate {name}
  mindswap prepare-data {text} --output text.mindrecord --seq-length 64
  mindswap run --config {name} --run_mode train --train_dataset_dir text.mindrecord"""


EPILOG = """\
examples:
  mindswap example trial

Writes a Llama of four layers with swap, and a text from Python's own help, and prints the next commands.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder for the files; created if needed")


def run(args: argparse.Namespace) -> int:
    """Write configuration and text."""
    write_example(args.folder)
    print_text(NEXT.format(folder=args.folder, name=NAME, text=TEXT))
    return 0
