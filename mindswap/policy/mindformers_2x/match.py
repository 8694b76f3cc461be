"""Patterns of MindFormers 2.x against the paths of a layer: a pattern must match a whole dotted path.

As in `_expand_select_module` of mindformers/pynative/distributed/activation_checkpoint.py (2.1.0). So `.` is any
character and `.*` crosses levels, unlike in graph mode.
"""

import functools
from dataclasses import dataclass

from mindswap.policy.match import PART_TIMEOUT_S, PatternError, compile_part


@dataclass(frozen=True)
class LayerPaths:
    """What a pattern can name in one layer."""

    cells: frozenset[str]  # dotted paths of cells
    callables: frozenset[str]  # dotted paths of callables: primitives, functions, methods
    order: tuple[str, ...]  # all of them in the order in which upstream lists them


@functools.lru_cache(maxsize=4096)
def match_paths(pattern: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """The paths that a pattern names, in their order.

    Raises:
        PatternError: it is no regular expression, or matching does not come to an end.
    """
    compiled = compile_part(pattern)
    try:
        return tuple(path for path in paths if compiled.fullmatch(path, timeout=PART_TIMEOUT_S) is not None)
    except TimeoutError:
        raise PatternError(pattern, f"takes longer than {PART_TIMEOUT_S} s on one name") from None


def is_below(path: str, parent: str) -> bool:
    """True if a path stands below another one."""
    return path.startswith(parent + ".")
