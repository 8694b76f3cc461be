"""Words for messages: sets of layers, lists of names, and the closest valid name."""

from collections import Counter
from collections.abc import Iterable

from mindswap.policy.model import Layers

MAX_COMPARED_CHARS = 120


def format_indices(indices: Iterable[int]) -> str:
    """Indices with runs joined: `0-2, 5`."""
    return ", ".join(index_runs(indices))


def index_runs(indices: Iterable[int]) -> list[str]:
    """Indices as texts, runs as one: `0-2` and `5`."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def name_indices(noun: str, indices: Iterable[int]) -> str:
    """`worker 3`, `workers 1-2`, `workers 0, 3-5`."""
    named = set(indices)
    return f"{noun}{'' if len(named) == 1 else 's'} {format_indices(named) or '(none)'}"


def format_layers(layers: Layers) -> str:
    """A set of layers in words: `layer 3`, `layers 0-2, 5`, `every layer`."""
    if layers.indices is None:
        return "every layer"
    return name_indices("layer", layers.indices)


def format_names(names: Iterable[str], limit: int = 3) -> str:
    """The first names, and how many more there are."""
    names = tuple(names)
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def closest_names(name: str, candidates: Iterable[str], limit: int = 1, max_distance: int | None = None) -> list[str]:
    """The candidates that take the fewest edits to reach, at most `max_distance`, closest first."""
    # The lengths, then the letters that differ bound the distance from below; most candidates need no closer look.
    letters = Counter(name.lower())
    bounds: list[tuple[int, int, str]] = []
    for index, candidate in enumerate(candidates):
        if max_distance is None or abs(len(candidate) - len(name)) <= max_distance:
            others = Counter(candidate.lower())
            bounds.append((max((letters - others).total(), (others - letters).total()), index, candidate))
    best: list[tuple[int, int, str]] = []
    for bound, index, candidate in sorted(bounds):
        limit_now = best[limit - 1][0] if len(best) >= limit else bound
        if bound > limit_now or (max_distance is not None and bound > max_distance):
            break
        distance = edit_distance(name.lower(), candidate.lower())
        if max_distance is None or distance <= max_distance:
            best = sorted([*best, (distance, index, candidate)])[:limit]
    return [candidate for *_, candidate in best]


def edit_distance(left: str, right: str) -> int:
    """Insertions, deletions and substitutions between two strings (the first 120 characters of each)."""
    left, right = left[:MAX_COMPARED_CHARS], right[:MAX_COMPARED_CHARS]
    row = list(range(len(right) + 1))
    for i, left_char in enumerate(left, 1):
        above_left, row[0] = row[0], i
        for j, right_char in enumerate(right, 1):
            above_left, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above_left + (left_char != right_char))
    return row[-1]


def last_key(path: str) -> str:
    """The key that a path ends with, as it is written in YAML: `recompute`, or `'attention\\.wq'` of a mapping."""
    if path.endswith("']"):
        return "'" + path[path.rindex("['") + 2 : -2] + "'"
    return path.rpartition(".")[2].partition("[")[0]
