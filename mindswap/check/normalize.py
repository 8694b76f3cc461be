"""Every accepted spelling -> one immutable Policy."""

from dataclasses import dataclass

from mindswap.check.rules import Context, run_rules
from mindswap.document.nodes import Document
from mindswap.document.problem import Level, Problem, sort_problems
from mindswap.policy.build import build_policy
from mindswap.policy.model import Policy
from mindswap.policy.read import read_settings
from mindswap.policy.settings import Settings

__all__ = ["NormalizeResult", "normalize"]

# The rules that say why a value could not be read; normalising cannot go on with such a value.
SHAPE_RULES = ("bad-prefetch", "missing-key", "stage-count-form", "swap-not-bool", "unknown-key", "wrong-type")


@dataclass(frozen=True, eq=False)
class NormalizeResult:
    """A configuration in normalised form.

    Attributes:
        policy: what the configuration asks for; None if a part of it could not be read.
        problems: why not, in file order (the rules that judge what was read come with `check_document`).
        num_layers: layers of the model; None if not known.
        settings: the statements with their places.
    """

    policy: Policy | None
    problems: tuple[Problem, ...]
    num_layers: int | None
    settings: Settings


def normalize(document: Document, num_layers: int | None = None) -> NormalizeResult:
    """The policy of a configuration.

    Args:
        document: the configuration.
        num_layers: layers of the model; None takes what the configuration states.
    """
    settings = read_settings(document, num_layers)
    problems = sort_problems((*document.problems, *run_rules(Context(document, settings), only=SHAPE_RULES)))
    is_good = document.root is not None and not any(problem.level is Level.ERROR for problem in problems)
    return NormalizeResult(build_policy(settings) if is_good else None, problems, settings.num_layers, settings)
