"""A YAML configuration as nodes with locations; input of the readers in `policy/`.

`parse` makes them from text, `render` from Python data. Aliases share one node, so a
document is a graph without cycles and is never expanded.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard, TypeVar

import yaml

from mindswap.config.characters import WideCharacter
from mindswap.config.problem import Location, Problem

# Character range of each value in a YAML text, for edits in place.
#
# `builder` creates them together with the nodes. Indices count characters without the byte order mark, which libyaml
# does not count. They may be incomplete if the text has problems.


@dataclass(eq=False)
class Span:
    """Character range of one value."""

    start: int  # index of the first character, including an anchor or tag before the value
    end: int  # index after the last character, without comments and blank lines after a block
    column: int  # column of the first character, from 0
    is_flow: bool = False  # a list or mapping in brackets
    anchor: str | None = None  # name of its anchor or alias
    alias_of: "Span | None" = None  # for an alias, the range of its anchor
    entries: "list[tuple[Span, Span]]" = field(default_factory=list)  # (key, value) of a mapping
    items: "list[Span]" = field(default_factory=list)  # elements of a list
    text: str = ""  # text of a scalar

    def walk(self) -> "Iterator[Span]":
        """Yield this span and all spans inside it, without those of aliased values."""
        yield self
        for part in (*itertools.chain(*self.entries), *self.items):
            yield from part.walk()


def span_of(event: yaml.NodeEvent, text: str) -> Span:
    """Return the span of the value that starts with a parser event, without children."""
    if event.start_mark is None or event.end_mark is None:
        raise AssertionError("an event without a position")
    start, end = event.start_mark.index, event.end_mark.index
    span = Span(start, end, event.start_mark.column, anchor=event.anchor)
    if isinstance(event, yaml.CollectionStartEvent):
        span.is_flow = bool(event.flow_style)
    elif isinstance(event, yaml.ScalarEvent):
        span.text = event.value
        if event.style in ("|", ">"):  # the end mark is after the trailing blank lines
            span.end = start + len(text[start:end].rstrip())
    return span


MAX_SHOWN_CHARS = 60
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class DocumentNode:
    """One value: a scalar, a list or a mapping."""

    location: Location  # start of the value
    value: Any = None  # the value of a scalar; None for a list or a mapping
    items: "tuple[DocumentNode, ...] | None" = None  # the elements of a list, else None
    # the entries of a mapping, else None; of duplicate keys, the last one is effective
    entries: "tuple[MappingEntry, ...] | None" = None
    _entry_of: "dict[object, MappingEntry]" = field(init=False)  # derived: the effective entries by key

    def __post_init__(self) -> None:
        object.__setattr__(self, "_entry_of", {entry.key: entry for entry in self.entries or ()})

    @property
    def is_null(self) -> bool:
        """Return whether the value is null."""
        return self.items is None and self.entries is None and self.value is None

    @property
    def kind(self) -> str:
        """The type of the value in words, for messages."""
        if self.items is not None:
            return "a list"
        if self.entries is not None:
            return "a mapping"
        names = {bool: "a bool", int: "an integer", float: "a float", str: "a string", type(None): "null"}
        return names.get(type(self.value), type(self.value).__name__)

    def unique_entries(self) -> "tuple[MappingEntry, ...]":
        """The effective entries of a mapping, one per key."""
        return tuple(self._entry_of.values())

    def entry(self, key: object) -> "MappingEntry | None":
        """Return the entry with a key; None if it is missing or this is not a mapping."""
        return self._entry_of.get(key)

    def get(self, *keys: str) -> "DocumentNode | None":
        """Return the value at a key path; None if a key is missing."""
        node: DocumentNode | None = self
        for key in keys:
            entry = node.entry(key) if node is not None else None
            node = entry.value if entry is not None else None
        return node


@dataclass(frozen=True, eq=False)
class MappingEntry:
    """One `key: value` of a mapping; `location` is that of the key."""

    key: object
    location: Location
    value: DocumentNode


@dataclass(frozen=True)
class DuplicateKey:
    """A key that occurs twice in one mapping."""

    path: str  # key path, e.g. `swap_config.swap`
    location: Location  # of the second key
    first: Location  # of the first key

    @property
    def section(self) -> str:
        """The top-level key that contains it."""
        return self.path.partition(".")[0].partition("[")[0]

    @property
    def message(self) -> str:
        """Message for readers that use the last of the two."""
        return f"{self.path}: appears twice, first at {self.first}; this one is used"


@dataclass(frozen=True, eq=False)
class Document:
    """A parsed configuration."""

    file: str  # name of the file, for messages
    root: DocumentNode | None  # the top-level mapping; None if the file could not be read
    problems: tuple[Problem, ...] = ()  # syntax problems
    duplicates: tuple[DuplicateKey, ...] = ()  # duplicate keys
    # character ranges of all values; None if there is no text
    span: Span | None = None
    wide: tuple[WideCharacter, ...] = ()  # keys and values with full-width look-alikes of YAML characters

    def get(self, *keys: str) -> DocumentNode | None:
        """Return the value at a key path; None if a key is missing."""
        return self.root.get(*keys) if self.root is not None else None

    def entry(self, *keys: str) -> MappingEntry | None:
        """Return the entry at a key path, located at its last key; None if a key is missing."""
        above = self.get(*keys[:-1])
        return above.entry(keys[-1]) if above is not None else None

    def location_of(self, *keys: str) -> Location:
        """Return the location of the value at a key path; that of the file if a key is missing."""
        node = self.get(*keys)
        return node.location if node is not None else Location(self.file)

    def value(self, *keys: str) -> Any:
        """Return the scalar at a key path; None for null, lists and mappings, and if a key is missing."""
        node = self.get(*keys)
        return node.value if node is not None else None

    def data(self) -> dict[Any, Any]:
        """Return the configuration as plain lists, dicts and scalars; empty if it could not be parsed."""
        data = to_data(self.root) if self.root is not None else {}
        if not isinstance(data, dict):
            raise AssertionError("a document that is no mapping")
        return data

    def count(self, *path: str) -> int:
        """Return a positive integer at a key path; 1 if it is missing or invalid, the default of MindFormers."""
        value = self.value(*path)
        return value if is_int(value) and value >= 1 else 1

    @property
    def is_legacy(self) -> bool:
        """Return whether the model is a legacy one: `use_legacy` is not False."""
        return self.value("use_legacy") is not False

    @property
    def is_parallel(self) -> bool:
        """Return whether the section `parallel` is in effect: `use_parallel` is not False."""
        return self.value("use_parallel") is not False


def expanded_size(node: DocumentNode, weigh: Callable[[DocumentNode], int] = lambda node: 1) -> int:
    """Return the number of values of a node with all aliases expanded; `weigh` returns the weight of a value."""
    sizes: dict[int, int] = {}
    for current in children_first(node, _children):
        sizes[id(current)] = weigh(current) + sum(sizes[id(child)] for child in _children(current))
    return sizes[id(node)]


def to_data(node: DocumentNode) -> object:
    """Convert a node to plain lists, dicts and scalars; shared nodes stay shared."""
    data: dict[int, object] = {}
    for current in children_first(node, _children):
        if current.items is not None:
            data[id(current)] = [data[id(item)] for item in current.items]
        elif current.entries is not None:
            data[id(current)] = {entry.key: data[id(entry.value)] for entry in current.entries}
        else:
            data[id(current)] = current.value
    return data[id(node)]


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer but not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_huge(value: object) -> bool:
    """Return whether a value is an integer with more digits than Python prints."""
    return isinstance(value, int) and value.bit_length() > 4096


def key_text(key: object) -> str:
    """Format a key for a key path, shortened."""
    text = str(key)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


def join_path(path: str, key: object) -> str:
    """Append a key to a key path."""
    return f"{path}.{key_text(key)}" if path else key_text(key)


def show(value: object) -> str:
    """Format a value as one line of YAML, shortened, for messages."""
    text = "".join(_show_parts(value, MAX_SHOWN_CHARS + 1))
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


def _show_parts(value: object, max_chars: int) -> Iterator[str]:
    """Yield the text of a value in pieces, at most slightly more than `max_chars` characters."""
    if isinstance(value, DocumentNode):
        if value.items is not None:
            yield from _show_sequence("[", ((None, item) for item in value.items), "]", max_chars)
            return
        if value.entries is not None:
            yield from _show_sequence("{", ((entry.key, entry.value) for entry in value.entries), "}", max_chars)
            return
        value = value.value
    if isinstance(value, str):
        yield f"'{value[:max_chars]}'" if value.isprintable() else repr(value[:max_chars])
    elif value is None:
        yield "null"
    else:
        yield repr(value)[:max_chars]


def _show_sequence(opening: str, pairs: Iterable[tuple[object, object]], closing: str, max_chars: int) -> Iterator[str]:
    yield opening
    for index, (key, child) in enumerate(pairs):
        prefix = (", " if index else "") + ("" if key is None else "".join(_show_parts(key, max_chars)) + ": ")
        max_chars -= len(prefix)
        yield prefix
        for part in _show_parts(child, max(max_chars, 0)):
            max_chars -= len(part)
            yield part
        if max_chars <= 0:
            break
    yield closing


def _children(node: DocumentNode) -> tuple[DocumentNode, ...]:
    return node.items if node.items is not None else tuple(entry.value for entry in node.entries or ())


def children_first(node: T, children: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield each node of an acyclic graph once, children before parents, without recursion."""
    done: set[int] = set()
    stack = [(node, False)]
    while stack:
        current, is_expanded = stack.pop()
        if id(current) in done:
            continue
        if is_expanded:
            done.add(id(current))
            yield current
        else:
            stack.append((current, True))
            stack.extend((child, False) for child in children(current) if id(child) not in done)
