"""Parts of a list or mapping in a configuration: where exactly the mistake is."""

from dataclasses import dataclass

from mindswap.config.nodes import DocumentNode, key_text, show
from mindswap.config.problem import Location


@dataclass(frozen=True)
class Part:
    """A key, an element or a value in a list or mapping at which a training stops."""

    steps: tuple[object, ...]  # keys and indices from the list or mapping to it
    is_key: bool = False  # the key is wrong, not its value
    allowed: str = ""  # in place of that of the refusal
    fix: str = ""  # likewise


def find_part(part: Part, path: str, node: DocumentNode | None, location: Location) -> tuple[str, str, Location]:
    """Return the key path of a part of a value, its value as messages show it, and its place.

    Args:
        part: a part, or all of the value.
        path: key path of the value.
        node: the value in the document.
        location: where the value begins.
    """
    for step in part.steps:
        items, entry = (node.items, node.entry(step)) if node is not None else (None, None)
        if isinstance(step, int) and items is not None and step < len(items):
            path, node, location = f"{path}[{step}]", items[step], items[step].location
        elif entry is not None:
            path, node = f"{path}.{key_text(step)}", entry.value
            location = entry.location if part.is_key else entry.value.location
    has_value = node is not None and node.entries is None and not part.is_key
    return path, f" {show(node)}:" if has_value else "", location
