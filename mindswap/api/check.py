"""Every problem of a configuration of either form, and what it asks for layer by layer.

The rules are in `check`; here they meet the real network, where a table of its operators is missing.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mindswap.api.network import has_mindformers, known_or_real, read_real_trees
from mindswap.check.check import (
    MODEL_RULES,
    CheckResult,
    check_document,
    check_pynative,
    missing_num_layers,
    require_num_layers,
)
from mindswap.check.context import Context
from mindswap.check.doctor.facts import Diagnosis, MachineFacts, gather_job
from mindswap.check.doctor.gather import gather_machine, gather_software
from mindswap.check.doctor.machine import examine
from mindswap.check.doctor.software import installed_version
from mindswap.check.rules import find_rules
from mindswap.check.rules.layers import note_on_counts
from mindswap.check.rules_2x import find_rules_2x
from mindswap.config.nodes import Document
from mindswap.config.problem import Problem, sort_problems
from mindswap.config.rules import OTHER_RULES
from mindswap.config.source import load_document
from mindswap.errors import GraphError, LaunchError, PolicyError
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.expand import expand_stage_recompute
from mindswap.policy.mindformers_2x.tables import Form, find_form
from mindswap.policy.words import closest_names
from mindswap.report.explain import explain_layers, explanation_to_json, format_explanation, list_paths, list_paths_2x
from mindswap.report.policy_text import format_policy, group_layers
from mindswap.report.pynative import format_layers_2x, format_settings_effect, pynative_notes, settings_effect_to_json
from mindswap.simulator.cost.device_file import read_cost_settings


class NameSource(Enum):
    """Source of operator names."""

    EITHER = "a table of models, else the network"
    TABLE = "a table of models"
    NETWORK = "the network that MindFormers builds"


@dataclass(frozen=True)
class CheckedConfig:
    """Findings about a file, in either form."""

    form: Form  # of the file
    # problems, ignored: found; and those that only count
    problems: tuple[Problem, ...]
    ignored: tuple[Problem, ...]
    notes: Sequence[str]  # what could not be looked at
    layers: str  # what happens in each layer, as text; "" where that is not known
    data: Mapping[str, Any]  # what `--json` says besides


def check_config(
    document: Document,
    num_layers: int | None = None,
    ignore: Collection[str] = (),
    names: NameSource = NameSource.EITHER,
    can_build: bool = True,
) -> CheckedConfig:
    """Findings about a configuration.

    Args:
        document: the configuration, of either form.
        num_layers: layers of the model; None takes what the configuration states.
        ignore: rules whose warnings are only counted.
        names: where operator names come from.
        can_build: the document is a file that MindFormers can read, too.
    """
    if find_form(document) is Form.PYNATIVE:
        return _check_2x(document, num_layers, ignore)
    result, notes = _with_real_names(document, num_layers, ignore, names, can_build)
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
    if result.settings is not None and not result.errors:
        note = note_on_counts(Context(document, result.settings))
        notes = [*notes, *([note] if note else [])]
    return CheckedConfig(Form.GRAPH, sort_problems([*result.problems, *found]), result.ignored, notes, layers, data)


def refuse_unknown_rules(option: str, names: Collection[str]) -> None:
    """Refuse names of rules that no version of MindFormers has; `option` is where they are given.

    Raises:
        LaunchError: naming each, with the rules that are most like it.
    """
    known = (*find_rules(), *find_rules_2x(), *OTHER_RULES)
    lines = []
    for name in dict.fromkeys(names):
        if name not in known:
            near = " or ".join(closest_names(name, known, 3, least=0.5))
            fix = f"write {near}" if near else "one of the words in brackets behind warnings, which docs/rules.md lists"
            lines.append(f"{option} {name}: there is no such rule\n    fix:     {fix}")
    if lines:
        raise LaunchError("\n".join(lines))


def _check_2x(document: Document, num_layers: int | None, ignore: Collection[str]) -> CheckedConfig:
    mindformers = installed_version("mindformers")
    checked = check_pynative(document, num_layers, silence=ignore, mindformers=mindformers)
    effect, problems = checked.effect, checked.problems
    layers = format_layers_2x(effect) if not checked.errors and effect.layers else ""
    data = settings_effect_to_json(effect, problems)
    notes = pynative_notes(effect, is_release_known=mindformers.startswith("2."))
    return CheckedConfig(Form.PYNATIVE, problems, checked.ignored, notes, layers, data)


def _with_real_names(
    document: Document, num_layers: int | None, ignore: Collection[str], names: NameSource, can_build: bool
) -> tuple[CheckResult, list[str]]:
    """Findings of the rules, by the operators of a table or of the real network, and what could not be looked at."""
    result = check_document(document, num_layers, silence=ignore)
    is_about_model = all(problem.rule in MODEL_RULES for problem in result.errors)
    if not result.is_swap_enabled or not is_about_model:
        return result, []
    notes = []
    # The network takes seconds to build, so a table goes first.
    wants_network = names is NameSource.NETWORK or (result.trees is None and names is not NameSource.TABLE)
    if can_build and wants_network and result.num_layers is not None and has_mindformers():
        try:
            trees = read_real_trees(document.file, result.num_layers)
        except Exception as error:  # noqa: BLE001 whatever the model code does, the table is there
            reason = str(error).strip().splitlines()
            notes.append(f"the real network could not be built ({reason[0] if reason else type(error).__name__})")
        else:
            if not trees.uses and result.trees is not None:
                trees = replace(trees, uses=result.trees.uses)  # the table also knows which operator uses which
            return check_document(document, num_layers, trees, silence=ignore), []
    if result.num_layers is None:
        place, _, fix = missing_num_layers(document).partition("\n    fix:     ")
        fix += "" if "--num-layers" in fix else ", or use --num-layers"
        notes.append(f"{place}, so layers and operator names were not checked; {fix}")
    elif result.trees is None:
        hint = "run this where MindFormers is installed"
        if has_mindformers():
            on_table = names is NameSource.TABLE
            hint = "leave out --table" if on_table else "mindswap run, which looks at the real network"
        notes.append(f"operator names were not checked: no table has this model; to check them: {hint}")
    elif notes:
        notes.append(f"operator names were checked against {result.trees.source}")
    return result, notes


# Layers of a configuration of either form in words, and the names that it could use.


@dataclass(frozen=True)
class ExplainedConfig:
    """A configuration in words."""

    text: str
    data: Mapping[str, Any]  # the same for `--json`
    problems: tuple[Problem, ...]  # of the configuration
    has_errors: bool = False  # only with a file of MindFormers 2.x; one of 1.9 is not explained then


def explain_config(document: Document, num_layers: int | None = None) -> ExplainedConfig:
    """Recompute and swap of each layer, stage and chunk.

    Raises:
        PolicyError: the configuration has errors; one of MindFormers 2.x cannot be read.
        GraphError: the number of layers is needed and not known.
    """
    if find_form(document) is Form.PYNATIVE:
        checked_2x = check_pynative(document, num_layers, mindformers=installed_version("mindformers"))
        if document.root is None:
            raise PolicyError(checked_2x.problems)
        has_errors, problems = bool(checked_2x.errors), checked_2x.problems
        text = format_settings_effect(checked_2x.effect, has_errors)
        return ExplainedConfig(text, settings_effect_to_json(checked_2x.effect, problems), problems, has_errors)
    checked = check_document(document, num_layers)
    policy, stages = checked.require_policy(), None
    if not checked.is_swap_enabled:
        num_layers = require_num_layers(document, checked.num_layers)
        stages = expand_stage_recompute(document, num_layers)
        policy = stages.policy
    explanation = explain_layers(policy, checked.num_layers, checked.trees, stages)
    return ExplainedConfig(format_explanation(explanation), explanation_to_json(explanation), checked.problems)


def list_names(document: Document, num_layers: int | None = None) -> list[dict[str, Any]]:
    """Cells and operators of a layer: the names for `op_swap` and `select_recompute`.

    Raises:
        GraphError: the model is not known here.
    """
    if find_form(document) is not Form.PYNATIVE:
        return list_paths(_find_trees(document, check_document(document, num_layers)))
    checked = check_pynative(document, num_layers)
    if document.root is None:
        raise PolicyError(checked.problems)
    if checked.effect.model is None:
        raise GraphError("no table has this model in PyNative mode, so the names of its cells are not known")
    return list_paths_2x(checked.effect.model)


def _find_trees(document: Document, checked: CheckResult) -> LayerTrees:
    """The table of the model family, else the real network."""
    trees = known_or_real(document.file, checked.trees, checked.num_layers)
    if trees is not None:
        return trees
    if not has_mindformers():
        raise GraphError("no table has this model; run this where MindFormers is installed")
    require_num_layers(document, checked.num_layers)
    raise GraphError(f"{document.file}: the layers of this model are not known")


# The machine.


def examine_machine(config: str | None = None) -> tuple[MachineFacts, tuple[Diagnosis, ...]]:
    """Facts about this machine, for a configuration where one is named, and what is not as it should be."""
    software = gather_software(os.environ)
    job = gather_job(load_document(config), os.environ, software.num_cards) if config else None
    facts = MachineFacts(software, gather_machine(os.environ), os.environ, job)
    return facts, examine(facts)
