"""`mindswap check`: every problem of a configuration, then what it asks for, layer by layer."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindswap.api.trees import has_mindformers, read_real_trees
from mindswap.check.check import MODEL_RULES, CheckResult, check_document
from mindswap.check.check_2x import check_pynative
from mindswap.commands.options import add_common
from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.problem import Problem, find_errors, sort_problems
from mindswap.config.source import load_document
from mindswap.errors import LaunchError
from mindswap.policy.mindformers_2x.form import Form, find_form
from mindswap.report.answer import answer_text
from mindswap.report.policy_text import format_policy, group_layers
from mindswap.report.problems import escape, format_counts, format_problems, problems_to_data
from mindswap.report.pynative import effect_to_json, format_layers_2x, pynative_notes
from mindswap.simulator.cost.settings import read_cost_settings

HELP = "Check the swap and recompute settings of a MindFormers YAML file; nothing is run."
EXAMPLES = """\
  mindswap check llama2_7b.yaml
  mindswap check --network llama2_7b.yaml        build the network to learn its operator names, whatever a table says
  mindswap check --ignore overlap llama2_7b.yaml
  mindswap check a.yaml b.yaml; cat a.yaml | mindswap check -
  mindswap check --num-layers 80 --json my.yaml | jq .problems
"""
STDIN = "standard input"


@dataclass(frozen=True)
class _Outcome:
    """What there is to say of a file, in either form."""

    form: Form  # of the file
    # problems, ignored: found; and those that only count
    problems: tuple[Problem, ...]
    ignored: tuple[Problem, ...]
    notes: Sequence[str]  # what could not be looked at
    layers: str  # what happens in each layer, as text; "" where that is not known
    data: Mapping[str, Any]  # what `--json` says besides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mindswap check`."""
    parser.add_argument(
        "configs", metavar="CONFIG", nargs="+", help="the YAML file, or several; - reads standard input"
    )
    add_common(parser, "--json", "--num-layers")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--table", action="store_true", help="take operator names from a table of models only")
    source.add_argument(
        "--network", action="store_true", help="take them from the network that MindFormers builds, not from a table"
    )
    parser.add_argument(
        "--ignore",
        action="append",
        metavar="RULE",
        default=[],
        help="only count the warnings of a rule (the word in brackets); also `mindswap: {ignore: [RULE]}` in CONFIG",
    )


def run(args: argparse.Namespace) -> int:
    """Check each file; 1 if there is an error in any of them.

    Raises:
        LaunchError: `--json` with several files: it is one object.
    """
    if args.json and len(args.configs) > 1:
        raise LaunchError("--json is of one file\n    fix:     one call for each")
    codes = []
    for number, path in enumerate(args.configs):
        if len(args.configs) > 1:
            print(("\n" if number else "") + escape(f"== {path}"))
        codes.append(_check_one(args, path))
    return max(codes)


def _check_one(args: argparse.Namespace, path: str) -> int:
    document = parse_document(sys.stdin.buffer.read(), STDIN) if path == "-" else load_document(path)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path or a key may not exist in the terminal's encoding
    is_2x = find_form(document) is Form.PYNATIVE
    found = _check_2x(args, document) if is_2x else _check_1_9(args, document, path)
    has_errors = bool(find_errors(found.problems))
    if args.json:
        shared = {**problems_to_data(found.problems), "num_ignored": len(found.ignored), "notes": list(found.notes)}
        print(answer_text("check", {"form": "2.x" if is_2x else "1.9", **shared, **found.data}, not has_errors))
        return int(has_errors)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    parts = [format_problems(found.problems, colour)] if found.problems else []
    parts += [escape(f"note: {note}") for note in found.notes]
    parts.append(f"{format_counts(found.problems, found.ignored)}; read as {found.form.value}")
    print("\n".join([*parts, *(["", found.layers] if found.layers else [])]))
    return int(has_errors)


def _check_2x(args: argparse.Namespace, document: Document) -> _Outcome:
    checked = check_pynative(document, args.num_layers, silence=args.ignore)
    effect, problems = checked.effect, checked.problems
    layers = format_layers_2x(effect) if not checked.errors and effect.layers else ""
    data = effect_to_json(effect, problems)
    return _Outcome(Form.PYNATIVE, problems, checked.ignored, pynative_notes(effect), layers, data)


def _check_1_9(args: argparse.Namespace, document: Document, path: str) -> _Outcome:
    result, notes = _with_real_names(args, document, path)
    # Also what is wrong with the figures of the simulated device, which rules of policies do not know.
    known = {(problem.location, problem.rule) for problem in result.problems}
    found = [p for p in read_cost_settings(document).problems if (p.location, p.rule) not in known]
    policy, trees = result.policy, result.trees
    groups = group_layers(policy, result.num_layers, trees) if policy is not None else ()
    data = {
        "num_layers": result.num_layers,
        "operators_from": trees.source if trees is not None else None,
        "policy": policy.to_config() if policy is not None else None,
        "layers": [group.to_data() for group in groups],
    }
    layers = format_policy(policy, result.num_layers, trees) if policy is not None else ""
    return _Outcome(Form.GRAPH, sort_problems([*result.problems, *found]), result.ignored, notes, layers, data)


def _with_real_names(args: argparse.Namespace, document: Document, path: str) -> tuple[CheckResult, list[str]]:
    """What the rules say, by the operators of a table or of the real network, and what could not be looked at."""
    result = check_document(document, args.num_layers, environ=os.environ, silence=args.ignore)
    is_about_model = all(problem.rule in MODEL_RULES for problem in result.errors)
    if not result.is_swap_enabled or not is_about_model:
        return result, []
    notes = []
    # The network takes seconds to build, so a table goes first.
    wants_network = args.network or (result.trees is None and not args.table)
    if path != "-" and wants_network and result.num_layers is not None and has_mindformers():
        try:
            trees = read_real_trees(path, result.num_layers)
        except Exception as error:  # noqa: BLE001 whatever the model code does, the table is there
            reason = str(error).strip().splitlines()
            notes.append(f"the real network could not be built ({reason[0] if reason else type(error).__name__})")
        else:
            if not trees.uses and result.trees is not None:
                trees = replace(trees, uses=result.trees.uses)  # the table also knows which operator uses which
            return check_document(document, args.num_layers, trees, os.environ, silence=args.ignore), []
    if result.num_layers is None:
        notes.append(
            "the number of layers is not known, so layers and operator names were not checked; use --num-layers"
        )
    elif result.trees is None:
        hint = "run this where MindFormers is installed"
        if has_mindformers():
            hint = "leave out --table" if args.table else "mindswap run, which looks at the real network"
        notes.append(f"operator names were not checked: no table has this model; to check them: {hint}")
    elif notes:
        notes.append(f"operator names were checked against {result.trees.source}")
    return result, notes
