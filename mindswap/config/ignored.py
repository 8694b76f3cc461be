"""Warnings that a configuration does not want to hear: `mindswap: {ignore: [overlap]}`. Errors stay."""

import itertools
from collections.abc import Collection, Iterable, Iterator

from mindswap.config.nodes import Document, show
from mindswap.config.problem import Level, Problem, sort_problems

RULE = "bad-ignore"
PATH = "mindswap.ignore"
ALLOWED = "a list of rules, the words in brackets behind warnings: [overlap, recompute-wins]"


def misused_ignore(document: Document, known: Collection[str]) -> Iterator[Problem]:
    """What is no list, and names that no rule (of those known) has."""
    node = document.get("mindswap", "ignore")
    if node is None or node.is_null:
        return
    if node.items is None:
        fix = f"ignore: [{node.value}]" if isinstance(node.value, str) else ""
        yield Problem(node.location, RULE, Level.ERROR, f"{PATH}: {show(node)} is {node.kind}", ALLOWED, fix)
    for item in node.items or ():
        if item.value not in known:
            message = f"{PATH}: there is no rule {show(item)}"
            yield Problem(item.location, RULE, Level.WARNING, message, ", ".join(sorted(known)), "delete it")


def split_ignored(
    document: Document, problems: Iterable[Problem], ignore: Collection[str], silence: Collection[str]
) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """The problems that are to be shown, and the warnings that nobody wants to hear, both in file order.

    Args:
        document: may name rules whose warnings it ignores.
        problems: all that was found.
        ignore: rules whose problems are in neither part.
        silence: rules whose warnings are ignored besides.
    """
    node = document.get("mindswap", "ignore")
    named = {item.value for item in (node.items if node is not None else None) or ()}
    found = [problem for problem in sort_problems(problems) if problem.rule not in ignore]

    def is_unwanted(problem: Problem) -> bool:
        return problem.level is Level.WARNING and (problem.rule in named or problem.rule in silence)

    return tuple(itertools.filterfalse(is_unwanted, found)), tuple(filter(is_unwanted, found))
