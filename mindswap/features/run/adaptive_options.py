"""Command line of `mindswap run --adaptive-memory-optimization`."""

import argparse
from pathlib import Path

from mindswap.command_line.options import number_from
from mindswap.command_line.parser import Parser, say, write_out
from mindswap.features.adaptive import format_summary, train_adaptively
from mindswap.language import translate
from mindswap.runtime.training_command import ADAPTIVE_FLAG
from mindswap.system.streams import printable

USAGE = f"mindswap run {ADAPTIVE_FLAG} [OPTIONS] [--] COMMAND"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument(
        "--adaptive-memory-optimization",
        action="store_true",
        help="plan for the available memory, and replan when it runs out",
    )
    parser.add_argument("--memory", metavar="SIZE", default="auto", help="memory budget of each card: auto, 54GiB")
    parser.add_argument(
        "--run-dir", metavar="DIR", type=Path, help="folder for state and logs (the --log_dir of msrun)"
    )
    parser.add_argument(
        "--max-restarts", metavar="N", type=number_from(0), default=8, help="maximum number of restarts (8)"
    )
    parser.add_argument(
        "--measured-steps",
        metavar="N",
        type=number_from(0),
        default=10,
        help="steps after which a plan is evaluated (10)",
    )
    parser.add_argument("--ray", metavar="ADDRESS", help="train on the nodes of a Ray cluster: its address, or auto")
    parser.add_argument("--nodes", metavar="N", type=number_from(1), help="number of nodes of the cluster to train on")
    parser.add_argument(
        "--spare", metavar="K", type=number_from(0), default=0, help="spare nodes that replace lost ones (0)"
    )
    parser.add_argument(
        "--replace", action="store_true", dest="is_replaced", help="plan instead of the swap and recompute in the YAML"
    )


def run_adaptive(args: argparse.Namespace, command_words: list[str]) -> int:
    """Run a training command with the options of `split_words`.

    Raises:
        MindswapError: it cannot be started.
    """
    options = {name: value for name, value in vars(args).items() if name != ADAPTIVE_FLAG[2:].replace("-", "_")}
    code, state = train_adaptively(command_words, say, **options)
    write_out(translate(printable(f"{format_summary(state)}\n")).encode())
    return code


def build_options_parser() -> Parser:
    """Return the parser of the options of an adaptive run."""
    parser = Parser(prog="mindswap run", usage=USAGE, allow_abbrev=False)
    add_arguments(parser)
    return parser


def split_words(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split words into options of the adaptive run and the training command, with or without `--` between them."""
    parser = build_options_parser()
    end = words.index("--") if "--" in words else len(words)
    args, unparsed = parser.parse_known_args(words[:end])
    is_command = bool(unparsed) and (unparsed[0] == words[0] or not unparsed[0].startswith("--"))
    if end == len(words) or is_command or unparsed == words[:end]:
        return args, [*unparsed, *words[end:]]
    if unparsed:  # whatever is wrong before `--` is an option of mindswap
        parser.error(f"unrecognized arguments: {' '.join(unparsed)}")
    return args, words[end + 1 :]
