"""Where each value of a YAML text stands, from its first to its last character: what an editor needs.

`builder` makes them beside the nodes. Indices count the characters of a text without byte order mark (libyaml does not
count it). Of a text with problems they need not be whole.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml


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
    assert event.start_mark is not None
    assert event.end_mark is not None
    start, end = event.start_mark.index, event.end_mark.index
    span = Span(start, end, event.start_mark.column, anchor=event.anchor)
    if isinstance(event, yaml.CollectionStartEvent):
        span.is_flow = bool(event.flow_style)
    elif isinstance(event, yaml.ScalarEvent):
        span.text = event.value
        if event.style in ("|", ">"):  # its end mark is behind the blank lines below it
            span.end = start + len(text[start:end].rstrip())
    return span
