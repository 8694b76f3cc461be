"""`mindswap inspect`: which operators hold the activation memory."""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

from mindswap.adapters.installed import require_mindformers
from mindswap.adapters.quiet import quiet
from mindswap.check.check import check_document, require_num_layers
from mindswap.commands.caching import cached_result
from mindswap.commands.gathered import with_gathered_weights
from mindswap.config.rank import RankPlacement, place_rank
from mindswap.document.source import load_document
from mindswap.errors import GraphError, PolicyError
from mindswap.graph.lifetime import Peak, find_peak
from mindswap.graph.memory import LayerMemory, OperatorMemory, OperatorNames, measure_layers
from mindswap.graph.model import Node, TensorType
from mindswap.policy.model import Policy
from mindswap.report.memory import MemoryReport, format_memory, memory_to_json
from mindswap.report.tables import format_layers

HELP = "Show what each layer and operator of CONFIG keeps, swaps and recomputes, from the compiled graph; no device."
EXAMPLES = """\
  mindswap inspect configs/llama2_7b/case1_default_swap.yaml
  mindswap inspect llama2_7b.yaml --layers 0,3-5 --by cell
  mindswap inspect llama2_7b.yaml --rank 0
  mindswap inspect llama2_7b.yaml --plot saved.png
  mindswap inspect --json llama2_7b.yaml | jq '.total'

Sizes are of one micro-batch: with --rank as that rank has it, by the strategies that the model sets for
tensor, sequence, context and pipeline parallel; without it on one rank that has the whole model.
What was compiled once is kept in $MINDSWAP_CACHE, or ~/.cache/mindswap.
"""

# What a report is made of, for the cache.
REPORT_CLASSES = (MemoryReport, LayerMemory, OperatorMemory, Peak, Node, TensorType)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument("--layers", metavar="LIST", type=parse_layers, help="only these, e.g. 0,3-5")
    parser.add_argument("--rank", metavar="R", type=int, help="sizes on this rank, layers of its pipeline stage")
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
    placement = None
    if args.rank is not None:
        placement = place_rank(document, args.rank, require_num_layers(document, checked.num_layers, "--rank: "))
    report = cached_result(
        document,
        policy,
        REPORT_CLASSES,
        lambda: inspect_config(config_path, policy, placement),
        not args.no_cache,
        ask="inspect",
        rank=args.rank,
    )
    if args.layers is not None:
        report = _only_layers(report, args.layers)
    if args.plot:
        from mindswap.report.plots import plot_memory

        title = Path(args.config).stem
        plot_memory(report, args.plot, title=f"{title}, {placement.describe()}" if placement else title)
    print(json.dumps(memory_to_json(report), indent=1) if args.json else format_memory(report, args.by))
    return 0


def _only_layers(report: MemoryReport, wanted: frozenset[int]) -> MemoryReport:
    there = [layer.layer_index for layer in report.layers if layer.layer_index is not None]
    if beyond := sorted(wanted.difference(there)):
        raise GraphError(f"--layers: there are layers {format_layers(there)}, not {beyond}")
    return report.only(wanted)


def inspect_config(config_path: str, policy: Policy, placement: RankPlacement | None = None) -> MemoryReport:
    """Compile with and without the policy, and measure what is kept.

    Args:
        config_path: MindFormers YAML.
        policy: what it asks for.
        placement: measure as this rank has it; default is one rank that has the whole model.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    require_mindformers()
    with quiet():
        from mindswap.adapters.mindformers import PATH_TAG, capture

        compiled = capture(config_path, policy, placement=placement)
        plain = capture(config_path, Policy(is_swap_enabled=True), compiled.sample, True, placement)
    compiled, plain = (with_gathered_weights(each, config_path) for each in (compiled, plain))
    names = OperatorNames(compiled.layers, plain.graph, PATH_TAG)
    layers = measure_layers(compiled.graph, plain.graph, names, compiled.sample)
    notes = compiled.notes
    if placement is not None:
        layers = tuple(
            layer if layer.layer_index is None else replace(layer, layer_index=placement.layers[layer.layer_index])
            for layer in layers
        )
        notes = (placement.describe(), *notes)
    return MemoryReport(layers, find_peak(compiled.graph, compiled.sample), notes)


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
