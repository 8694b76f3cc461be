"""Options of a command that have no counterpart here, or are misspelled."""

import difflib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mindswap.config.problem import Level
from mindswap.files import package_data
from mindswap.policy.formats.megatron.options import OPTIONS

# A missing letter gives 0.98 to 0.99 (`--num-layers-per-virtual-pipeline-stag` of a script of MindSpeed-LLM); the two
# options that are most alike, --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers, give 0.93.
LEAST_LIKENESS = 0.95
NOT_READ = "saves memory there, has no counterpart in MindFormers and is left out"


class OtherOption(NamedTuple):
    """An option that is not read."""

    name: str  # as it is written
    level: Level
    message: str
    fix: str


def find_other_options(words: Iterable[str]) -> Iterator[OtherOption]:
    """Yield options about memory that are not known or have no counterpart; misspelled ones are warnings.

    So are options about other memory than that of activations and optimizer states, such as that of the loss.

    Args:
        words: the words of a command.
    """
    data = package_data("megatron/other_options.yaml")
    names = dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))
    for name in names:
        if name in OPTIONS or name in data["ignored"]:
            continue
        close_matches = difflib.get_close_matches(name, OPTIONS, n=1, cutoff=LEAST_LIKENESS)
        if name in data["no_counterpart"]:
            yield OtherOption(name, Level.ERROR, "has no counterpart in MindFormers", data["no_counterpart"][name])
        elif name in data["not_read"]:
            yield OtherOption(name, Level.WARNING, NOT_READ, data["not_read"][name])
        elif any(word in name for word in data["words"]):
            yield OtherOption(name, Level.ERROR, "is not known", close_matches[0] if close_matches else "delete it")
        elif close_matches:
            yield OtherOption(name, Level.WARNING, f"is not read; {close_matches[0]} is", close_matches[0])
