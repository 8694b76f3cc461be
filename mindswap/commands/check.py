"""`mindswap check`: every problem of a configuration, then what it asks for, layer by layer."""

import argparse
import os
import sys
from dataclasses import dataclass, replace

from mindswap.check.check import MODEL_RULES, CheckResult, check_document
from mindswap.commands.options import add_common, positive_int
from mindswap.commands.pynative_text import check_2x
from mindswap.cost.settings import read_cost_settings
from mindswap.document.nodes import Document
from mindswap.document.parse import parse_document
from mindswap.document.problem import sort_problems
from mindswap.document.source import load_document
from mindswap.errors import LaunchError
from mindswap.mindformers_2x.form import Form, find_form
from mindswap.report.answer import answer_text
from mindswap.report.policy_text import format_policy, group_layers
from mindswap.report.problems import escape, format_counts, format_problems, problems_to_data
from mindswap.session.trees import has_mindformers, read_real_trees

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
    result: CheckResult
    notes: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `mindswap check`."""
    parser.add_argument(
        "configs", metavar="CONFIG", nargs="+", help="the YAML file, or several; - reads standard input"
    )
    add_common(parser, "--json")
    parser.add_argument("--num-layers", type=positive_int, metavar="N", help="layers, if not as in model.model_config")
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
    """Check each file.

    Returns:
        0, or 1 if there is an error in any of them.

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
    if find_form(document) is Form.PYNATIVE:
        return check_2x(args, document, _has_colour())
    outcome = _check(document, path, args.num_layers, args.ignore, _sources(args))
    outcome = replace(outcome, result=_with_device_problems(outcome.result, document))
    print(_as_json(outcome) if args.json else _as_text(outcome, _has_colour()))
    return 1 if outcome.result.errors else 0


def _check(
    document: Document, path: str, num_layers: int | None, silence: list[str], sources: tuple[str, ...]
) -> _Outcome:
    result = check_document(document, num_layers, environ=os.environ, silence=silence)
    is_about_model = all(problem.rule in MODEL_RULES for problem in result.errors)
    if not result.is_swap_enabled or not is_about_model:
        return _Outcome(result, ())
    notes = []
    is_known = result.trees is not None and "table" in sources
    if path != "-" and not is_known and "network" in sources and result.num_layers is not None and has_mindformers():
        try:
            trees = read_real_trees(path, result.num_layers)
        except Exception as error:  # noqa: BLE001 whatever the model code does, the table is there
            reason = str(error).strip().splitlines()
            notes.append(f"the real network could not be built ({reason[0] if reason else type(error).__name__})")
        else:
            if not trees.uses and result.trees is not None:
                trees = replace(trees, uses=result.trees.uses)  # the table also knows which operator uses which
            return _Outcome(check_document(document, num_layers, trees, os.environ, silence=silence), ())
    if result.num_layers is None:
        notes.append(
            "the number of layers is not known, so layers and operator names were not checked; use --num-layers"
        )
    elif result.trees is None:
        hint = "run this where MindFormers is installed"
        if has_mindformers():
            hint = "leave out --table" if "network" not in sources else "mindswap run, which looks at the real network"
        notes.append(f"operator names were not checked: no table has this model; to check them: {hint}")
    elif notes:
        notes.append(f"operator names were checked against {result.trees.source}")
    return _Outcome(result, tuple(notes))


def _sources(args: argparse.Namespace) -> tuple[str, ...]:
    """Where operator names may come from; the network takes seconds to build, so a table goes first."""
    return ("table",) if args.table else ("network",) if args.network else ("table", "network")


def _with_device_problems(result: CheckResult, document: Document) -> CheckResult:
    """Also what is wrong with the figures of the simulated device, which rules of policies do not know."""
    known = {(problem.location, problem.rule) for problem in result.problems}
    found = [p for p in read_cost_settings(document).problems if (p.location, p.rule) not in known]
    return replace(result, problems=sort_problems([*result.problems, *found]))


def _as_text(outcome: _Outcome, colour: bool) -> str:
    result = outcome.result
    parts = [format_problems(result.problems, colour)] if result.problems else []
    parts += [escape(f"note: {note}") for note in outcome.notes]
    parts.append(f"{format_counts(result.problems, result.ignored)}; read as {Form.GRAPH.value}")
    if result.policy is not None:
        parts += ["", format_policy(result.policy, result.num_layers, result.trees)]
    return "\n".join(parts)


def _as_json(outcome: _Outcome) -> str:
    result = outcome.result
    policy = result.policy
    groups = group_layers(policy, result.num_layers, result.trees) if policy is not None else ()
    data = {
        "form": "1.9",
        **problems_to_data(result.problems),
        "num_ignored": len(result.ignored),
        "notes": list(outcome.notes),
        "num_layers": result.num_layers,
        "operators_from": result.trees.source if result.trees is not None else None,
        "policy": policy.to_config() if policy is not None else None,
        "layers": [group.to_data() for group in groups],
    }
    return answer_text("check", data, not result.errors)


def _has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
