"""YAML text -> where each value stands, from its first to its last character: what an editor needs.

`yaml_parser` says what the values are; this says which characters they take. The text must be one that
`yaml_parser` reads without a problem.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from mindswap.document.loadable import loader_for

__all__ = ["Span", "read_spans"]


@dataclass(eq=False)
class Span:
    """The characters of one value.

    Attributes:
        start: index of the first character; an anchor or a tag before the value belongs to it.
        end: index behind the last one. Comments and blank lines behind a block do not belong to it.
        column: column of the first character, from 0.
        is_flow: a list or mapping in brackets.
        anchor: name of its anchor, or of the one it is an alias of.
        alias_of: for an alias, what it stands for.
        entries: (key, value) of a mapping, else None.
        items: elements of a list, else None.
        text: text of a scalar.
    """

    start: int
    end: int
    column: int
    is_flow: bool = False
    anchor: str | None = None
    alias_of: "Span | None" = None
    entries: "list[tuple[Span, Span]] | None" = None
    items: "list[Span] | None" = None
    text: str = ""
    _key: "Span | None" = field(default=None, repr=False)

    def walk(self) -> "Iterator[Span]":
        """This span and all that stand in it; what an alias stands for is not in it."""
        yield self
        for key, value in self.entries or ():
            yield from key.walk()
            yield from value.walk()
        for item in self.items or ():
            yield from item.walk()

    def add(self, child: "Span") -> None:
        """Put the next part of a list or mapping in its place."""
        if self.items is not None:
            self.items.append(child)
        elif self._key is None:
            self._key = child
        else:
            assert self.entries is not None
            self.entries.append((self._key, child))
            self._key = None
        self.end = max(self.end, child.end)


def read_spans(text: str) -> Span | None:
    """The top level of a document; None if the text has no value.

    Args:
        text: the whole text of a file, line ends as they are, without byte order mark (libyaml does not count it).
    """
    root: Span | None = None
    stack: list[Span] = []
    anchors: dict[str, Span] = {}
    for event in yaml.parse(text, Loader=loader_for(text)):
        if isinstance(event, yaml.CollectionEndEvent):
            span = stack.pop()
            if span.is_flow and event.end_mark is not None:
                span.end = event.end_mark.index
        elif isinstance(event, yaml.NodeEvent):
            span = _span(event, text)
            span.anchor = event.anchor
            if isinstance(event, yaml.AliasEvent):
                span.alias_of = anchors[str(event.anchor)]
            elif event.anchor is not None:
                anchors[event.anchor] = span
            if isinstance(event, yaml.CollectionStartEvent):
                stack.append(span)
                continue
        else:
            continue
        if stack:
            stack[-1].add(span)
        else:
            root = span
    return root


def _span(event: yaml.NodeEvent, text: str) -> Span:
    assert event.start_mark is not None
    assert event.end_mark is not None
    start, end = event.start_mark.index, event.end_mark.index
    span = Span(start, end, event.start_mark.column)
    if isinstance(event, yaml.CollectionStartEvent):
        span.is_flow = bool(event.flow_style)
        if isinstance(event, yaml.MappingStartEvent):
            span.entries = []
        else:
            span.items = []
    elif isinstance(event, yaml.ScalarEvent):
        span.text = event.value
        if event.style in ("|", ">"):  # its end mark is behind the blank lines below it
            span.end = start + len(text[start:end].rstrip())
    return span
