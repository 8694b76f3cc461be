"""Check a configuration with all rules. Returns its policy (for 2.x: its effect) and all problems."""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mindswap.config.findings import find_ignore_problems, split_ignored
from mindswap.config.nodes import Document, key_text, to_data
from mindswap.config.problem import Problem, find_errors, sort_problems
from mindswap.config.render import document_from_data
from mindswap.config.sequence_pieces import SEQUENCE_KEY
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

# Rules whose findings may be wrong if names come from the table of a model family, not from the real network.
MODEL_RULES = frozenset({"plain-dot", "unmatched-pattern"})
# Keys of `model.model_config` that select the class of the model (models/build_config.py, get_model_config).
CLASS_KEYS = ("type", "model_type", "architectures")
# Rules that explain why a value could not be read.
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
    """Result of a check."""

    policy: Policy | None  # the normalized policy; None if there is an error
    problems: tuple[Problem, ...]  # every problem, in file order
    num_layers: int | None  # layers of the model; None if not known
    trees: LayerTrees | None  # layers that names were checked against; None if not checked
    settings: PolicySettings | None = None  # the statements with their locations; None for the other format
    ignored: tuple[Problem, ...] = ()  # suppressed warnings

    @property
    def is_swap_enabled(self) -> bool:
        """Return whether `swap` is True, even if there are errors."""
        return self.settings is not None and self.settings.is_swap_enabled

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that stop a run."""
        return find_errors(self.problems)

    def require_policy(self) -> Policy:
        """Return the policy; raises PolicyError with all problems if there is an error."""
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
    is_training_start: bool = False,
) -> CheckResult:
    """Check a configuration of MindFormers 1.9 with all rules. One of 2.x gets a single error about its format.

    Args:
        document: the configuration.
        num_layers: layers of the model; None takes the value of the configuration, then that of `trees`.
        trees: layers of the real network; None looks for a table of the model family.
        environ: environment variables of the run; None for those of the user's shell.
        ignore: rules whose problems are dropped.
        silence: rules whose warnings are suppressed, in addition to `mindswap.ignore`.
        is_training_start: whether a training starts; with swap off, errors of MindFormers are then warnings.
    """
    format_problem = wrong_form_problem(document)
    if format_problem is not None:
        return CheckResult(None, sort_problems([*document.problems, format_problem]), num_layers, None)
    if num_layers is None:
        num_layers = find_num_layers(document)
    if num_layers is None and trees is not None:
        num_layers = len(trees.layers)
    settings = read_settings(document, num_layers)
    # No table has the layers for sequence pieces.
    has_full_sequences = document.count("parallel_config", SEQUENCE_KEY) == 1
    if trees is None and num_layers is not None and has_full_sequences:
        trees = load_layer_trees(model_section(document), num_layers)
    coverage = Coverage(trees) if trees is not None else None
    variables = user_environment() if environ is None else environ
    return _check(Context(document, settings, coverage, variables, is_training_start), find_rules(), ignore, silence)


def check_shape(document: Document, num_layers: int | None = None) -> CheckResult:
    """Check only whether values can be read, of a configuration of either format.

    For configurations that mindswap has written, or that are checked elsewhere.
    """
    return _check(Context(document, read_settings(document, num_layers)), SHAPE_RULES)


def _check(
    context: Context, rules: Iterable[str], ignore: Collection[str] = (), silence: Collection[str] = ()
) -> CheckResult:
    """Run rules, and build the policy if there is no error."""
    document, settings = context.document, context.settings
    rule_problems = (problem for rule in rules for problem in find_rules()[rule].check(context))
    problems, ignored = split_ignored(document, (*document.problems, *rule_problems), ignore, silence)
    policy = None if find_errors(problems) else build_policy(settings)
    trees = context.coverage.trees if context.coverage is not None else None
    return CheckResult(policy, problems, settings.num_layers, trees, settings, ignored)


def check_before_network(document: Document, environ: Mapping[str, str]) -> CheckResult:
    """Check a configuration as far as possible before the network is built.

    Raises:
        PolicyError: with all problems, if an error does not depend on the network. With swap off, errors of MindFormers
            are left to it, because mindswap must not stop such a run.
    """
    result = check_document(document, environ=environ, is_training_start=True)
    if any(problem.rule not in MODEL_RULES for problem in result.errors):
        raise PolicyError(result.problems)
    if result.policy is not None:
        return result
    return check_document(document, environ=environ, ignore=MODEL_RULES, is_training_start=True)


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
    """Return the policy of a parsed configuration. Raises as `load_policy`."""
    return check_document(document, environ={}, is_training_start=True).require_policy()


def require_num_layers(document: Document, num_layers: int | None, prefix: str = "") -> int:
    """Return the number of layers, or raise if it is not known; `prefix` starts the message.

    Raises:
        GraphError: the number is not known; the message names the key that is missing.
    """
    if num_layers is not None:
        return num_layers
    text = f"{prefix}the configuration does not say how many layers the model has"
    raise GraphError(f"{text}\n{missing_num_layers(document)}")


def policy_of(document: Document, checked: CheckResult) -> Policy:
    """Return the policy in layer indices; with swap off, the recompute that MindFormers does by itself.

    Raises:
        PolicyError: the configuration has errors.
    """
    policy = checked.require_policy()
    num_layers = require_num_layers(document, checked.num_layers)
    return policy if policy.is_swap_enabled else expand_stage_recompute(document, num_layers).policy


def missing_model(document: Document) -> str | None:
    """Return a message if the configuration describes no model; None otherwise."""
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
    """Return a message of two lines about a missing number of layers: location and key, then the fix."""
    missing = missing_model(document)
    if missing is not None:
        return missing
    path = ("model", "model_config")
    section = document.get(*path)
    keys = [key_text(entry.key) for entry in section.unique_entries()] if section is not None else []
    near = closest_names(NUM_LAYERS_KEYS[0], keys, min_similarity=0.7)
    fix = f"write '{NUM_LAYERS_KEYS[0]}' in place of '{near[0]}'" if near else f"add '{NUM_LAYERS_KEYS[0]}: N' there"
    location = document.location_of(*path, *near) if section is not None else document.location_of(path[0])
    other_keys = ", ".join(NUM_LAYERS_KEYS[1:])
    return (
        f"{location}: {'.'.join(path)}: there is no {NUM_LAYERS_KEYS[0]} (or {other_keys})\n"
        f"    fix:     {fix}, or give --num-layers N where the command has it"
    )


def model_section(document: Document) -> dict[str, Any]:
    """Return the section `model` as plain data; empty if it is missing."""
    node = document.get("model")
    data = to_data(node) if node is not None else None
    return data if isinstance(data, dict) else {}


# Configurations of MindFormers 2.x.


@dataclass(frozen=True, eq=False)
class PynativeCheck:
    """Result of a check."""

    effect: SettingsEffect  # the effect in MindFormers, even if there are problems
    problems: tuple[Problem, ...]  # all problems in file order
    ignored: tuple[Problem, ...] = ()  # suppressed warnings

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems with level ERROR."""
        return find_errors(self.problems)


def check_pynative(
    document: Document,
    num_layers: int | None = None,
    model: Model | None = None,
    silence: Collection[str] = (),
    mindformers: str = "",
) -> PynativeCheck:
    """Check a configuration of MindFormers 2.x with all rules.

    Args:
        document: the configuration.
        num_layers: layers of the model without those for multi-token prediction; None takes the value of the
            configuration.
        model: layers of the model; None looks for a table of the model.
        silence: rules whose warnings are suppressed, in addition to `mindswap.ignore`.
        mindformers: installed version; "" skips rules for single versions.
    """
    settings = read_pynative(document, num_layers)
    if model is None:
        model = load_model(document, settings.num_layers, settings.num_mtp_layers)
    effect = compute_effect(settings, model)
    rules, context = find_rules_2x(), Context2x(document, settings, effect, mindformers)
    problems = (problem for rule in rules.values() for problem in rule.check(context))
    all_problems = (*document.problems, *problems, *find_ignore_problems(document, rules))
    return PynativeCheck(effect, *split_ignored(document, all_problems, (), silence))
