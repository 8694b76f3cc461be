"""Format sets of layers and lists of names for messages, and find the closest valid name."""

import difflib
from collections.abc import Iterable

from mindswap.policy.model import Layers

MAX_COMPARED_CHARS = 120


def format_indices(indices: Iterable[int]) -> str:
    """Format indices with runs joined: `0-2, 5`."""
    return ", ".join(index_runs(indices))


def index_runs(indices: Iterable[int]) -> list[str]:
    """Format each run of indices: `0-2` and `5`."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def name_indices(noun: str, indices: Iterable[int]) -> str:
    """Format a noun with indices: `worker 3`, `workers 1-2`, `workers 0, 3-5`."""
    named = set(indices)
    return f"{noun}{'' if len(named) == 1 else 's'} {format_indices(named) or '(none)'}"


def format_layers(layers: Layers) -> str:
    """Format a set of layers: `layer 3`, `layers 0-2, 5`, `every layer`."""
    if layers.indices is None:
        return "every layer"
    return name_indices("layer", layers.indices)


def format_names(names: Iterable[str], limit: int = 3) -> str:
    """Format the first `limit` names, and the number of the others."""
    names = tuple(names)
    num_more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {num_more} more" if num_more > 0 else "")


def closest_names(name: str, candidates: Iterable[str], limit: int = 1, min_similarity: float = 0.0) -> list[str]:
    """Return the candidates most similar to a name, ignoring case, best first.

    Args:
        name: the name.
        candidates: names to choose from.
        limit: maximum number of results.
        min_similarity: minimum similarity, from 0 to 1 (ratio of difflib).
    """
    matcher = difflib.SequenceMatcher(b=name.lower()[:MAX_COMPARED_CHARS], autojunk=False)
    best: list[tuple[float, str]] = []
    for candidate in candidates:
        matcher.set_seq1(candidate.lower()[:MAX_COMPARED_CHARS])
        lowest_kept = best[-1][0] if len(best) == limit else -1.0
        similarity = 1.0
        for upper_bound in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio):  # cheapest first
            if (similarity := min(similarity, upper_bound())) < min_similarity or similarity <= lowest_kept:
                break
        else:
            best = sorted([*best, (similarity, candidate)], key=lambda pair: -pair[0])[:limit]
    return [candidate_name for _, candidate_name in best]


def last_key(path: str) -> str:
    r"""Return the last key of a key path, as in YAML: `recompute`, or `'attention\.wq'` of a mapping."""
    if path.endswith("']"):
        return "'" + path[path.rindex("['") + 2 : -2] + "'"
    return path.rpartition(".")[2].partition("[")[0]
