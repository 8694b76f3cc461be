"""Compare the located nodes of a text with the data that MindFormers would load from the same parser events.

Source: `MindFormerConfig._file2dict` and `check_yaml_depth_before_loading` of mindformers 1.9.0: `yaml.compose`, at
most 10 nested mappings, `yaml.safe_load`, and the top level sorted by key. An exception there is an error here.
"""

from collections import deque
from collections.abc import Iterable
from typing import cast

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from mindswap.config.nodes import DocumentNode, children_first, join_path, show
from mindswap.config.problem import Level, Location, Problem

MAX_MAPPING_DEPTH = 10


class _EventLoader(Composer, SafeConstructor, Resolver):
    """`yaml.SafeLoader` without its parser: it reads recorded events."""

    def __init__(self, events: Iterable[yaml.Event]):
        for base in (Composer, SafeConstructor, Resolver):
            base.__init__(self)
        self._events = deque(events)

    def check_event(self, *kinds: type) -> bool:
        """Return whether there is a next event, and it has one of these types."""
        return bool(self._events) and (not kinds or isinstance(self._events[0], kinds))

    def peek_event(self) -> yaml.Event | None:
        """Return the next event without removing it."""
        return self._events[0] if self._events else None

    def get_event(self) -> yaml.Event | None:
        """Remove and return the next event."""
        return self._events.popleft() if self._events else None


def find_load_problem(events: Iterable[yaml.Event], root: DocumentNode, file: str) -> Problem | None:
    """Return a problem if MindFormers cannot load a text that was parsed without an error, or loads other data.

    Args:
        events: all events of the text.
        root: the located nodes.
        file: name for messages.

    Returns:
        The problem; None if MindFormers loads the same data.
    """
    loader = _EventLoader(events)
    try:
        node = cast(yaml.Node, loader.get_single_node())  # None only for an empty document
        too_deep = _find_deepest_mapping(node)
        if too_deep is not None:
            depth, place = too_deep
            message = f"{depth} nested mappings, and MindFormers refuses the file"
            return _problem(file, place, "yaml-depth", message, f"at most {MAX_MAPPING_DEPTH}")
        data = loader.construct_document(node)
        sorted(data.items())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context
        return _problem(file, mark, "yaml-value", f"PyYAML, and so MindFormers, refuses the file: {reason}")
    except TypeError:
        first = node.value[0][0]
        key = next((key for key, _ in node.value if key.tag != first.tag), first)
        message = "keys of the top level are of different types, and MindFormers sorts them"
        return _problem(file, key.start_mark, "yaml-key", message, "strings")
    except RecursionError:
        return _problem(file, None, "yaml-merge", "`<<` refers to mappings with `<<` of their own too many times over")
    except (AttributeError, ValueError, yaml.YAMLError) as error:
        return _problem(file, None, "yaml-value", f"PyYAML, and so MindFormers, refuses the file: {error}")
    return _first_difference(root, data)


def _first_difference(root: DocumentNode, data: object) -> Problem | None:
    """Return the first difference between located nodes and data, breadth first; shared values are compared once."""
    compared: set[tuple[int, int]] = set()
    waiting: deque[tuple[str, DocumentNode, object]] = deque([("", root, data)])
    while waiting:
        path, node, value = waiting.popleft()
        if (id(node), id(value)) in compared:
            continue
        compared.add((id(node), id(value)))
        if node.entries is not None and type(value) is dict:
            entries = {entry.key: entry for entry in node.unique_entries()}
            for key in (*(key for key in value if key not in entries), *(key for key in entries if key not in value)):
                place = entries[key].location if key in entries else node.location
                return _difference(place, join_path(path, key), "the key", "no such key", is_exclusive=key in entries)
            waiting.extend((join_path(path, key), entry.value, value[key]) for key, entry in entries.items())
        elif node.items is not None and type(value) is list and len(value) == len(node.items):
            waiting.extend((f"{path}[{i}]", *pair) for i, pair in enumerate(zip(node.items, value, strict=True)))
        elif node.entries is not None or node.items is not None or not _is_same_scalar(node.value, value):
            return _difference(node.location, path, show(node), show(value), is_exclusive=True)
    return None


def _difference(location: Location, path: str, left: str, right: str, *, is_exclusive: bool) -> Problem:
    ours, theirs = (left, right) if is_exclusive else (right, left)
    message = f"{path}: PyYAML {yaml.__version__}, and so MindFormers, reads {theirs}, and mindswap {ours}"
    fix = "write the value in plain YAML, without a tag and without `<<`"
    return Problem(location, "yaml-value", Level.ERROR, message, fix=fix)


def _is_same_scalar(left: object, right: object) -> bool:
    return type(left) is type(right) and (left == right or (left != left and right != right))  # noqa: PLR0124 not a number


def _find_deepest_mapping(node: yaml.Node) -> tuple[int, yaml.Mark] | None:
    """Return depth and position of the innermost mapping if mappings are nested too deep; lists reset the depth."""
    depth_of: dict[int, int] = {}
    for current in children_first(node, _mappings_in):
        depth_of[id(current)] = 1 + max((depth_of[id(value)] for value in _mappings_in(current)), default=0)
    depth = depth_of[id(node)]
    if depth <= MAX_MAPPING_DEPTH:
        return None
    for _ in range(depth - 1):
        node = max(_mappings_in(node), key=lambda value: depth_of[id(value)])
    return depth, node.start_mark


def _mappings_in(node: yaml.Node) -> list[yaml.Node]:
    return [value for _, value in node.value if isinstance(value, yaml.MappingNode)]


def _problem(file: str, mark: yaml.Mark | None, rule: str, message: str, allowed: str = "") -> Problem:
    location = Location(file, mark.line + 1, mark.column + 1) if mark is not None else Location(file, 1, 1)
    return Problem(location, rule, Level.ERROR, message, allowed)
