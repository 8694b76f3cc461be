"""Check a configuration of MindFormers 1.9 or 2.x: its problems, and the effect of its policy in each layer.

`rules` has the rules. If no table has the operators of the model, they are checked against the real network.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mindswap.config.findings import OTHER_RULES
from mindswap.config.nodes import Document
from mindswap.config.problem import Problem, sort_problems
from mindswap.config.source import as_document
from mindswap.errors import LaunchError
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format
from mindswap.policy.summary import summarize_policy
from mindswap.policy.wording import closest_names
from mindswap.report.policy_text import format_policy
from mindswap.report.pynative import format_layers_2x, pynative_notes, settings_effect_to_json
from mindswap.rules.checker import MODEL_RULES, CheckResult, check_document, check_pynative, missing_num_layers
from mindswap.rules.context import Context
from mindswap.rules.machine.software import installed_version
from mindswap.rules.mindformers1 import find_rules
from mindswap.rules.mindformers1.layers import note_on_counts
from mindswap.rules.mindformers2 import find_rules_2x
from mindswap.simulator.cost.device_file import read_cost_settings
from mindswap.steps.network import has_mindformers, read_real_trees


class NameSource(Enum):
    """Source of operator names."""

    EITHER = "a table of models, else the network"
    TABLE = "a table of models"
    NETWORK = "the network that MindFormers builds"


@dataclass(frozen=True)
class CheckedConfig:
    """Result of checking a configuration."""

    form: ConfigFormat  # format of the file
    problems: tuple[Problem, ...]  # problems to report
    ignored: tuple[Problem, ...]  # problems of ignored rules, which are only counted
    notes: Sequence[str]  # checks that were not possible, and remarks
    layers: str  # effect of the policy in each layer, as text; "" if it is unknown
    data: Mapping[str, Any]  # further entries of the JSON output


def check_config(
    config: str | os.PathLike[str] | Document,
    num_layers: int | None = None,
    ignore: Collection[str] = (),
    names: NameSource = NameSource.EITHER,
    can_build: bool = True,
) -> CheckedConfig:
    """Check a configuration.

    Args:
        config: path of the configuration, or the parsed document.
        num_layers: layers of the model; None for the number in the configuration.
        ignore: rules whose warnings are only counted.
        names: source of operator names.
        can_build: whether MindFormers can read the document as a file, so that the network can be built.

    Raises:
        DataError: if the file cannot be read.
    """
    document = as_document(config)
    if find_format(document) is ConfigFormat.PYNATIVE:
        return _check_2x(document, num_layers, ignore)
    result, notes = _with_real_names(document, num_layers, ignore, names, can_build)
    # Problems of the simulated device are not covered by rules.
    reported = {(problem.location, problem.rule) for problem in result.problems}
    cost_problems = [p for p in read_cost_settings(document).problems if (p.location, p.rule) not in reported]
    policy, trees = result.policy, result.trees
    summary = summarize_policy(policy, result.num_layers, trees) if policy is not None else None
    data = {
        "num_layers": result.num_layers,
        "operators_from": trees.source if trees is not None else None,
        "policy": policy.to_config() if policy is not None else None,
        "layers": [group.to_data() for group in summary.groups] if summary is not None else [],
    }
    layers = format_policy(summary) if summary is not None else ""
    if result.settings is not None and not result.errors:
        note = note_on_counts(Context(document, result.settings))
        notes = [*notes, *([note] if note else [])]
    return CheckedConfig(
        ConfigFormat.GRAPH, sort_problems([*result.problems, *cost_problems]), result.ignored, notes, layers, data
    )


def refuse_unknown_rules(option: str, names: Collection[str]) -> None:
    """Check names of rules.

    Args:
        option: command line option with the names, for the message.
        names: names of rules of any version of MindFormers.

    Raises:
        LaunchError: if a name is unknown; names the closest rules.
    """
    rule_ids = (*find_rules(), *find_rules_2x(), *OTHER_RULES)
    lines = []
    for name in dict.fromkeys(names):
        if name not in rule_ids:
            closest = " or ".join(closest_names(name, rule_ids, 3, min_similarity=0.5))
            fix = (
                f"write {closest}"
                if closest
                else "one of the words in brackets after warnings, which docs/rules.md lists"
            )
            lines.append(f"{option} {name}: there is no such rule\n    fix:     {fix}")
    if lines:
        raise LaunchError("\n".join(lines))


def _check_2x(document: Document, num_layers: int | None, ignore: Collection[str]) -> CheckedConfig:
    mindformers = installed_version("mindformers")
    checked = check_pynative(document, num_layers, silence=ignore, mindformers=mindformers)
    effect, problems = checked.effect, checked.problems
    layers = format_layers_2x(effect) if not checked.errors and effect.layers else ""
    data = settings_effect_to_json(effect, problems)
    notes = pynative_notes(effect, has_release=mindformers.startswith("2."))
    return CheckedConfig(ConfigFormat.PYNATIVE, problems, checked.ignored, notes, layers, data)


def _with_real_names(
    document: Document, num_layers: int | None, ignore: Collection[str], names: NameSource, can_build: bool
) -> tuple[CheckResult, list[str]]:
    """Check with the operators of a table or of the real network; return the result, and notes on skipped checks."""
    result = check_document(document, num_layers, silence=ignore)
    is_about_model = all(problem.rule in MODEL_RULES for problem in result.errors)
    if not result.is_swap_enabled or not is_about_model:
        return result, []
    notes = []
    # A table takes precedence, because building the network takes seconds.
    wants_network = names is NameSource.NETWORK or (result.trees is None and names is not NameSource.TABLE)
    if can_build and wants_network and result.num_layers is not None and has_mindformers():
        try:
            trees = read_real_trees(document.file, result.num_layers)
        except Exception as error:  # noqa: BLE001 code of the model may raise anything; the table is the fallback
            reason = str(error).strip().splitlines()
            notes.append(f"the real network could not be built ({reason[0] if reason else type(error).__name__})")
        else:
            if not trees.uses and result.trees is not None:
                trees = replace(trees, uses=result.trees.uses)  # only the table has the readers of each operator
            return check_document(document, num_layers, trees, silence=ignore), []
    if result.num_layers is None:
        location, _, fix = missing_num_layers(document).partition("\n    fix:     ")
        fix += "" if "--num-layers" in fix else ", or use --num-layers"
        notes.append(f"{location}, so layers and operator names were not checked; {fix}")
    elif result.trees is None:
        hint = "run this where MindFormers is installed"
        if has_mindformers():
            on_table = names is NameSource.TABLE
            hint = "leave out --table" if on_table else "mindswap run, which looks at the real network"
        notes.append(f"operator names were not checked: no table has this model; to check them: {hint}")
    elif notes:
        notes.append(f"operator names were checked against {result.trees.source}")
    return result, notes
