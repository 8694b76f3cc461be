"""Parts of a list or mapping in a configuration, to locate a mistake inside it."""

from dataclasses import dataclass
from typing import NamedTuple

from mindswap.config.nodes import DocumentNode, key_text, show
from mindswap.config.problem import Location


@dataclass(frozen=True)
class Part:
    """A wrong key, element or value inside a list or mapping."""

    steps: tuple[object, ...]  # keys and indices from the list or mapping to the part; () for all of it
    is_key: bool = False  # the key is wrong, not its value
    allowed: str = ""  # allowed values; "" for those of the refusal
    fix: str = ""  # fix; "" for that of the refusal


class LocatedPart(NamedTuple):
    """A part of a value in a document."""

    path: str  # key path
    text: str  # its value as in messages, ` VALUE:`; "" for keys and mappings
    location: Location


def find_part(part: Part, path: str, node: DocumentNode | None, location: Location) -> LocatedPart:
    """Locate a part of a value.

    Args:
        part: a part, or all of the value.
        path: key path of the value.
        node: the value in the document.
        location: location of the value.
    """
    for step in part.steps:
        items, entry = (node.items, node.entry(step)) if node is not None else (None, None)
        if isinstance(step, int) and items is not None and step < len(items):
            path, node, location = f"{path}[{step}]", items[step], items[step].location
        elif entry is not None:
            path, node = f"{path}.{key_text(step)}", entry.value
            location = entry.location if part.is_key else entry.value.location
    has_value = node is not None and node.entries is None and not part.is_key
    return LocatedPart(path, f" {show(node)}:" if has_value else "", location)
