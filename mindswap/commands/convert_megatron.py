"""The Megatron-LM side of `mindswap convert`: options and launch scripts -> sections of a configuration."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindswap.api.convert import to_index_form
from mindswap.api.network import known_or_real
from mindswap.check.check import CheckResult, model_section
from mindswap.commands.options import MOST_LAYERS, number_from
from mindswap.config.nodes import Document
from mindswap.config.pipeline import LayoutError, read_pipeline
from mindswap.config.problem import Level, Location, Problem, find_errors, sort_problems
from mindswap.config.render import COMMAND_LINE
from mindswap.errors import LaunchError, PolicyError
from mindswap.policy.applied import EXCLUDE
from mindswap.policy.cell_tree import LayerTrees, load_layer_trees
from mindswap.policy.convert import policy_sections
from mindswap.policy.megatron.options import OPTIONS, RULE, MegatronOptions, read_options, read_tokens
from mindswap.policy.megatron.policy import policy_of_megatron
from mindswap.policy.megatron.script import ScriptError, find_command, option_line
from mindswap.policy.megatron.validity import place_layers
from mindswap.policy.model import Policy
from mindswap.policy.read import find_num_layers
from mindswap.policy.read_parts import is_empty

# What all sides of `mindswap convert` share: what is asked for, what comes out, what both look up in a model.


@dataclass(frozen=True)
class Request:
    """Request of a conversion."""

    text: str  # the file as it is; empty without CONFIG
    document: Document  # the same, read; without a root without CONFIG
    file: str  # its name


@dataclass(frozen=True)
class Rewritten:
    """Result of the conversion."""

    text: str  # the whole configuration
    problems: Sequence[Problem]  # of the conversion and of its result
    data: Mapping[str, object]  # what `--json` says besides


def target_of(args: argparse.Namespace) -> str | None:
    """File of the result; None for the terminal."""
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


# Models whose operator names can be used without CONFIG.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"arch": {"type": "LlamaForCausalLM"}, "model_config": {"use_flash_attention": True}},
    "qwen3": {"model_config": {"architectures": ["Qwen3ForCausalLM"]}},
}


@dataclass(frozen=True)
class Result:
    """Text to write."""

    sections: dict[str, dict[str, Any]]  # the sections that change
    problems: tuple[Problem, ...]  # warnings
    comments: dict[str, str]  # what to put above a section
    num_layers: int  # layers of the model


def convert_megatron(args: argparse.Namespace, request: Request) -> Result:
    """The sections for Megatron's options, and for the file of the request.

    Raises:
        PolicyError: Megatron would refuse the options, or the model has no counterpart.
        LaunchError: the options and the file do not go together.
    """
    options, problems = _read_megatron(args)
    options = _with_config(options, request.document)
    use_legacy = args.family == "llama" if request.document.root is None else request.document.is_legacy
    trees = _find_trees(args, request, options)
    made = policy_of_megatron(options, use_legacy, trees, args.backward_prefetch)
    unread = {problem.subject for problem in problems}
    found = (problem for problem in made.problems if problem.subject not in unread)
    problems = sort_problems((*problems, *found))
    if made.policy is None or find_errors(problems):
        raise PolicyError(problems)
    assert options.num_layers is not None
    policy, kept, dropped = _with_present(made.policy, options, request.document, trees)
    sections = policy_sections(policy, request.document.data(), options.num_layers)
    for name in kept:
        sections.pop(name, None)
    summary = {
        "recompute_config": [line for line in made.summary if not line.startswith("offload")],
        "swap_config": [line for line in made.summary if line.startswith("offload")],
    }
    comments = {name: "\n".join(["from Megatron-LM", *lines]) for name, lines in summary.items() if lines}
    problems = sort_problems((*problems, *dropped, *_compare_pipelines(options, request.document)))
    return Result(sections, problems, comments, options.num_layers)


def _read_megatron(args: argparse.Namespace) -> tuple[MegatronOptions, tuple[Problem, ...]]:
    """The options of the script, with those of the command line in their place."""
    given = {name: getattr(args, option.field) for name, option in OPTIONS.items() if getattr(args, option.field)}
    texts = {
        name: [] if value is True else [value] if isinstance(value, str) else value for name, value in given.items()
    }
    own, problems = read_options(texts, dict.fromkeys(texts, Location(COMMAND_LINE)))
    if args.from_args is None:
        return own, problems
    name = "standard input" if args.from_args == "-" else args.from_args
    try:
        script = sys.stdin.read() if args.from_args == "-" else Path(name).read_text("utf-8", "replace")
        command = find_command(script)
    except OSError as error:
        raise LaunchError(f"{name}: cannot be read: {error.strerror}") from error
    except ScriptError as error:
        place = Location(name, error.line, 1 if error.line else 0)
        raise PolicyError([Problem(place, RULE, Level.ERROR, f"the script {error}")]) from None
    tokens = {option: values for option, values in read_tokens(command.words).items() if option not in texts}
    places = {option: Location(name, option_line(script, option), 1) for option in tokens}
    read, script_problems = read_options(tokens, places)
    unknown = tuple(
        Problem(
            Location(name), RULE, Level.WARNING, f"{word}: what it stands for is not known without a run", subject=word
        )
        for word in command.unknown
    )
    return read.override(own), (*problems, *script_problems, *unknown)


def _with_config(options: MegatronOptions, document: Document) -> MegatronOptions:
    """The layers of CONFIG where Megatron's are not given."""
    stated = find_num_layers(document)
    if stated is not None and options.num_layers not in (None, stated):
        raise LaunchError(f"--num-layers {options.num_layers}: {document.file} has {stated} layers")
    return options if stated is None else replace(options, num_layers=stated)


def _find_trees(args: argparse.Namespace, request: Request, options: MegatronOptions) -> LayerTrees | None:
    """The layers of the model: from a table, else from the real network; only module names need them."""
    num_layers = options.num_layers or 1
    if request.document.root is None:
        return load_layer_trees(dict(FAMILIES[args.family]), num_layers)
    return known_or_real(args.config, table_trees(request.document, num_layers), num_layers)


def _with_present(
    policy: Policy, options: MegatronOptions, document: Document, trees: LayerTrees | None
) -> tuple[Policy, tuple[str, ...], tuple[Problem, ...]]:
    """The policy with what CONFIG says where Megatron's options say nothing, the sections that stay, warnings."""
    assert options.num_layers is not None
    is_on = document.value("swap_config", "swap") is True
    kept = ("swap_config",) if is_on and not options.fine_grained_activation_offloading else ()
    if options.granularity is not None or document.root is None:
        return policy, kept, ()
    if is_on:
        return policy, ("recompute_config", "mindswap"), ()
    counted = to_index_form(document, options.num_layers, trees)
    return replace(counted.policy, op_swap=policy.op_swap), kept, counted.problems


def _compare_pipelines(options: MegatronOptions, document: Document) -> tuple[Problem, ...]:
    """`block` and `uniform` count by Megatron's stages; another pipeline in CONFIG makes other stages of them."""
    if options.granularity != "full" or document.root is None or options.num_layers is None:
        return ()
    try:
        here = read_pipeline(document).layout(options.num_layers)
    except LayoutError:
        return ()
    if here.sizes == place_layers(options, options.num_layers).sizes:
        return ()
    node = document.get("parallel_config", "pipeline_stage")
    place = node.location if node is not None else Location(document.file)
    message = "parallel_config.pipeline_stage: the stages are not those of Megatron's options, whose layers are written"
    fix = "--pipeline-model-parallel-size and --num-virtual-stages-per-pipeline-rank as in CONFIG"
    return (Problem(place, "convert", Level.WARNING, message, fix=fix),)
