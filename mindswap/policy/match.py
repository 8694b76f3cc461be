r"""Operator patterns against the tree of a layer. Pure: returns matches, changes nothing.

As in MindFormers, a pattern is split at `\.`; each part is a regular expression that must match
the whole name on one level; the parts before the last name cells, the last one names a cell or
a primitive.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import regex

from mindswap.errors import MindswapError
from mindswap.policy.cell_tree import CellNode

SEPARATOR = r"\."
MAX_PATTERN_CHARS = 1000
# One part against one attribute name takes microseconds; a pattern that needs longer is
# backtracking without end.
PART_TIMEOUT_S = 0.2


class PatternError(MindswapError):
    """A pattern is not a regular expression, or matching it does not come to an end."""

    def __init__(self, pattern: str, reason: str):
        self.pattern = pattern
        self.reason = reason  # in the words of the regex compiler
        super().__init__(f"'{pattern}': {reason}")


@dataclass(frozen=True)
class Match:
    """One cell or primitive that a pattern names."""

    path: tuple[str, ...]  # attribute names from the layer down, e.g. `("attention", "flash_attention")`
    node: CellNode

    @property
    def name(self) -> str:
        return ".".join(self.path)


def split_pattern(pattern: str) -> tuple[str, ...]:
    r"""The parts of a pattern, one per level: `a\.b` gives `("a", "b")`."""
    return tuple(pattern.split(SEPARATOR))


def exact_pattern(path: str) -> str:
    """The pattern that names exactly one operator path."""
    return SEPARATOR.join(regex.escape(part) for part in path.split("."))


@functools.lru_cache(maxsize=4096)
def compile_part(part: str) -> regex.Pattern:
    """One part of a pattern, compiled.

    Raises:
        PatternError: if it is too long or no regular expression.
    """
    if len(part) > MAX_PATTERN_CHARS:
        raise PatternError(part[:40] + "...", f"longer than {MAX_PATTERN_CHARS} characters")
    try:
        return regex.compile(part)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise PatternError(part, str(error) or type(error).__name__) from None


@functools.lru_cache(maxsize=65536)
def is_match(part: str, name: str) -> bool:
    """Whether a part of a pattern matches the whole name.

    Raises:
        PatternError: if it is no regular expression, or backtracks without end.
    """
    try:
        return compile_part(part).fullmatch(name, timeout=PART_TIMEOUT_S) is not None
    except TimeoutError:
        raise PatternError(part, f"takes longer than {PART_TIMEOUT_S} s on the name '{name}'") from None


@functools.lru_cache(maxsize=4096)
def match_pattern(pattern: str, layer: CellNode) -> tuple[Match, ...]:
    """Every cell and primitive of `layer` that `pattern` (as `op_name`) names, in order of definition.

    Raises:
        PatternError: if a part is no regular expression, or backtracks without end.
    """
    parts = split_pattern(pattern)
    for part in parts:
        compile_part(part)
    return tuple(_match_parts(parts, layer, ()))


def _match_parts(parts: Sequence[str], node: CellNode, path: tuple[str, ...]) -> Iterator[Match]:
    for child in node.children:
        if not is_match(parts[0], child.name):
            continue
        child_path = (*path, child.name)
        if len(parts) == 1:
            yield Match(child_path, child)
        elif not child.is_primitive:
            yield from _match_parts(parts[1:], child, child_path)
