"""What a configuration must not say by hand where the plan decides it."""

from collections.abc import Iterable, Sequence

from mindswap.document.nodes import Document, Node
from mindswap.document.problem import Level, Location, Problem

__all__ = ["find_exclusions", "without_excluded_options"]

RULE = "adaptive-exclusion"
_SELECT = ("select_recompute", "select_comm_recompute")
_FIX = "delete it, or --replace: the plan takes its place, your file stays as it is"


def find_exclusions(document: Document, options: Sequence[str]) -> tuple[Problem, ...]:
    """Swap and recomputation that the user set by hand, in the file and on the command line.

    As with MindSpeed's adaptive memory optimization, which excludes full recompute, selective recompute and
    prefetching swap of the user's own.

    Args:
        document: the configuration.
        options: of the training script.
    """
    return (*_in_file(document), *_in_options(options))


def _in_file(document: Document) -> Iterable[Problem]:
    swap = document.get("swap_config", "swap")
    if swap is not None and _is_on(swap):
        yield _problem(swap.location, "swap_config.swap", "the plan decides what is swapped", ": True")
    for key in ("recompute", *_SELECT):
        node = document.get("recompute_config", key)
        if node is not None and _is_on(node):
            yield _problem(node.location, f"recompute_config.{key}", "the plan decides what is recomputed")


def _in_options(options: Sequence[str]) -> Iterable[Problem]:
    for word in options:
        if _is_excluded(word):
            yield _problem(Location("command line"), word.split("=", 1)[0], "it would override the plan")


def without_excluded_options(options: Sequence[str]) -> list[str]:
    """The options without those that set swap or recomputation."""
    kept: list[str] = []
    words = iter(options)
    for word in words:
        if not _is_excluded(word):
            kept.append(word)
        elif "=" not in word:
            next(words, None)  # its value
    return kept


def _is_excluded(word: str) -> bool:
    return word.startswith(("--swap_config.", "--recompute_config."))


def _is_on(node: Node) -> bool:
    if node.items is not None:
        return any(_is_on(item) for item in node.items)
    if node.entries is not None:
        return any(_is_on(entry.value) for entry in node.entries)
    return bool(node.value) and node.value not in ("False", "false")


def _problem(location: Location, subject: str, why: str, value: str = "") -> Problem:
    return Problem(
        location,
        RULE,
        Level.ERROR,
        f"{subject}{value}: set by hand, together with --adaptive-memory-optimization: {why}",
        fix=_FIX,
        subject=subject,
    )
