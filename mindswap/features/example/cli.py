"""Write a small configuration and a text to try everything with, on a CPU.

examples:
  mindswap example trial

A Llama of four layers with swap, and text of Python's own help. What it prints are the commands to go on with.

options:
  FOLDER  where to write them; made if it is not there
"""

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


ARGUMENTS = {
    "FOLDER": {"type": Path},
}


def run(args: argparse.Namespace) -> int:
    """Write both files."""
    write_example(args.folder)
    print_text(NEXT.format(folder=args.folder, name=NAME, text=TEXT))
    return 0
