"""Lists of layers as MindFormers 2.x writes them: `5`, `'5'`, `0-19`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mindswap.config.nodes import DocumentNode, is_huge
from mindswap.config.problem import Location

# `_LAYER_ID_SPEC_PATTERN` of mindformers/pynative/distributed/activation_checkpoint.py (2.1.0).
_SPEC = re.compile(r"(\d+)(?:-(\d+))?")
# Longer numbers name no layer of any model.
_MAX_CHARS = 15


@dataclass(frozen=True)
class LayerSpec:
    """One element of a list of layers, both ends inclusive; `first` may be above `last`."""

    first: int
    last: int
    path: str
    location: Location

    @property
    def text(self) -> str:
        """The element as it is written."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def parse_spec(node: DocumentNode, path: str) -> LayerSpec | None:
    """The layers that one list element names; None if it is none that upstream accepts."""
    if node.items is not None or node.entries is not None or is_huge(node.value):
        return None
    text = str(node.value).strip()
    match = _SPEC.fullmatch(text)
    if match is None or len(text) > _MAX_CHARS:
        return None
    first = int(match[1])
    return LayerSpec(first, int(match[2]) if match[2] is not None else first, path, node.location)


def indices_of(specs: Iterable[LayerSpec], limit: int) -> tuple[int, ...]:
    """The layers below `limit`, ascending."""
    found: set[int] = set()
    for spec in specs:
        found.update(range(spec.first, min(spec.last, limit - 1) + 1))
    return tuple(sorted(found))
