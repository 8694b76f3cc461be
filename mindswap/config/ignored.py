"""Warnings that a configuration does not want to hear: `mindswap: {ignore: [overlap]}`. Errors stay."""

from collections.abc import Collection, Iterable, Iterator

from mindswap.document.nodes import Document, show
from mindswap.document.problem import Level, Problem, sort_problems

__all__ = ["RULE", "ignored_rules", "misused_ignore", "split_ignored"]

RULE = "bad-ignore"
PATH = "mindswap.ignore"
ALLOWED = "a list of rules, the words in brackets behind warnings: [overlap, recompute-wins]"


def ignored_rules(document: Document) -> frozenset[str]:
    """The rules whose warnings a configuration ignores."""
    node = document.get("mindswap", "ignore")
    return frozenset(str(item.value) for item in node.items or ()) if node is not None else frozenset()


def misused_ignore(document: Document, known: Collection[str]) -> Iterator[Problem]:
    """What is no list, and names that no rule has.

    Args:
        document: the configuration.
        known: rules that there are.
    """
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
    problems: Iterable[Problem], rules: Collection[str]
) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """The problems that are to be shown, and the warnings of ignored rules, both in file order."""
    found = sort_problems(problems)
    ignored = tuple(p for p in found if p.level is Level.WARNING and p.rule in rules)
    return tuple(p for p in found if p.level is not Level.WARNING or p.rule not in rules), ignored
