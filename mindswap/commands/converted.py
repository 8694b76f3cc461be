"""What all sides of `mindswap convert` share: what is asked for, what comes out, what both look up in a model."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mindswap.api.trees import known_or_real
from mindswap.check.check import CheckResult, model_section
from mindswap.commands.options import MOST_LAYERS, number_from
from mindswap.config.nodes import Document
from mindswap.config.problem import Problem
from mindswap.errors import LaunchError
from mindswap.policy.applied import EXCLUDE
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.families import load_layer_trees
from mindswap.policy.read_parts import is_empty


@dataclass(frozen=True)
class Request:
    """What is to be converted."""

    text: str  # the file as it is; empty without CONFIG
    document: Document  # the same, read; without a root without CONFIG
    file: str  # its name


@dataclass(frozen=True)
class Rewritten:
    """What came out."""

    text: str  # the whole configuration
    problems: Sequence[Problem]  # of the conversion and of its result
    data: Mapping[str, object]  # what `--json` says besides


def target_of(args: argparse.Namespace) -> str | None:
    """Where the result goes; None for the terminal."""
    target = args.output or (args.config if args.in_place else None)
    return str(target) if target else None


def num_layers_of(args: argparse.Namespace, document: Document, stated: int | None) -> int:
    """Layers of the model: what `--num-layers` says, or what is `stated` in the file.

    Raises:
        LaunchError: neither says it, or both and not the same.
    """
    try:
        given = number_from(1, MOST_LAYERS)(args.num_layers) if args.num_layers else None
    except argparse.ArgumentTypeError as error:
        raise LaunchError(f"--num-layers: {error}") from None
    if stated is not None and given not in (None, stated):
        raise LaunchError(f"--num-layers {given}: {document.file} has {stated} layers")
    if (found := given or stated) is None:
        raise LaunchError("the number of layers is not known\n    fix:     --num-layers N")
    return found


def table_trees(document: Document, num_layers: int) -> LayerTrees | None:
    """The layers of the model of a file as a table has them; None if none has it."""
    return load_layer_trees(model_section(document), num_layers)


def known_trees(path: str, document: Document, checked: CheckResult) -> LayerTrees | None:
    """The layers from a table, else, where something is excluded from recomputation, from the real network."""
    if is_empty(document.get("recompute_config", EXCLUDE)):
        return checked.trees
    return known_or_real(path, checked.trees, checked.num_layers)
