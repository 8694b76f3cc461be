"""Command line of `mindswap check`."""

import argparse
import os
import sys

from mindswap.command_line.options import add_json, add_num_layers, answer
from mindswap.config.nodes import Document
from mindswap.config.parse import MAX_FILE_BYTES, parse_document
from mindswap.config.problem import find_errors
from mindswap.config.source import load_document, with_form
from mindswap.errors import LaunchError
from mindswap.features.check import NameSource, check_config, refuse_unknown_rules
from mindswap.language import translate
from mindswap.report.problems import escape, format_counts, format_problems, problems_to_data
from mindswap.system.streams import print_text, printable

STDIN = "standard input"


EPILOG = """\
examples:
  mindswap check llama2_7b.yaml
  mindswap check --network llama2_7b.yaml        operator names from the network, not from a table
  mindswap check --ignore overlap llama2_7b.yaml
  mindswap check a.yaml b.yaml; cat a.yaml | mindswap check -
  mindswap check --num-layers 80 --json my.yaml | jq .problems
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("configs", metavar="CONFIG", nargs="+", help="one or more YAML files; - reads standard input")
    add_json(parser)
    add_num_layers(parser)
    name_source = parser.add_mutually_exclusive_group()
    name_source.add_argument(
        "--table", action="store_true", help="take operator names from the table of known models only"
    )
    name_source.add_argument(
        "--network",
        action="store_true",
        help="take operator names from the network that MindFormers builds, not from the table",
    )
    parser.add_argument(
        "--ignore",
        metavar="RULE",
        default=[],
        action="append",
        help=(
            "count the warnings of a rule (the word in brackets) without printing them; "
            "also `mindswap: {ignore: [RULE]}` in CONFIG"
        ),
    )


def run(args: argparse.Namespace) -> int:
    """Check each file; 1 if there is an error in any of them.

    Raises:
        LaunchError: if `--json` is used with several files, because the output is one object.
    """
    if args.json and len(args.configs) > 1:
        raise LaunchError("--json accepts a single file\n    fix:     one call for each")
    refuse_unknown_rules("--ignore", args.ignore)
    codes = []
    for number, path in enumerate(args.configs):
        if len(args.configs) > 1:
            print_text(("\n" if number else "") + escape(f"== {path}"))
        codes.append(_check_file(args, path))
    return max(codes)


def _read_stdin() -> Document:
    return with_form(parse_document(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), STDIN))


def _check_file(args: argparse.Namespace, path: str) -> int:
    is_piped = path == "-"
    document = _read_stdin() if is_piped else load_document(path)
    names = NameSource.TABLE if args.table else NameSource.NETWORK if args.network else NameSource.EITHER
    checked = check_config(document, args.num_layers, args.ignore, names, can_build=not is_piped)
    has_errors = bool(find_errors(checked.problems))
    if args.json:
        shared = {
            **problems_to_data(checked.problems),
            "num_ignored": len(checked.ignored),
            "notes": list(checked.notes),
        }
        return answer(args, {"form": checked.form.version, **shared, **checked.data}, "", not has_errors)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    parts = [format_problems(checked.problems, colour)] if checked.problems else []
    parts += [escape(f"note: {note}") for note in checked.notes]
    parts.append(f"{format_counts(checked.problems, checked.ignored)}; read as {checked.form.value}")
    if checked.layers:
        parts += ["", printable(checked.layers)]
    print(translate("\n".join(parts)))  # noqa: T201 with colours: each part has been made printable
    return int(has_errors)
