"""Write a small configuration and a text to try everything with, on a CPU.

examples:
  mindswap example trial

A Llama of four layers with swap, and text of Python's own help. What it prints are the commands to go on with.

options:
  FOLDER  where to write them; made if it is not there
"""

import argparse
from pathlib import Path

from mindswap.files import refuse_existing, write_new

NAME, TEXT, NUM_CHARACTERS = "llama2_small.yaml", "text.txt", 4000
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
    from pydoc_data.topics import topics

    config = Path(__file__).parents[1] / "data" / "example" / NAME
    refuse_existing([args.folder / NAME, args.folder / TEXT])
    write_new(args.folder / NAME, config.read_text("utf-8"))
    write_new(args.folder / TEXT, "\n\n".join(topics.values())[:NUM_CHARACTERS])
    print(NEXT.format(folder=args.folder, name=NAME, text=TEXT))
    return 0
