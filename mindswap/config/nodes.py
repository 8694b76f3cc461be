"""A configuration as located nodes: what every later step of `policy/` reads.

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

# Where each value of a YAML text stands, from its first to its last character: what an editor needs.
#
# `builder` makes them beside the nodes. Indices count the characters of a text without byte order mark (libyaml does
# not count it). Of a text with problems they need not be whole.


@dataclass(eq=False)
class Span:
    """The characters of one value."""

    start: int  # index of the first character; an anchor or a tag before the value belongs to it
    end: int  # index behind the last one. Comments and blank lines behind a block do not belong to it.
    column: int  # column of the first character, from 0
    is_flow: bool = False  # a list or mapping in brackets
    anchor: str | None = None  # name of its anchor, or of the one it is an alias of
    alias_of: "Span | None" = None  # for an alias, what it stands for
    entries: "list[tuple[Span, Span]]" = field(default_factory=list)  # (key, value) of a mapping
    items: "list[Span]" = field(default_factory=list)  # elements of a list
    text: str = ""  # text of a scalar

    def walk(self) -> "Iterator[Span]":
        """This span and all that stand in it; what an alias stands for is not in it."""
        yield self
        for part in (*itertools.chain(*self.entries), *self.items):
            yield from part.walk()


def span_of(event: yaml.NodeEvent, text: str) -> Span:
    """The characters of the value that an event of the parser begins, with nothing in it yet."""
    if event.start_mark is None or event.end_mark is None:
        raise AssertionError("an event without a position")
    start, end = event.start_mark.index, event.end_mark.index
    span = Span(start, end, event.start_mark.column, anchor=event.anchor)
    if isinstance(event, yaml.CollectionStartEvent):
        span.is_flow = bool(event.flow_style)
    elif isinstance(event, yaml.ScalarEvent):
        span.text = event.value
        if event.style in ("|", ">"):  # its end mark is behind the blank lines below it
            span.end = start + len(text[start:end].rstrip())
    return span


MAX_SHOWN_CHARS = 60
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class DocumentNode:
    """One value: a scalar, a list or a mapping."""

    location: Location  # where the value begins
    value: Any = None  # the value of a scalar; None for a list or a mapping
    items: "tuple[DocumentNode, ...] | None" = None  # the elements of a list, else None
    # the entries of a mapping, else None; a key may stand more than once, the last one counts
    entries: "tuple[MappingEntry, ...] | None" = None
    _entry_of: "dict[object, MappingEntry]" = field(init=False)  # derived: the entries that count, by their keys

    def __post_init__(self) -> None:
        object.__setattr__(self, "_entry_of", {entry.key: entry for entry in self.entries or ()})

    @property
    def is_null(self) -> bool:
        """True for YAML's null."""
        return self.items is None and self.entries is None and self.value is None

    @property
    def kind(self) -> str:
        """The type in words, for messages."""
        if self.items is not None:
            return "a list"
        if self.entries is not None:
            return "a mapping"
        names = {bool: "a bool", int: "an integer", float: "a float", str: "a string", type(None): "null"}
        return names.get(type(self.value), type(self.value).__name__)

    def unique_entries(self) -> "tuple[MappingEntry, ...]":
        """The entries of a mapping that count, one per key."""
        return tuple(self._entry_of.values())

    def entry(self, key: object) -> "MappingEntry | None":
        """The entry with this key; None if there is none or this is not a mapping."""
        return self._entry_of.get(key)

    def get(self, *keys: str) -> "DocumentNode | None":
        """The value below these keys; None if one of them is missing."""
        node: DocumentNode | None = self
        for key in keys:
            entry = node.entry(key) if node is not None else None
            node = entry.value if entry is not None else None
        return node


@dataclass(frozen=True, eq=False)
class MappingEntry:
    """One `key: value` of a mapping; `location` is where the key stands."""

    key: object
    location: Location
    value: DocumentNode


@dataclass(frozen=True)
class DuplicateKey:
    """A key that stands twice in one mapping."""

    path: str  # key path, e.g. `swap_config.swap`
    location: Location  # of the second key
    first: Location  # of the first key

    @property
    def section(self) -> str:
        """The top-level key that it is, or stands in."""
        return self.path.partition(".")[0].partition("[")[0]

    @property
    def message(self) -> str:
        """Message for a reader that takes the last one."""
        return f"{self.path}: appears twice, first at {self.first}; this one is used"


@dataclass(frozen=True, eq=False)
class Document:
    """A configuration that was read."""

    file: str  # name of the file, for messages
    root: DocumentNode | None  # the top-level mapping; None if the file could not be read
    problems: tuple[Problem, ...] = ()  # what is wrong with the text itself
    duplicates: tuple[DuplicateKey, ...] = ()  # keys that stand twice
    # where the top level stands in the text, and in it each value; None where there is no text
    span: Span | None = None
    wide: tuple[WideCharacter, ...] = ()  # keys and values with characters that only look like YAML

    def get(self, *keys: str) -> DocumentNode | None:
        """The value below these keys; None if one of them is missing."""
        return self.root.get(*keys) if self.root is not None else None

    def entry(self, *keys: str) -> MappingEntry | None:
        """The entry at these keys, with the place of the last one; None if one of them is missing."""
        above = self.get(*keys[:-1])
        return above.entry(keys[-1]) if above is not None else None

    def location_of(self, *keys: str) -> Location:
        """Where the value below these keys stands; the file where a key is missing."""
        node = self.get(*keys)
        return node.location if node is not None else Location(self.file)

    def value(self, *keys: str) -> Any:
        """The scalar below these keys; None for null, a list or a mapping, and where a key is missing."""
        node = self.get(*keys)
        return node.value if node is not None else None

    def data(self) -> dict[Any, Any]:
        """All of it as plain lists, dicts and scalars; empty where it could not be read."""
        data = to_data(self.root) if self.root is not None else {}
        if not isinstance(data, dict):
            raise AssertionError("a document that is no mapping")
        return data

    def count(self, *path: str) -> int:
        """A positive whole number; 1 for what is missing or anything else, as MindFormers takes it."""
        value = self.value(*path)
        return value if is_whole_number(value) and value >= 1 else 1

    @property
    def is_legacy(self) -> bool:
        """The model is of the legacy families: `use_legacy` is not False."""
        return self.value("use_legacy") is not False

    @property
    def is_parallel(self) -> bool:
        """Whether MindFormers passes the section `parallel` on to MindSpore: `use_parallel` is not False."""
        return self.value("use_parallel") is not False


def expanded_size(node: DocumentNode, weigh: Callable[[DocumentNode], int] = lambda node: 1) -> int:
    """Number of values that a node stands for when every alias is written out; `weigh`: what a value itself counts."""
    sizes: dict[int, int] = {}
    for current in children_first(node, _children):
        sizes[id(current)] = weigh(current) + sum(sizes[id(child)] for child in _children(current))
    return sizes[id(node)]


def to_data(node: DocumentNode) -> object:
    """The node as plain lists, dicts and scalars; shared nodes stay shared."""
    data: dict[int, object] = {}
    for current in children_first(node, _children):
        if current.items is not None:
            data[id(current)] = [data[id(item)] for item in current.items]
        elif current.entries is not None:
            data[id(current)] = {entry.key: data[id(entry.value)] for entry in current.entries}
        else:
            data[id(current)] = current.value
    return data[id(node)]


def is_whole_number(value: object) -> TypeGuard[int]:
    """An integer; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_huge(value: object) -> bool:
    """True for an integer so long that Python refuses to print it."""
    return isinstance(value, int) and value.bit_length() > 4096


def key_text(key: object) -> str:
    """A key as part of a key path, shortened."""
    text = str(key)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


def join_path(path: str, key: object) -> str:
    """The key path one level deeper."""
    return f"{path}.{key_text(key)}" if path else key_text(key)


def show(value: object) -> str:
    """A value as YAML writes it on one line, shortened, for messages."""
    text = "".join(_show_parts(value, MAX_SHOWN_CHARS + 1))
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


def _show_parts(value: object, room: int) -> Iterator[str]:
    """The text of a value in pieces, not (much) more than `room` characters: a value may be huge."""
    if isinstance(value, DocumentNode):
        if value.items is not None:
            yield from _show_sequence("[", ((None, item) for item in value.items), "]", room)
            return
        if value.entries is not None:
            yield from _show_sequence("{", ((entry.key, entry.value) for entry in value.entries), "}", room)
            return
        value = value.value
    if isinstance(value, str):
        yield f"'{value[:room]}'" if value.isprintable() else repr(value[:room])
    elif value is None:
        yield "null"
    else:
        yield repr(value)[:room]


def _show_sequence(opening: str, pairs: Iterable[tuple[object, object]], closing: str, room: int) -> Iterator[str]:
    yield opening
    for index, (key, child) in enumerate(pairs):
        prefix = (", " if index else "") + ("" if key is None else "".join(_show_parts(key, room)) + ": ")
        room -= len(prefix)
        yield prefix
        for part in _show_parts(child, max(room, 0)):
            room -= len(part)
            yield part
        if room <= 0:
            break
    yield closing


def _children(node: DocumentNode) -> tuple[DocumentNode, ...]:
    return node.items if node.items is not None else tuple(entry.value for entry in node.entries or ())


def children_first(node: T, children: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Every node of a graph without cycles once, children before their parents, without recursion."""
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
