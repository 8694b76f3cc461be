"""A configuration of MindFormers 2.x -> what comes of it, and every problem in it."""

from collections.abc import Collection
from dataclasses import dataclass

from mindswap.check.context import Context2x
from mindswap.check.rules_2x import find_rules
from mindswap.config.nodes import Document
from mindswap.config.problem import Problem, find_errors
from mindswap.config.rules import misused_ignore, split_ignored
from mindswap.policy.mindformers_2x.effect import SettingsEffect, compute_effect
from mindswap.policy.mindformers_2x.read import read_pynative
from mindswap.policy.mindformers_2x.tables import Model, load_model


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
    rules, context = find_rules(), Context2x(document, settings, effect, mindformers)
    problems = (problem for rule in rules.values() for problem in rule.check(context))
    found = (*document.problems, *problems, *misused_ignore(document, rules))
    return PynativeCheck(effect, *split_ignored(document, found, (), silence))
