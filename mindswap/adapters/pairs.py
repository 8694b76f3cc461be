"""Pairs of MindFormers and MindSpore, and how far mindswap goes with each: what `make matrix` tries."""

from dataclasses import dataclass

__all__ = ["PAIRS", "Pair", "describe_pair", "is_known_pair"]


@dataclass(frozen=True)
class Pair:
    """Two versions that work together; `mindformers` is "" for MindSpore alone."""

    mindformers: str
    mindspore: str


PAIRS = (
    Pair("1.6.0", "2.7.0"),
    Pair("1.7.0", "2.7.1"),
    Pair("1.8.0", "2.7.2"),
    Pair("1.9.0", "2.9.0"),
    Pair("2.1.0", "2.9.0"),
    Pair("", "2.10.0"),
)
_BEST = "pip install mindformers==1.9.0 mindspore==2.9.0"


def is_known_pair(mindformers: str, mindspore: str) -> bool:
    """Whether mindswap works with it; a fourth number, such as 2.7.1.post1, makes no difference."""
    return Pair(_release(mindformers), _release(mindspore)) in PAIRS


def describe_pair(mindformers: str) -> str:
    """What to install for a version of MindFormers that mindswap does not know with the MindSpore beside it."""
    partner = next((pair.mindspore for pair in PAIRS if pair.mindformers == _release(mindformers)), "")
    return f"pip install mindspore=={partner}, which belongs to it" if partner else _BEST


def _release(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:3])
