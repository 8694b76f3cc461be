"""`mindswap inspect`: which operators hold the activation memory."""

import argparse
import json
import os
from pathlib import Path

from mindswap.adapters.installed import require_mindformers
from mindswap.adapters.quiet import quiet
from mindswap.commands.caching import cached_result
from mindswap.errors import GraphError, PolicyError
from mindswap.graph.lifetime import Peak, find_peak
from mindswap.graph.memory import LayerMemory, OperatorMemory, OperatorNames, measure_layers
from mindswap.graph.model import Node, TensorType
from mindswap.policy.check import check_document
from mindswap.policy.model import Policy
from mindswap.policy.yaml_source import load_document
from mindswap.report.memory import MemoryReport, format_memory, memory_to_json

HELP = "Show what each layer and operator of CONFIG keeps, swaps and recomputes, from the compiled graph; no device."
EXAMPLES = """\
  mindswap inspect configs/llama2_7b/case1_default_swap.yaml
  mindswap inspect llama2_7b.yaml --layers 0,3-5 --by cell
  mindswap inspect llama2_7b.yaml --plot saved.png
  mindswap inspect --json llama2_7b.yaml | jq '.total'

Sizes are of one micro-batch on one rank without tensor or pipeline parallel splits.
What was compiled once is kept in $MINDSWAP_CACHE, or ~/.cache/mindswap.
"""

# What a report is made of, for the cache.
REPORT_CLASSES = (MemoryReport, LayerMemory, OperatorMemory, Peak, Node, TensorType)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument("--layers", metavar="LIST", type=parse_layers, help="only these, e.g. 0,3-5")
    parser.add_argument("--by", choices=("layer", "operator", "cell"), default="operator", help="what a row is")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (.png, .svg, .pdf)")
    parser.add_argument("--no-cache", action="store_true", help="compile again, keep nothing")
    parser.add_argument("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """Inspect one configuration."""
    document = load_document(args.config)
    checked = check_document(document, environ=dict(os.environ))
    policy = checked.policy
    if policy is None:
        raise PolicyError(checked.problems)
    config_path = str(Path(args.config).resolve())
    report = cached_result(
        document, policy, REPORT_CLASSES, lambda: inspect_config(config_path, policy), not args.no_cache, ask="inspect"
    )
    if args.layers is not None:
        num_layers = len(report.layers) - 1
        if beyond := sorted(index for index in args.layers if index >= num_layers):
            raise GraphError(f"--layers: the model has layers 0-{num_layers - 1}, not {beyond}")
        report = report.only(args.layers)
    if args.plot:
        from mindswap.report.plots import plot_memory

        plot_memory(report, args.plot, title=Path(args.config).stem)
    print(json.dumps(memory_to_json(report), indent=1) if args.json else format_memory(report, args.by))
    return 0


def inspect_config(config_path: str, policy: Policy) -> MemoryReport:
    """Compile with and without the policy, and measure what is kept.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    require_mindformers()
    with quiet():
        from mindswap.adapters.mindformers import PATH_TAG, capture

        compiled = capture(config_path, policy)
        plain = capture(config_path, Policy(is_swap_enabled=True), compiled.sample, with_tags=True)
    names = OperatorNames(compiled.layers, plain.graph, PATH_TAG)
    layers = measure_layers(compiled.graph, plain.graph, names, compiled.sample)
    return MemoryReport(layers, find_peak(compiled.graph, compiled.sample), compiled.notes)


def parse_layers(text: str) -> frozenset[int]:
    """`0,3-5` as a set of indices.

    Raises:
        argparse.ArgumentTypeError: if it is no such list.
    """
    indices: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{part!r} is no layer; write e.g. 0,3-5")
        indices.update(range(int(first), int(last or first) + 1))
    return frozenset(indices)
