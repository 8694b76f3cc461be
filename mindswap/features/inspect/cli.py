"""Command line of `mindswap inspect`."""

import argparse

from mindswap.command_line.options import add_json, add_no_cache, add_plot, add_rank, answer
from mindswap.errors import GraphError
from mindswap.features.inspect import inspect_memory
from mindswap.features.inspect.report import format_memory, memory_to_json
from mindswap.policy.wording import name_indices


def run(args: argparse.Namespace) -> int:
    """Inspect one configuration."""
    inspection = inspect_memory(args.config, args.rank, not args.no_cache)
    report = inspection.report
    if args.layers is not None:
        layer_indices = [layer.layer_index for layer in report.layers if layer.layer_index is not None]
        if missing := sorted(args.layers.difference(layer_indices)):
            raise GraphError(f"--layers: there are {name_indices('layer', layer_indices)}, not {missing}")
        report = report.only(args.layers)
    if args.plot:
        from mindswap.features.inspect.plots import plot_memory

        plot_memory(report, args.plot, title=inspection.title, by=args.by)
    return answer(args, memory_to_json(report), format_memory(report, args.by))


def parse_layers(text: str) -> frozenset[int]:
    """Parse a list of layers such as `0,3-5`; raises argparse.ArgumentTypeError if it is invalid."""
    indices: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{part!r} is not a layer; write e.g. 0,3-5")
        if int(last or first) < int(first):
            raise argparse.ArgumentTypeError(f"{part!r} names no layer; write {last.strip()}-{first}")
        indices.update(range(int(first), int(last or first) + 1))
    return frozenset(indices)


EPILOG = """\
examples:
  mindswap inspect configs/llama2_7b/case1_default_swap.yaml
  mindswap inspect llama2_7b.yaml --layers 0,3-5 --by cell
  mindswap inspect llama2_7b.yaml --rank 0
  mindswap inspect llama2_7b.yaml --plot saved.png
  mindswap inspect --json llama2_7b.yaml | jq '.total'

Sizes are of one micro-batch. With --rank they are those of this rank, sharded by the strategies of the model for
tensor, sequence, context and pipeline parallel; without it, those of one rank with the full model.
Compiled graphs are cached in $MINDSWAP_CACHE, or ~/.cache/mindswap. If that folder is not writable, or other users can
write to it, the cache is mindswap-user-UID in the temporary folder. A $MINDSWAP_CACHE of that kind is not used.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument(
        "config", metavar="CONFIG", help="YAML of MindFormers, or a step that `mindswap trace` recorded (.json)"
    )
    parser.add_argument("--layers", metavar="LIST", type=parse_layers, help="only these layers, e.g. 0,3-5")
    add_rank(parser)
    parser.add_argument(
        "--by",
        default="operator",
        choices=("layer", "operator", "cell"),
        help="print one row per layer, operator or cell",
    )
    add_plot(parser)
    add_no_cache(parser)
    add_json(parser)
