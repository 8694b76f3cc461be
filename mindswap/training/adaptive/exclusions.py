"""What a configuration must not say by hand where the plan decides it."""

from collections.abc import Iterator, Sequence

from mindswap.config.nodes import Document, DocumentNode
from mindswap.config.problem import Level, Location, Problem
from mindswap.config.render import COMMAND_LINE

RULE = "adaptive-exclusion"
_FIX = "delete it, or --replace: the plan takes its place, your file stays as it is"


def find_exclusions(document: Document, options: Sequence[str]) -> tuple[Problem, ...]:
    """Swap and recomputation that the user set by hand, in the file and in the options of the training script.

    As with MindSpeed's adaptive memory optimization, which excludes full recompute, selective recompute and
    prefetching swap of the user's own.
    """
    return (*_in_file(document), *_in_options(options))


def is_excluded(option: str) -> bool:
    """Whether an option of the training script sets swap or recomputation."""
    return option.startswith(("--swap_config.", "--recompute_config."))


def _in_file(document: Document) -> Iterator[Problem]:
    swap = document.get("swap_config", "swap")
    if swap is not None and _is_on(swap):
        yield _problem(swap.location, "swap_config.swap", "the plan decides what is swapped", ": True")
    for key in ("recompute", "select_recompute", "select_comm_recompute"):
        node = document.get("recompute_config", key)
        if node is not None and _is_on(node):
            yield _problem(node.location, f"recompute_config.{key}", "the plan decides what is recomputed")


def _in_options(options: Sequence[str]) -> Iterator[Problem]:
    for word in options:
        if is_excluded(word):
            yield _problem(Location(COMMAND_LINE), word.split("=", 1)[0], "it would override the plan")


def _is_on(node: DocumentNode) -> bool:
    if node.items is not None:
        return any(_is_on(item) for item in node.items)
    if node.entries is not None:
        return any(_is_on(entry.value) for entry in node.entries)
    return bool(node.value) and node.value not in ("False", "false")


def _problem(location: Location, subject: str, why: str, value: str = "") -> Problem:
    message = f"{subject}{value}: set by hand, together with --adaptive-memory-optimization: {why}"
    return Problem(location, RULE, Level.ERROR, message, fix=_FIX, subject=subject)
