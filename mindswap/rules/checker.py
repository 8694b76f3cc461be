"""A configuration -> its policy (of 2.x, what comes of it) and every problem in it."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mindswap.config.findings import misused_ignore, split_ignored
from mindswap.config.nodes import Document, key_text, to_data
from mindswap.config.pipeline_layout import SEQUENCE_KEY
from mindswap.config.problem import Problem, find_errors, sort_problems
from mindswap.config.render import document_from_data
from mindswap.config.source import FOLDER_KEY, FOLDER_RULE, load_document
from mindswap.errors import GraphError, PolicyError
from mindswap.policy.cell_tree import LayerTrees, load_layer_trees
from mindswap.policy.coverage import Coverage
from mindswap.policy.formats.mindformers1.read import NUM_LAYERS_KEYS, build_policy, find_num_layers, read_settings
from mindswap.policy.formats.mindformers1.settings import PolicySettings
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.policy.formats.mindformers2.effect import SettingsEffect, compute_effect
from mindswap.policy.formats.mindformers2.read import read_pynative
from mindswap.policy.formats.mindformers2.tables import Model, load_model, wrong_form_problem
from mindswap.policy.model import Policy
from mindswap.policy.wording import closest_names
from mindswap.rules.context import Context, Context2x
from mindswap.rules.mindformers1 import find_rules
from mindswap.rules.mindformers2 import find_rules_2x
from mindswap.system.environment import user_environment

# What these rules find by the table of a model family may not hold for the real network.
MODEL_RULES = frozenset({"plain-dot", "unmatched-pattern"})
# Keys of `model.model_config` by which MindFormers finds the class (models/build_config.py, get_model_config).
CLASS_KEYS = ("type", "model_type", "architectures")
# These say why a value could not be read.
SHAPE_RULES = (
    "bad-prefetch",
    "missing-key",
    "stage-count-form",
    "swap-not-bool",
    "unknown-key",
    "wide-character",
    "wrong-type",
)


@dataclass(frozen=True, eq=False)
class CheckResult:
    """Result of checking a configuration."""

    policy: Policy | None  # the normalised policy; None if there is an error
    problems: tuple[Problem, ...]  # every problem, in file order
    num_layers: int | None  # layers of the model; None if not known
    trees: LayerTrees | None  # the layers that operator names were checked against; None if they were not
    settings: PolicySettings | None = None  # the statements with their places; None for a file of the other form
    ignored: tuple[Problem, ...] = ()  # warnings that the configuration or the caller does not want to hear

    @property
    def is_swap_enabled(self) -> bool:
        """Value of `swap`, also where there are errors."""
        return self.settings is not None and self.settings.is_swap_enabled

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that stop a run."""
        return find_errors(self.problems)

    def require_policy(self) -> Policy:
        """The policy; with an error, PolicyError with every problem."""
        if self.policy is None:
            raise PolicyError(self.problems)
        return self.policy


def check_document(
    document: Document,
    num_layers: int | None = None,
    trees: LayerTrees | None = None,
    environ: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    silence: Collection[str] = (),
    is_run: bool = False,
) -> CheckResult:
    """Check a configuration of MindFormers 1.9 with every rule; one of 2.x has one error, which says so.

    Args:
        document: the configuration.
        num_layers: layers of the model; None takes what the configuration states, then what `trees` has.
        trees: the real layers; None takes the table of the model family, if there is one.
        environ: environment variables of the run; None takes those of the user's shell.
        ignore: rules whose problems are left out.
        silence: rules whose warnings are only counted, besides those of `mindswap.ignore`.
        is_run: a training begins; with swap off, what MindFormers refuses is then at most a warning.
    """
    other_form = wrong_form_problem(document)
    if other_form is not None:
        return CheckResult(None, sort_problems([*document.problems, other_form]), num_layers, None)
    if num_layers is None:
        num_layers = find_num_layers(document)
    if num_layers is None and trees is not None:
        num_layers = len(trees.layers)
    settings = read_settings(document, num_layers)
    is_whole = document.count("parallel_config", SEQUENCE_KEY) == 1  # layers for pieces of sequences are in no table
    if trees is None and num_layers is not None and is_whole:
        trees = load_layer_trees(model_section(document), num_layers)
    coverage = Coverage(trees) if trees is not None else None
    variables = user_environment() if environ is None else environ
    return _judge(Context(document, settings, coverage, variables, is_run), find_rules(), ignore, silence)


def check_shape(document: Document, num_layers: int | None = None) -> CheckResult:
    """As `check_document`, of a file of either form, and only whether its values can be read.

    For a configuration that was written by mindswap, or that is checked elsewhere.
    """
    return _judge(Context(document, read_settings(document, num_layers)), SHAPE_RULES)


def _judge(
    context: Context, rules: Iterable[str], ignore: Collection[str] = (), silence: Collection[str] = ()
) -> CheckResult:
    """The policy, unless one of the rules finds an error."""
    document, settings = context.document, context.settings
    found = (problem for rule in rules for problem in find_rules()[rule].check(context))
    problems, ignored = split_ignored(document, (*document.problems, *found), ignore, silence)
    policy = None if find_errors(problems) else build_policy(settings)
    trees = context.coverage.trees if context.coverage is not None else None
    return CheckResult(policy, problems, settings.num_layers, trees, settings, ignored)


def check_before_network(document: Document, environ: Mapping[str, str]) -> CheckResult:
    """Check all that can be judged while the network is not built yet.

    Raises:
        PolicyError: with every problem, if one of the errors holds for any network. With swap off, what
            MindFormers refuses is left to it: nothing of ours stops such a run.
    """
    result = check_document(document, environ=environ, is_run=True)
    if any(problem.rule not in MODEL_RULES for problem in result.errors):
        raise PolicyError(result.problems)
    if result.policy is not None:
        return result
    return check_document(document, environ=environ, ignore=MODEL_RULES, is_run=True)


def load_policy(source: str | os.PathLike[str] | Mapping[str, Any]) -> Policy:
    """Read the policy of a configuration.

    Args:
        source: a YAML file, or its content as plain data: `{"swap_config": {...}, "recompute_config": {...}}`.

    Returns:
        The normalized policy.

    Raises:
        PolicyError: with every problem, if there is an error.
    """
    if isinstance(source, Mapping):
        return policy_of_document(document_from_data(source, "the configuration"))
    return policy_of_document(load_document(source))


def policy_of_document(document: Document) -> Policy:
    """As `load_policy`, of what was read."""
    return check_document(document, environ={}, is_run=True).require_policy()


def require_num_layers(document: Document, num_layers: int | None, asked_by: str = "") -> int:
    """The number of layers that is known, for what means nothing without; `asked_by` begins the message.

    Raises:
        GraphError: if it is not known; the text says where it should have come from.
    """
    if num_layers is not None:
        return num_layers
    text = f"{asked_by}the configuration does not say how many layers the model has"
    raise GraphError(f"{text}\n{missing_num_layers(document)}")


def policy_of(document: Document, checked: CheckResult) -> Policy:
    """The policy of a configuration in layer indices; with swap off MindFormers' own reading of its recompute.

    Raises:
        PolicyError: if it is wrong.
    """
    policy = checked.require_policy()
    num_layers = require_num_layers(document, checked.num_layers)
    return policy if policy.is_swap_enabled else expand_stage_recompute(document, num_layers).policy


def missing_model(document: Document) -> str | None:
    """Message that no model is described, with how to name one; None if there is one."""
    for problem in document.problems:
        if problem.rule == FOLDER_RULE:
            return f"{problem.location}: {problem.message}\n    fix:     {problem.fix}"
    model = document.get("model", "model_config")
    has_class = model is not None and any(model.get(key) is not None for key in CLASS_KEYS)
    if has_class or find_num_layers(document) is not None:
        return None
    return (
        f"{model.location if model is not None else document.file}: model.model_config: it describes no model\n"
        f"    fix:     write the model there, or name a folder with its config.json, {FOLDER_KEY}"
    )


def missing_num_layers(document: Document) -> str:
    """Message that the number of layers is not known, in two lines: place and key, then how to give it."""
    missing = missing_model(document)
    if missing is not None:
        return missing
    path = ("model", "model_config")
    section = document.get(*path)
    keys = [key_text(entry.key) for entry in section.unique_entries()] if section is not None else []
    near = closest_names(NUM_LAYERS_KEYS[0], keys, least=0.7)
    fix = f"write '{NUM_LAYERS_KEYS[0]}' in place of '{near[0]}'" if near else f"add '{NUM_LAYERS_KEYS[0]}: N' there"
    where = document.location_of(*path, *near) if section is not None else document.location_of(path[0])
    others = ", ".join(NUM_LAYERS_KEYS[1:])
    return (
        f"{where}: {'.'.join(path)}: there is no {NUM_LAYERS_KEYS[0]} (or {others})\n"
        f"    fix:     {fix}, or give --num-layers N where the command has it"
    )


def model_section(document: Document) -> dict[str, Any]:
    """`model:` as plain data; empty where there is none."""
    node = document.get("model")
    data = to_data(node) if node is not None else None
    return data if isinstance(data, dict) else {}


# Configurations of MindFormers 2.x.


@dataclass(frozen=True, eq=False)
class PynativeCheck:
    """Result of checking a configuration."""

    effect: SettingsEffect  # what upstream makes of it, also where there are problems
    problems: tuple[Problem, ...]  # all of them, in file order
    ignored: tuple[Problem, ...] = ()  # warnings that the configuration or the caller does not want to hear

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that have to be mended."""
        return find_errors(self.problems)


def check_pynative(
    document: Document,
    num_layers: int | None = None,
    model: Model | None = None,
    silence: Collection[str] = (),
    mindformers: str = "",
) -> PynativeCheck:
    """Check a configuration of MindFormers 2.x with every rule.

    Args:
        document: the configuration.
        num_layers: layers of the model without those for multi-token prediction; None takes what it states.
        model: names of the layers; None takes the table of the model, if there is one.
        silence: rules whose warnings are only counted, besides those of `mindswap.ignore`.
        mindformers: the version that is installed; "" leaves out what is wrong with one version only.
    """
    settings = read_pynative(document, num_layers)
    if model is None:
        model = load_model(document, settings.num_layers, settings.num_mtp_layers)
    effect = compute_effect(settings, model)
    rules, context = find_rules_2x(), Context2x(document, settings, effect, mindformers)
    problems = (problem for rule in rules.values() for problem in rule.check(context))
    found = (*document.problems, *problems, *misused_ignore(document, rules))
    return PynativeCheck(effect, *split_ignored(document, found, (), silence))
