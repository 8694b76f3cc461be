"""Build located nodes, and the character range of each value, from the events of a YAML parser.

PyYAML's composer is not used: it cannot stop early, and drops the locations of aliases.
"""

from collections.abc import Iterable, Iterator, Mapping

import yaml

from mindswap.config.characters import WIDE, WideCharacter
from mindswap.config.nodes import (
    Document,
    DocumentNode,
    DuplicateKey,
    MappingEntry,
    Span,
    is_huge,
    join_path,
    key_text,
    span_of,
)
from mindswap.config.problem import Level, Location, Problem, find_errors

# MindFormers refuses mappings nested deeper than 10. These limits only keep hostile files from exhausting memory or the
# stack.
MAX_DEPTH = 64
MAX_MERGED_ENTRIES = 20_000
MAX_VALUES = 20_000  # keys included; a configuration has a few hundred

_TAG = "tag:yaml.org,2002:"
_MERGE, _MAP, _SEQ = _TAG + "merge", _TAG + "map", _TAG + "seq"
_COLLECTION_TAGS = {None, "!", *(_TAG + name for name in ("map", "seq", "set", "omap", "pairs"))}

# A key as in PyYAML's composer, and its entry; replaces PyYAML's pairs of key and value nodes.
_Pair = tuple[yaml.ScalarNode, MappingEntry]


class _Stop(Exception):  # noqa: N818 control flow, no error: the problems are recorded
    """Stops reading the rest of the file."""


class Builder:
    """Builds a document from the events of one file; mistakes in the file become problems, not exceptions."""

    def __init__(self, file: str, text: str):
        self.file = file
        self._text = text
        self._events: Iterator[yaml.Event] = iter(())
        self._anchors: dict[str, tuple[DocumentNode | None, Span]] = {}  # the node is None until its value is complete
        self._root: DocumentNode | None = None
        self._span: Span | None = None
        self._num_merged = 0
        self._num_values = 0
        self._pairs: dict[DocumentNode, list[_Pair]] = {}  # of each mapping
        self.problems: list[Problem] = []  # problems of the text; the caller adds syntax errors
        self._duplicates: list[DuplicateKey] = []
        self._wide: list[WideCharacter] = []
        self._has_wide = WIDE.search(text) is not None
        self._scalars = yaml.SafeLoader("")  # used for its resolver and constructors only

    def read(self, events: Iterator[yaml.Event]) -> None:
        """Build the document from events, up to the first error that makes the rest meaningless."""
        self._events = events
        try:
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent) and self._root is not None:
                    fix = "delete what follows `---`"
                    self._stop(self._location(event), "yaml-syntax", "a second document begins", "one document", fix)
                if isinstance(event, yaml.NodeEvent):
                    self._root, self._span = self._value(event, "", 0)
        except _Stop:
            pass

    def document(self) -> Document:
        """Return the document."""
        allowed = "a mapping, as in `swap_config:`"
        if not self.problems and (self._root is None or self._root.is_null):
            self.report(Location(self.file, 1, 1), "yaml-syntax", "the file is empty", allowed, "begin with a key")
        elif self._root is not None and self._root.entries is None:
            self.report(
                self._root.location, "yaml-syntax", f"the top level is {self._root.kind}", allowed, "begin with a key"
            )
        root = self._root if self._root is not None and self._root.entries is not None else None
        wide = () if find_errors(self.problems) else tuple(self._wide)  # after an error they may be misread
        return Document(self.file, root, tuple(self.problems), tuple(self._duplicates), self._span, wide)

    def report(self, location: Location, rule: str, message: str, allowed: str = "", fix: str = "") -> None:
        """Record an error."""
        self.problems.append(Problem(location, rule, Level.ERROR, message, allowed, fix))

    def _stop(self, location: Location, rule: str, message: str, allowed: str, fix: str = "") -> None:
        self.report(location, rule, message, allowed, fix)
        raise _Stop

    def _location(self, event: yaml.Event) -> Location:
        return mark_location(self.file, event.start_mark)

    def _value(self, event: yaml.Event, path: str, depth: int, is_key: bool = False) -> tuple[DocumentNode, Span]:
        """Return the value that starts with an event, and its span; `depth` counts the enclosing values."""
        if not isinstance(event, yaml.NodeEvent):
            raise AssertionError("an event that begins no value")
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            self._stop(self._location(event), "yaml-size", "the file has too many values", f"at most {MAX_VALUES}")
        span = span_of(event, self._text)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, span), span
        if isinstance(event, yaml.ScalarEvent):
            if self._has_wide:
                self._keep_wide(event, span, path, is_key)
            node = DocumentNode(self._location(event), self._construct(self._tag(event, is_key), event))
        else:
            if not isinstance(event, yaml.CollectionStartEvent):
                raise AssertionError("an event that begins no value")
            self._anchors[event.anchor or ""] = (None, span)
            node = self._collection(event, span, path, depth)
            if self._anchors[event.anchor or ""][1] is not span:  # a value inside has redefined the anchor
                return node, span
        self._anchors[event.anchor or ""] = (node, span)
        return node, span

    def _keep_wide(self, event: yaml.ScalarEvent, span: Span, path: str, is_key: bool) -> None:
        match = WIDE.search(self._text, span.start, span.end)
        if match is None:
            return
        if event.start_mark is None:
            raise AssertionError("an event without a position")
        line, begin = event.start_mark.line + 1, event.start_mark.index
        line += self._text.count("\n", begin, match.start())
        # Counted from the last line break of the value, or from its start, because the text before may be long.
        last_break = self._text.rfind("\n", begin, match.start())
        column = match.start() - last_break if last_break >= 0 else event.start_mark.column + 1 + match.start() - begin
        location = Location(self.file, line, column)
        path = path.removesuffix("?") + key_text(event.value) if is_key else path
        self._wide.append(WideCharacter(path, location, match[0], event.value, is_key))

    def _collection(self, event: yaml.CollectionStartEvent, span: Span, path: str, depth: int) -> DocumentNode:
        location = self._location(event)
        if depth >= MAX_DEPTH:
            self._stop(location, "yaml-depth", "nested too deep", f"at most {MAX_DEPTH} levels (MindFormers takes 10)")
        if event.tag not in _COLLECTION_TAGS:
            self.report(location, "yaml-tag", f"the tag {event.tag} is not allowed", "plain YAML", "delete the tag")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(location, span, path, depth + 1)
        return DocumentNode(location, items=tuple(self._items(span, path, depth + 1)))

    def _parts(self, span: Span) -> Iterator[yaml.Event]:
        """Yield the events that start the elements of a list or the keys of a mapping, up to its end."""
        for event in self._events:
            if isinstance(event, yaml.CollectionEndEvent):
                if span.is_flow and event.end_mark is not None:
                    span.end = event.end_mark.index
                return
            yield event

    def _items(self, span: Span, path: str, depth: int) -> Iterator[DocumentNode]:
        for index, event in enumerate(self._parts(span)):
            node, part = self._value(event, f"{path}[{index}]", depth)
            span.items.append(part)
            span.end = max(span.end, part.end)
            yield node

    def _mapping(self, location: Location, span: Span, path: str, depth: int) -> DocumentNode:
        """Return a mapping: its entries in order, followed by entries that only `<<` adds."""
        first_of: dict[object, Location] = {}
        pairs: list[_Pair] = []
        merged: list[tuple[Location, DocumentNode]] = []
        for event in self._parts(span):
            key_location = self._location(event)
            tag = self._tag(event, is_key=True) if isinstance(event, yaml.ScalarEvent) else ""
            name, key_span = self._value(event, join_path(path, "?"), depth, is_key=True)
            is_usable = name.items is None and name.entries is None
            if not is_usable:
                self.report(key_location, "yaml-key", f"{name.kind} cannot be a key", "a string", "quote it")
            elif tag != _MERGE and (first := first_of.setdefault(name.value, key_location)) is not key_location:
                self._duplicates.append(DuplicateKey(join_path(path, name.value), key_location, first))
            value_event = next(self._events)
            node, value_span = self._value(value_event, join_path(path, name.value if is_usable else "?"), depth)
            span.entries.append((key_span, value_span))
            span.end = max(span.end, key_span.end, value_span.end)
            if tag == _MERGE:
                merged.append((self._location(value_event), node))
            elif is_usable:
                # `flatten_mapping` compares keys by identity of their texts: the node holds the string of the event.
                text = event.value if isinstance(event, yaml.ScalarEvent) else str(name.value)
                pairs.append((yaml.ScalarNode(tag, text), MappingEntry(name.value, key_location, node)))
        merged_pairs = self._merge(merged, path, first_of) if merged else []
        added = {entry.key: entry for _, entry in merged_pairs if entry.key not in first_of}
        mapping = DocumentNode(location, entries=(*(entry for _, entry in pairs), *added.values()))
        self._pairs[mapping] = [*merged_pairs, *pairs]
        return mapping

    def _tag(self, event: yaml.ScalarEvent, is_key: bool) -> str:
        if event.tag is not None and event.tag != "!":
            return event.tag
        tag: str = self._scalars.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        # PyYAML resolves a plain `=` to a special value, except as a key.
        return _TAG + "str" if tag == _TAG + "value" and is_key else tag

    def _construct(self, tag: str, event: yaml.ScalarEvent) -> object:
        if tag in (_TAG + "str", _MERGE):
            return event.value
        constructor = self._scalars.yaml_constructors.get(tag)
        if constructor is None:
            message = f"the tag {tag.replace(_TAG, '!!')} is not allowed"
            self.report(self._location(event), "yaml-tag", message, "plain YAML", "delete the tag, or quote the value")
            return event.value
        try:
            # types-PyYAML declares the mark of the Python reader; that of libyaml has the same fields.
            node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)  # type: ignore[arg-type]
            value = constructor(self._scalars, node)
            if not is_huge(value):
                return value
        except (yaml.YAMLError, ValueError, OverflowError, KeyError, IndexError, AttributeError, TypeError):
            pass  # PyYAML's constructors validate little; `!!int x`, 2024-99-99 and 5000 digits raise these
        message = f"{key_text(event.value)!r} is not a valid {tag.replace(_TAG, '')}"
        self.report(self._location(event), "yaml-value", message, fix="quote it")
        return event.value

    def _alias(self, event: yaml.AliasEvent, span: Span) -> DocumentNode:
        target, span.alias_of = self._anchors.get(event.anchor or "", (None, None))
        if target is not None:
            return target
        if span.alias_of is None:
            message = f"the alias *{event.anchor} has no anchor"
            fix = f"put &{event.anchor} before a value above, or, for a text: '*{event.anchor}'"
        else:
            message, fix = f"the alias *{event.anchor} refers to a value that contains it", "write the value out"
        self.report(self._location(event), "yaml-alias", message, fix=fix)
        return DocumentNode(self._location(event))

    def _merge(
        self, merged: list[tuple[Location, DocumentNode]], path: str, direct_keys: Mapping[object, object]
    ) -> list[_Pair]:
        """Return the pairs that `<<` adds, merged as by the installed PyYAML.

        PyYAML versions differ in which of two equal keys takes precedence.
        """
        values: list[tuple[yaml.ScalarNode, yaml.Node]] = []
        sources: list[DocumentNode] = []
        for location, node in merged:
            nodes = []
            for source in node.items if node.items is not None else (node,):
                if source.entries is None:
                    self.report(location, "yaml-merge", f"`<<` merges {source.kind}", "a mapping or a list of mappings")
                    continue
                self._num_merged += len(self._pairs[source])
                if self._num_merged > MAX_MERGED_ENTRIES:
                    self._stop(location, "yaml-merge", "too much is merged", f"at most {MAX_MERGED_ENTRIES} keys")
                nodes.append(yaml.MappingNode(_MAP, self._pairs[source]))
                sources.append(source)
            value = yaml.SequenceNode(_SEQ, nodes) if node.items is not None or not nodes else nodes[0]
            values.append((yaml.ScalarNode(_MERGE, "<<"), value))
        flat = yaml.MappingNode(_MAP, values)
        self._scalars.flatten_mapping(flat)
        pairs: list[_Pair] = flat.value
        self._warn_of_conflicts({entry.key: entry for _, entry in pairs}, sources, path, direct_keys, merged[0][0])
        return pairs

    def _warn_of_conflicts(
        self,
        entry_of: Mapping[object, MappingEntry],
        sources: Iterable[DocumentNode],
        path: str,
        direct_keys: Mapping[object, object],
        location: Location,
    ) -> None:
        """Warn of keys with different values in two merged mappings, because the result depends on PyYAML's version."""
        conflicts = {
            entry.key: entry
            for source in sources
            for entry in source.unique_entries()
            if entry.key not in direct_keys and not _is_same(entry.value, entry_of[entry.key].value)
        }
        for key, entry in conflicts.items():
            message = (
                f"{join_path(path, key)}: two merged mappings have it; PyYAML {yaml.__version__} takes that of "
                f"{entry_of[key].location}, other versions may take that of {entry.location}"
            )
            fix = f"write {key_text(key)} in the mapping itself, or merge one of the two"
            self.problems.append(Problem(location, "yaml-merge", Level.WARNING, message, fix=fix))


def _is_same(left: DocumentNode, right: DocumentNode) -> bool:
    """Return whether two values are the same node, or equal scalars."""
    if left.items is not None or left.entries is not None or right.items is not None or right.entries is not None:
        return left is right
    return type(left.value) is type(right.value) and left.value == right.value


def mark_location(file: str, mark: "yaml.Mark | yaml._yaml.Mark | None") -> Location:
    """Convert a position of the parser to a location, which counts from 1."""
    return Location(file, mark.line + 1, mark.column + 1) if mark is not None else Location(file)
