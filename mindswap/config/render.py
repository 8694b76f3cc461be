r"""Format plain data as YAML in the style of users: `True`, `[0, 3]`, `'mlp\.mul'`, entries as blocks."""

import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import yaml

from mindswap.config.nodes import Document, DocumentNode, MappingEntry, is_huge
from mindswap.config.problem import Level, Location, Problem

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_inline(value: object) -> bool:
    """Return whether a value is written on one line: a scalar, a list of scalars, or an empty collection."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, (list, tuple)):
        return not any(isinstance(item, (Mapping, list, tuple)) for item in value)
    return True


def inline_text(value: object) -> str:
    """Format a value on one line, collections in brackets."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{yaml_key(key)}: {inline_text(child)}" for key, child in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(inline_text(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "True", False: "False", None: "null"}[value]
    if isinstance(value, str):
        return _quoted(value)
    return yaml.safe_dump(value, width=float("inf")).removesuffix("\n").removesuffix("\n...")


def block_lines(value: object, indent: int, step: int) -> list[str]:
    """Format a mapping, or a list that is not inline, as lines without line breaks.

    Args:
        value: the mapping or list.
        indent: number of leading spaces.
        step: additional spaces per level.
    """
    lines = []
    margin = " " * indent
    if isinstance(value, Mapping):
        for key, child in value.items():
            head = f"{margin}{yaml_key(key)}:"
            if is_inline(child):
                lines.append(f"{head} {inline_text(child)}")
            else:
                lines += [head, *block_lines(child, indent + step, step)]
        return lines
    if not isinstance(value, (list, tuple)):
        raise AssertionError("neither a mapping nor a list")
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *rest = block_lines(item, indent + 2, step)
            lines += [f"{margin}- {first.lstrip()}", *rest]
        else:
            lines.append(f"{margin}- {inline_text(item)}")
    return lines


def yaml_key(key: object) -> str:
    """Format a key: unquoted if it is an identifier that YAML reads as a string, else quoted."""
    is_word = isinstance(key, str) and _PLAIN_KEY.fullmatch(key) and isinstance(yaml.safe_load(key), str)
    return str(key) if is_word else inline_text(key)


def _quoted(text: str) -> str:
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    dumped = yaml.safe_dump(text, default_style='"', allow_unicode=False, width=float("inf"))
    return dumped.removesuffix("\n")


# Convert Python data to located nodes: a configuration with command-line options applied, or made by a program.

COMMAND_LINE = "command line"
MAX_DEPTH = 64
MAX_NODES = 200_000


def document_from_data(data: Mapping[Any, Any], file: str, base: Document | None = None) -> Document:
    """Convert plain data to a document.

    Args:
        data: the configuration as dicts, lists and scalars; objects with `to_dict()` count as dicts.
        file: name for messages.
        base: the file that the data was read from. A value that equals that of the file at the same key path keeps its
            location; any other value is located on the command line.
    """
    location = Location(COMMAND_LINE if base is not None else file)
    converter = _Converter(location)
    root = converter.convert(data, base.root if base is not None else None, 0)
    problems = (*(base.problems if base is not None else ()), *converter.problems)
    duplicates = base.duplicates if base is not None else ()
    if root.entries is None:
        message = f"the configuration is {root.kind}"
        problems += (Problem(location, "yaml-syntax", Level.ERROR, message, "a mapping"),)
        return Document(file, None, problems, duplicates)
    return Document(file, root, problems, duplicates)


class _Converter:
    def __init__(self, location: Location):
        self.location = location
        self.problems: tuple[Problem, ...] = ()
        self._num_nodes = 0

    def convert(self, value: object, base: DocumentNode | None, depth: int) -> DocumentNode:
        value = _plain(value)
        self._num_nodes += 1
        if depth > MAX_DEPTH or self._num_nodes > MAX_NODES:
            allowed = f"at most {MAX_DEPTH} levels and {MAX_NODES} values"
            self.problems = (Problem(self.location, "yaml-depth", Level.ERROR, "the data is too large", allowed),)
            return DocumentNode(self.location)
        if isinstance(value, Mapping):
            return self._convert_mapping(value, base, depth)
        if isinstance(value, (list, tuple, range)):
            return self._convert_sequence(value, base, depth)
        if base is None or base.items is not None or base.entries is not None or type(base.value) is not type(value):
            return DocumentNode(self.location, value)
        return base if base.value is value or bool(base.value == value) else DocumentNode(self.location, value)

    def _convert_mapping(self, value: Mapping[Any, Any], base: DocumentNode | None, depth: int) -> DocumentNode:
        entries = []
        for key, child in value.items():
            below = base.entry(key) if base is not None else None
            node = self.convert(child, below.value if below is not None else None, depth + 1)
            entries.append(MappingEntry(_plain(key), below.location if below is not None else self.location, node))
        location = base.location if base is not None and base.entries is not None else self.location
        return DocumentNode(location, entries=tuple(entries))

    def _convert_sequence(
        self, value: list[Any] | tuple[Any, ...] | range, base: DocumentNode | None, depth: int
    ) -> DocumentNode:
        below = base.items if base is not None and base.items is not None else ()
        items = []
        for index, child in enumerate(value):
            items.append(self.convert(child, below[index] if index < len(below) else None, depth + 1))
            if self._num_nodes > MAX_NODES:
                break
        # A list that differs in any element was replaced on the command line.
        is_same = [item.location for item in items] == [item.location for item in below]
        location = base.location if base is not None and base.items is not None and is_same else self.location
        return DocumentNode(location, items=tuple(items))


def _plain(value: object) -> object:
    """Convert configuration objects to dicts, NumPy values to Python values, and unprintably long integers to text."""
    if is_huge(value):
        return "an integer of more than 1000 digits"
    if isinstance(value, (Mapping, list, tuple, range, str, bytes, bool, int, float, type(None))):
        return value
    for method in ("to_dict", "tolist"):
        convert = getattr(value, method, None)
        if callable(convert):
            return convert()
    return int(value) if isinstance(value, Integral) else value
