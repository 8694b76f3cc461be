"""`mindswap explain`: what a configuration does in each layer, and which names it could use."""

import argparse
import os
import sys
from typing import Any

from mindswap.api.trees import has_mindformers, known_or_real
from mindswap.check.check import CheckResult, check_document, require_num_layers
from mindswap.check.check_2x import check_pynative
from mindswap.commands.options import add_common
from mindswap.config.model_folder import FOLDER_RULE
from mindswap.config.nodes import Document
from mindswap.config.source import load_document
from mindswap.errors import GraphError, PolicyError
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.expand import expand_stage_recompute
from mindswap.policy.mindformers_2x.form import Form, find_form
from mindswap.report.answer import answer_text
from mindswap.report.explain import (
    explain,
    explanation_to_json,
    format_explanation,
    format_paths,
    list_paths,
    list_paths_2x,
)
from mindswap.report.problems import format_problems, problems_to_data
from mindswap.report.pynative import effect_to_json, format_effect

HELP = "Say what CONFIG recomputes and swaps in each layer, stage and chunk; nothing is built or run."
EXAMPLES = """\
  mindswap explain llama2_7b.yaml
  mindswap explain --paths llama2_7b.yaml        # every name for op_swap and select_recompute
  mindswap explain --json llama2_7b.yaml | jq '.layers'

With swap off it shows MindFormers' own recompute: the `Formative ...` lines as MindFormers logs them (but with
single backslashes in names), then the layers. Where `mindswap check` finds errors, those are printed instead.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument("--paths", action="store_true", help="list the cells and operators of a layer instead")
    add_common(parser, "--num-layers", "--json")


def run(args: argparse.Namespace) -> int:
    """Explain one configuration; 1 if there is an error, which only a file of MindFormers 2.x is explained with."""
    document = load_document(args.config)
    if find_form(document) is Form.PYNATIVE:
        return _explain_2x(args, document)
    checked = check_document(document, args.num_layers, environ=dict(os.environ))
    if args.paths:
        return _print_paths(args, list_paths(_find_trees(args.config, checked)))
    policy = checked.require_policy()
    if checked.is_swap_enabled:
        explanation = explain(policy, checked.num_layers, checked.trees)
    else:
        if any(problem.rule == FOLDER_RULE for problem in document.problems):
            require_num_layers(document, checked.num_layers)
        if checked.num_layers is None:
            raise GraphError(
                "the configuration does not say how many layers the model has, so counts per stage mean nothing\n"
                "    fix: mindswap explain --num-layers N"
            )
        stages = expand_stage_recompute(document, checked.num_layers)
        explanation = explain(stages.policy, checked.num_layers, checked.trees, stages)
    if args.json:
        data = {**problems_to_data(checked.problems), **explanation_to_json(explanation)}
        print(answer_text("explain", data, True))
        return 0
    if checked.problems:
        print(format_problems(checked.problems), end="\n\n")
    print(format_explanation(explanation))
    return 0


def _explain_2x(args: argparse.Namespace, document: Document) -> int:
    """What each layer swaps and recomputes, and what upstream drops; also where there are errors."""
    checked = check_pynative(document, args.num_layers)
    if document.root is None:
        raise PolicyError(checked.problems)
    model = checked.effect.model
    if args.paths:
        if model is None:
            raise GraphError("no table has this model in PyNative mode, so the names of its cells are not known")
        return _print_paths(args, list_paths_2x(model))
    has_errors = bool(checked.errors)
    if args.json:
        data = {**problems_to_data(checked.problems), **effect_to_json(checked.effect, checked.problems)}
        print(answer_text("explain", data, not has_errors))
        return int(has_errors)
    if checked.problems:
        print(format_problems(checked.problems), end="\n\n", file=sys.stderr if has_errors else sys.stdout)
    print(format_effect(checked.effect, has_errors))
    return int(has_errors)


def _print_paths(args: argparse.Namespace, paths: list[dict[str, Any]]) -> int:
    print(answer_text("explain", {"paths": paths}, True) if args.json else format_paths(paths))
    return 0


def _find_trees(path: str, checked: CheckResult) -> LayerTrees:
    """The table of the model family, else the real network."""
    trees = known_or_real(path, checked.trees, checked.num_layers)
    if trees is not None:
        return trees
    if not has_mindformers():
        raise GraphError("no table has this model; run this where MindFormers is installed")
    raise GraphError("the configuration does not say how many layers the model has; use --num-layers N")
