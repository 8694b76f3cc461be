"""Edit one YAML text: set a section to a value, or put a comment above it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mindswap.config.nodes import Document, Span, to_data
from mindswap.config.problem import Level, Location, Problem
from mindswap.config.render import block_lines, inline_text, is_inline, yaml_key
from mindswap.errors import PolicyError

# Positions in a text, whose line breaks may be of any kind and mixed.

_BREAK = re.compile(r"\r\n|\r|\n")


def line_start(text: str, index: int) -> int:
    """Return the index of the start of the line that contains an index."""
    index = max(index, 0)
    return max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1


def line_end(text: str, index: int) -> int:
    """Return the index of the end of the line that contains an index, before the line break."""
    match = _BREAK.search(text, index)
    return match.start() if match else len(text)


def after_line(text: str, index: int) -> int:
    """Return the index of the start of the next line; the end of the text if there is none."""
    match = _BREAK.search(text, index)
    return match.end() if match else len(text)


def line_above(text: str, start: int) -> int:
    """Return the index of the start of the line above the line that starts at `start`."""
    return line_start(text, start - (2 if text.startswith("\r\n", start - 2) and start > 1 else 1))


def newline_at(text: str, index: int) -> str:
    """Return the line break of the line that contains an index; for the last line, that of the previous line."""
    match = _BREAK.search(text, index)
    if match:
        return match[0]
    above = line_start(text, index)
    return next(iter(_BREAK.findall(text, max(above - 2, 0), above)[-1:]), "\n")


# Start of every comment line that mindswap writes; the next edit replaces such lines.
COMMENT_MARK = "# mindswap:"
DEFAULT_STEP = 2

_COLON = re.compile(r"[ \t]*:")
_DOCUMENT_MARK = re.compile(r"(?:^|\r)(\.\.\.|---)", re.MULTILINE)


class Editor:
    """Collects edits of one text (without byte order mark) that was parsed without a problem; see `apply_edits`."""

    def __init__(self, text: str, document: Document):
        self.text = text
        self.file = document.file
        self.document = document
        self.root = document.span
        self.edits: list[tuple[int, int, str]] = []

    def with_section(self, section: str, value: Mapping[Any, Any]) -> str:
        """Return the text with a section set to a value."""
        entry = self._find(section)
        if entry is None:
            self._append_section(section, value)
        else:
            key, span = entry
            self._refuse_shared_anchor(key, {id(span)})
            if not self._update_keys(key, span, value):
                if self.root is None:
                    raise AssertionError("an edit of an empty document")
                self._replace_value(self.root, key, span, value)
        return apply_edits(self.text, self.edits)

    def with_comment(self, section: str, comment: str) -> str:
        """Return the text with a comment above a section; replaces comment lines with `COMMENT_MARK` there."""
        entry = self._find(section)
        if entry is None or self.root is None:
            raise AssertionError("a comment for a section that is missing")
        # If the top level is a flow mapping, the line above a key may be inside a value.
        below = self.root if self.root.is_flow else entry[0]
        start = line_start(self.text, below.start)
        first = comment_block_start(self.text, start, below.column)
        margin = " " * below.column
        newline = newline_at(self.text, start)
        lines = [f"{margin}{COMMENT_MARK} {line}".rstrip() + newline for line in comment.splitlines()]
        self.edits.append((first, start, "".join(lines)))
        return apply_edits(self.text, self.edits)

    def _find(self, section: str) -> tuple[Span, Span] | None:
        entries = self.root.entries if self.root is not None else ()
        return next(((key, span) for key, span in entries if key.text == section), None)

    def _append_section(self, section: str, value: Mapping[Any, Any]) -> None:
        if self.root is not None and self.root.is_flow:
            self._add_entries(self.root, {section: value})
            return
        lines = block_lines({section: value}, self.root.column if self.root is not None else 0, self._step())
        if self.root is not None and _DOCUMENT_MARK.search(self.text, self.root.end):
            self._insert_lines(self.root.end, lines)
            return
        end = len(self.text)
        newline = newline_at(self.text, end)
        gap = "" if not self.text or self.text.endswith(("\n", "\r")) else newline
        self.edits.append((end, end, gap + "".join(line + newline for line in lines)))

    def _update_keys(self, key: Span, span: Span, value: Mapping[Any, Any]) -> bool:
        """Change only the keys that differ.

        Returns:
            False, without an edit, if no key can be kept, or if `<<` or duplicates contribute entries.
        """
        node = self.document.get(key.text)
        entries = node.unique_entries() if node is not None else ()
        written = span.entries
        if any(part.text == "<<" for part, _ in written) or len(entries) != len(written):
            return False
        rows = [(*spans, entry.key, to_data(entry.value)) for spans, entry in zip(written, entries, strict=True)]
        kept = [(key_span, old) for key_span, old, name, _ in rows if name in value]
        if not kept:
            return False
        ends = [0]
        for position, (key_span, old, name, data) in enumerate(rows):
            if name not in value:
                next_start = rows[position + 1][0].start if position + 1 < len(rows) else old.end
                follows_kept_entry = key_span.start > kept[0][0].start
                self._remove_entry(span, key_span, old, ends[-1] if follows_kept_entry else None, next_start)
            elif not is_same(data, value[name]):
                self._replace_value(span, key_span, old, value[name])
            ends.append(max(key_span.end, old.end))
        existing_keys = {name for *_, name, _ in rows}
        self._add_entries(span, {name: new for name, new in value.items() if name not in existing_keys}, kept[-1])
        return True

    def _replace_value(self, parent: Span, key: Span, old: Span, new: object) -> None:
        self._refuse_shared_anchor(key, {id(part) for part in old.walk()})
        is_on_key_line = line_start(self.text, old.start) <= key.end
        colon = _COLON.match(self.text, key.end)
        if colon is None and not parent.is_flow:
            message = f"'{key.text}' cannot be changed: it is written with `?`"
            raise edit_error(self._location(key.start), message, f"write it as `{key.text}:` with its value")
        colon_end = colon.end() if colon is not None else key.end
        if parent.is_flow or (is_inline(new) and is_on_key_line):
            if old.end > old.start:
                self.edits.append((old.start, old.end, inline_text(new)))
            else:
                self.edits.append((colon_end, colon_end, (": " if colon is None else " ") + inline_text(new)))
            return
        # One edit for the line of the key, so that its comment stays, and one for the lines below.
        inline_end = max(old.end, colon_end) if is_on_key_line else colon_end
        block_start = line_end(self.text, inline_end)
        block_end = max(old.end, block_start)
        if is_inline(new):
            self.edits += [(colon_end, inline_end, f" {inline_text(new)}"), (block_start, block_end, "")]
            return
        lines = block_lines(new, parent.column + self._step(), self._step())
        below = "".join(newline_at(self.text, block_start) + line for line in lines)
        self.edits += [(colon_end, inline_end, ""), (block_start, block_end, below)]

    def _add_entries(self, parent: Span, entries: Mapping[Any, Any], last: tuple[Span, Span] | None = None) -> None:
        if not entries:
            return
        if last is None and parent.entries:
            last = parent.entries[-1]
        end = max(last[0].end, last[1].end) if last is not None else parent.end - 1
        if parent.is_flow:
            added = ", ".join(f"{yaml_key(key)}: {inline_text(value)}" for key, value in entries.items())
            self.edits.append((end, end, f", {added}" if last is not None else added))
        else:
            self._insert_lines(end, block_lines(entries, parent.column, self._step()))

    def _remove_entry(self, parent: Span, key: Span, old: Span, end_before: int | None, next_start: int) -> None:
        self._refuse_shared_anchor(key, {id(part) for part in old.walk()})
        end = max(key.end, old.end)
        if parent.is_flow:
            self.edits.append((key.start, next_start, "") if end_before is None else (end_before, end, ""))
            return
        self.edits.append((line_start(self.text, key.start), after_line(self.text, end), ""))

    def _refuse_shared_anchor(self, key: Span, changed: set[int]) -> None:
        """Raise if an alias outside of the changed values refers to one of them."""
        if self.root is None:
            raise AssertionError("an edit of an empty document")
        for part in self.root.walk():
            if part.alias_of is not None and id(part) not in changed and id(part.alias_of) in changed:
                name = part.alias_of.anchor
                message = f"'{key.text}' cannot be changed: *{name} stands for it or a part of it"
                raise edit_error(self._location(part.start), message, f"write out what *{name} stands for")

    def _insert_lines(self, index: int, lines: list[str]) -> None:
        """Insert lines below the line that contains an index."""
        position = line_end(self.text, index)
        self.edits.append((position, position, "".join(newline_at(self.text, position) + line for line in lines)))

    def _step(self) -> int:
        """Return the indentation step of the file."""
        for _, span in self.root.entries if self.root is not None else ():
            if span.entries and not span.is_flow and self.root is not None and span.column > self.root.column:
                return span.entries[0][0].column - self.root.column
        return DEFAULT_STEP

    def _location(self, index: int) -> Location:
        before = self.text[:index]
        return Location(self.file, before.count("\n") + 1, index - line_start(self.text, index) + 1)


def comment_block_start(text: str, start: int, column: int) -> int:
    """Return the start of the block of `COMMENT_MARK` lines directly above a line.

    Args:
        text: the text.
        start: index of the start of the line.
        column: indentation of the line; a comment that is indented further belongs to the section above.
    """
    while start > 0:
        above = line_above(text, start)
        line = text[above:start]
        if not line.lstrip().startswith(COMMENT_MARK) or line.index(COMMENT_MARK) > column:
            break
        start = above
    return start


def apply_edits(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Apply edits (start, end, replacement), which must not overlap."""
    parts, done = [], 0
    for start, end, replacement in sorted(edits, key=lambda edit: edit[:2]):
        parts += [text[done:start], replacement]
        done = end
    return "".join(parts) + text[done:]


def is_same(left: object, right: object) -> bool:
    """Return whether two values are equal in type and value.

    NaN equals NaN, and a tuple equals a list with the same elements. Shared parts are compared once.
    """
    compared_pairs: set[tuple[int, int]] = set()

    def compare(a: object, b: object) -> bool:
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if (id(a), id(b)) in compared_pairs:
                return True
            compared_pairs.add((id(a), id(b)))
            return list(a) == list(b) and all(compare(a[key], b[key]) for key in a)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            if (id(a), id(b)) in compared_pairs:
                return True
            compared_pairs.add((id(a), id(b)))
            return len(a) == len(b) and all(map(compare, a, b))
        return type(a) is type(b) and (a == b or (a != a and b != b))  # noqa: PLR0124 NaN

    return compare(left, right)


def edit_error(location: Location, message: str, fix: str) -> PolicyError:
    """Return an error of the editor."""
    return PolicyError([Problem(location, "rewrite", Level.ERROR, message, fix=fix)])
