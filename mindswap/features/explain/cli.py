"""Command line of `mindswap explain`."""

import argparse

from mindswap.command_line.options import add_json, add_num_layers, answer
from mindswap.config.source import load_document
from mindswap.features.explain import explain_config, list_names
from mindswap.features.explain.report import format_paths
from mindswap.report.problems import format_problems, problems_to_data
from mindswap.system.streams import print_text

EPILOG = """\
examples:
  mindswap explain llama2_7b.yaml
  mindswap explain --paths llama2_7b.yaml        # every name for op_swap and select_recompute
  mindswap explain --json llama2_7b.yaml | jq '.layers'

With swap off it shows MindFormers' own recompute: the `Formative ...` lines as MindFormers logs them (but with
single backslashes in names), then the layers. If `mindswap check` finds errors, they are printed instead.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument("--paths", action="store_true", help="list the cells and operators of a layer instead")
    add_num_layers(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Explain one configuration; 1 if it has an error, in which case only a file of MindFormers 2.x is explained."""
    document = load_document(args.config)
    if args.paths:
        paths = list_names(document, args.num_layers)
        return answer(args, {"paths": paths}, format_paths(paths))
    explained = explain_config(document, args.num_layers)
    if explained.problems and not args.json:
        print_text(format_problems(explained.problems), end="\n\n", is_message=explained.has_errors)
    return answer(
        args, {**problems_to_data(explained.problems), **explained.data}, explained.text, not explained.has_errors
    )
