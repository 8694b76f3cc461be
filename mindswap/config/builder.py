"""The events of a YAML parser -> located nodes, and the characters that each value takes.

The events are read one by one and put together here, without PyYAML's composer: that one recurses (and so does
libyaml's), expands nothing early enough to stop, and drops duplicate keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from mindswap.config.nodes import Document, DocumentNode, DuplicateKey, MappingEntry, Span, is_huge, key_text, span_of
from mindswap.config.problem import Level, Location, Problem

# MindFormers itself refuses mappings nested deeper than 10. The limits only keep hostile files from using up memory or
# the stack.
MAX_DEPTH = 64
MAX_MERGED_ENTRIES = 100_000

_TAG = "tag:yaml.org,2002:"
_COLLECTION_TAGS = {None, "!", *(_TAG + name for name in ("map", "seq", "set", "omap", "pairs"))}


@dataclass(eq=False)
class _Frame:
    """A list or mapping that is still open."""

    location: Location
    path: str
    is_mapping: bool
    anchor: str | None
    span: Span
    items: list[DocumentNode] = field(default_factory=list)
    entries: list[MappingEntry] = field(default_factory=list)
    merged: list[tuple[Location, DocumentNode]] = field(default_factory=list)
    first_places: dict[object, Location] = field(default_factory=dict)
    key: "_Key | None" = None

    def child_path(self) -> str:
        if not self.is_mapping:
            return f"{self.path}[{len(self.items)}]"
        return _join_path(self.path, self.key.value if self.key is not None else "?")


@dataclass(frozen=True)
class _Key:
    value: object
    location: Location
    span: Span
    is_merge: bool = False
    is_usable: bool = True


class Builder:
    """Puts the events of the text of one file together; never raises on what the file says."""

    def __init__(self, file: str, text: str):
        self.file = file
        self._text = text
        self.is_stopped = False
        self._stack: list[_Frame] = []
        self._anchors: dict[str | None, tuple[DocumentNode | _Frame, Span]] = {}
        self._root: DocumentNode | None = None
        self._span: Span | None = None
        self._num_documents = 0
        self._num_merged = 0
        self._problems: list[Problem] = []
        self._duplicates: list[DuplicateKey] = []
        self._scalars = yaml.SafeLoader("")  # only its resolver and constructors

    def document(self) -> Document:
        """The finished document."""
        allowed = "a mapping, as in `swap_config:`"
        if not self._problems and (self._root is None or self._root.is_null):
            self.report(Location(self.file, 1, 1), "yaml-syntax", "the file is empty", allowed, "begin with a key")
        elif self._root is not None and self._root.entries is None:
            self.report(
                self._root.location, "yaml-syntax", f"the top level is {self._root.kind}", allowed, "begin with a key"
            )
        root = self._root if self._root is not None and self._root.entries is not None else None
        return Document(self.file, root, tuple(self._problems), tuple(self._duplicates), self._span)

    def report(self, location: Location, rule: str, message: str, allowed: str = "", fix: str = "") -> None:
        """Keep an error."""
        self._problems.append(Problem(location, rule, Level.ERROR, message, allowed, fix))

    def add_event(self, event: yaml.Event) -> None:
        """Take the next event."""
        location = mark_location(self.file, event.start_mark)
        if isinstance(event, yaml.DocumentStartEvent):
            self._num_documents += 1
            if self._num_documents > 1:
                fix = "delete what follows `---`"
                self._stop(location, "yaml-syntax", "a second document begins", "one document", fix)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(event, location)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(event)
        elif isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event, location)
        elif isinstance(event, yaml.AliasEvent):
            self._add_alias(event, location)

    def _stop(self, location: Location, rule: str, message: str, allowed: str, fix: str = "") -> None:
        self.report(location, rule, message, allowed, fix)
        self.is_stopped = True

    def _open(self, event: yaml.CollectionStartEvent, location: Location) -> None:
        path = self._stack[-1].child_path() if self._stack else ""
        if len(self._stack) >= MAX_DEPTH:
            self._stop(location, "yaml-depth", "nested too deep", f"at most {MAX_DEPTH} levels (MindFormers takes 10)")
            return
        if event.tag not in _COLLECTION_TAGS:
            self.report(location, "yaml-tag", f"the tag {event.tag} is not allowed", "plain YAML", "delete the tag")
        span = span_of(event, self._text)
        frame = _Frame(location, path, isinstance(event, yaml.MappingStartEvent), event.anchor, span)
        self._keep(event.anchor, frame, span)
        self._stack.append(frame)

    def _close(self, event: yaml.CollectionEndEvent) -> None:
        frame = self._stack.pop()
        if frame.span.is_flow and event.end_mark is not None:
            frame.span.end = event.end_mark.index
        if frame.is_mapping:
            node = DocumentNode(frame.location, entries=tuple(frame.entries) + tuple(self._merged_entries(frame)))
        else:
            node = DocumentNode(frame.location, items=tuple(frame.items))
        if self._anchors.get(frame.anchor) == (frame, frame.span):  # the name was not given to something inside
            self._keep(frame.anchor, node, frame.span)
        self._place(node, frame.span, node.location)

    def _add_scalar(self, event: yaml.ScalarEvent, location: Location) -> None:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._scalars.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
            frame = self._stack[-1] if self._stack else None
            if tag == _TAG + "value" and frame is not None and frame.is_mapping and frame.key is None:
                tag = _TAG + "str"  # a plain `=`: PyYAML takes it as a key only
        node, span = DocumentNode(location, self._construct(tag, event, location)), span_of(event, self._text)
        self._keep(event.anchor, node, span)
        self._place(node, span, location, is_merge=tag == _TAG + "merge")

    def _construct(self, tag: str, event: yaml.ScalarEvent, location: Location) -> object:
        if tag in (_TAG + "str", _TAG + "merge"):
            return event.value
        constructor = self._scalars.yaml_constructors.get(tag)
        if constructor is None:
            message = f"the tag {tag.replace(_TAG, '!!')} is not allowed"
            self.report(location, "yaml-tag", message, "plain YAML", "delete the tag, or quote the value")
            return event.value
        try:
            # types-PyYAML wants the mark of the slow reader; that of libyaml has the same fields.
            node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)  # type: ignore[arg-type]
            value = constructor(self._scalars, node)
            if not is_huge(value):
                return value
        except (yaml.YAMLError, ValueError, OverflowError, KeyError, IndexError, AttributeError, TypeError):
            pass  # the constructors of PyYAML check little: `!!int x`, 2024-99-99 and 5000 digits end here
        message = f"{key_text(event.value)!r} is no {tag.replace(_TAG, '')}"
        self.report(location, "yaml-value", message, fix="quote it")
        return event.value

    def _add_alias(self, event: yaml.AliasEvent, location: Location) -> None:
        span = span_of(event, self._text)
        target, span.alias_of = self._anchors.get(event.anchor, (None, None))
        if isinstance(target, DocumentNode):
            self._place(target, span, location)
            return
        if target is None:
            message, fix = f"the alias *{event.anchor} has no anchor", f"put &{event.anchor} before a value above"
        else:
            message, fix = f"the alias *{event.anchor} refers to what it stands in", "write the value out"
        self.report(location, "yaml-alias", message, fix=fix)
        self._place(DocumentNode(location), span, location)

    def _keep(self, anchor: str | None, value: DocumentNode | _Frame, span: Span) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, span)

    def _place(self, node: DocumentNode, span: Span, location: Location, is_merge: bool = False) -> None:
        """Put a finished value where it belongs; `location` is where it (or its alias) stands."""
        if not self._stack:
            self._root, self._span = node, span
            return
        frame = self._stack[-1]
        frame.span.end = max(frame.span.end, span.end)
        if not frame.is_mapping:
            frame.items.append(node)
            frame.span.items.append(span)
        elif frame.key is None:
            frame.key = self._make_key(frame, node, span, location, is_merge)
        else:
            key, frame.key = frame.key, None
            frame.span.entries.append((key.span, span))
            if key.is_merge:
                frame.merged.append((location, node))
            elif key.is_usable:
                frame.entries.append(MappingEntry(key.value, key.location, node))

    def _make_key(self, frame: _Frame, node: DocumentNode, span: Span, location: Location, is_merge: bool) -> _Key:
        if is_merge:
            return _Key("<<", location, span, is_merge=True)
        if node.items is not None or node.entries is not None:
            self.report(location, "yaml-key", f"{node.kind} cannot be a key", "a string", "quote it")
            return _Key("?", location, span, is_usable=False)
        first = frame.first_places.setdefault(node.value, location)
        if first is not location:
            self._duplicates.append(DuplicateKey(_join_path(frame.path, node.value), location, first))
        return _Key(node.value, location, span)

    def _merged_entries(self, frame: _Frame) -> Iterator[MappingEntry]:
        """What `<<` adds: keys of the mapping itself win, then the later `<<`, then the earlier list element."""
        taken = {entry.key for entry in frame.entries}
        for location, node in reversed(frame.merged):
            for source in node.items if node.items is not None else (node,):
                if source.entries is None:
                    self.report(location, "yaml-merge", f"`<<` merges {source.kind}", "a mapping or a list of mappings")
                    continue
                self._num_merged += len(source.entries)
                if self._num_merged > MAX_MERGED_ENTRIES:
                    self._stop(location, "yaml-merge", "too much is merged", f"at most {MAX_MERGED_ENTRIES} keys")
                    return
                for entry in source.unique_entries():
                    if entry.key not in taken:
                        taken.add(entry.key)
                        yield entry


def _join_path(path: str, key: object) -> str:
    """The key path one level deeper."""
    return f"{path}.{key_text(key)}" if path else key_text(key)


def mark_location(file: str, mark: "yaml.Mark | yaml._yaml.Mark | None") -> Location:
    """A place of the parser, counted from 1."""
    return Location(file, mark.line + 1, mark.column + 1) if mark is not None else Location(file)
