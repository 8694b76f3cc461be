"""Pairs of MindFormers and MindSpore, and how far mindswap goes with each: what `make matrix` tries."""

from dataclasses import dataclass

__all__ = ["PAIRS", "Pair", "describe_pair", "find_pair", "is_known_pair"]


@dataclass(frozen=True)
class Pair:
    """Two versions that are tried together.

    Attributes:
        mindformers: version; "" for MindSpore alone.
        mindspore: version.
        refused: why mindswap stops with it; "" if it works.
        install: what to install instead, for one that is refused.
    """

    mindformers: str
    mindspore: str
    refused: str = ""
    install: str = ""


PAIRS = (
    Pair("1.6.0", "2.7.0"),
    Pair("1.7.0", "2.7.1"),
    Pair("1.8.0", "2.7.2"),
    Pair("1.9.0", "2.9.0"),
    Pair("2.1.0", "2.9.0"),
    Pair("", "2.10.0"),
)
_BEST = "pip install mindformers==1.9.0 mindspore==2.9.0"


def find_pair(mindformers: str, mindspore: str) -> Pair | None:
    """The pair of these versions; a fourth number, such as 2.7.1.post1, makes no difference."""
    wanted = (_release(mindformers), _release(mindspore))
    return next((pair for pair in PAIRS if (pair.mindformers, pair.mindspore) == wanted), None)


def is_known_pair(mindformers: str, mindspore: str) -> bool:
    """Whether mindswap works with it."""
    pair = find_pair(mindformers, mindspore)
    return pair is not None and not pair.refused


def describe_pair(mindformers: str, mindspore: str) -> str:
    """What to install instead."""
    pair = find_pair(mindformers, mindspore)
    if pair is not None and pair.install:
        return pair.install
    partner = next((one.mindspore for one in PAIRS if one.mindformers == _release(mindformers) and not one.refused), "")
    return f"pip install mindspore=={partner}, which belongs to it" if partner else _BEST


def _release(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:3])
