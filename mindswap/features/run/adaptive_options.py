"""`mindswap run --adaptive-memory-optimization`: plan, train, watch, and plan again; also for the launcher script.

options:
  --adaptive-memory-optimization  plan for the memory there is, and again when it runs out
  --memory SIZE       of each card: auto, 54GiB
  --run-dir DIR       for state and logs (the --log_dir of msrun)
  --max-restarts N    starts after the first one (8)
  --measured-steps N  steps that judge a plan (10)
  --ray ADDRESS       train on the nodes of a Ray cluster: its address, or auto
  --nodes N           nodes of the cluster that train
  --spare K           more nodes, to take the place of lost ones (0)
  --replace           plan instead of the swap and recompute in the YAML
"""

import argparse
from pathlib import Path
from typing import Any

from mindswap.command_line.options import add_options, number_from
from mindswap.command_line.parser import Parser, say, write_out
from mindswap.features.adaptive import train_adaptively
from mindswap.features.adaptive.report import format_summary
from mindswap.runtime.training_command import ADAPTIVE_FLAG
from mindswap.system.streams import printable

USAGE = f"mindswap run {ADAPTIVE_FLAG} [OPTIONS] [--] COMMAND"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "--memory": {"default": "auto"},
    "--run-dir": {"type": Path},
    "--max-restarts": {"type": number_from(0), "default": 8},
    "--measured-steps": {"type": number_from(0), "default": 10},
    "--nodes": {"type": number_from(1)},
    "--spare": {"type": number_from(0), "default": 0},
    "--replace": {"action": "store_true", "dest": "is_replaced"},
}


def run_adaptive(args: argparse.Namespace, command_words: list[str]) -> int:
    """Run a training command with the options of `split_words`.

    Raises:
        MindswapError: it cannot be started.
    """
    options = {name: value for name, value in vars(args).items() if name != ADAPTIVE_FLAG[2:].replace("-", "_")}
    code, state = train_adaptively(command_words, say, **options)
    write_out(printable(f"{format_summary(state)}\n").encode())
    return code


def split_words(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options of the adaptive run, and the training command, with or without `--` between them."""
    parser = Parser(prog="mindswap run", usage=USAGE, allow_abbrev=False)
    add_options(parser, (__doc__ or "").partition("options:\n")[2], ARGUMENTS)
    end = words.index("--") if "--" in words else len(words)
    args, rest = parser.parse_known_args(words[:end])
    if end == len(words) or rest and (rest[0] == words[0] or not rest[0].startswith("--")) or rest == words[:end]:
        return args, [*rest, *words[end:]]
    if rest:  # whatever is wrong before `--` is an option of mindswap
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args, words[end + 1 :]
