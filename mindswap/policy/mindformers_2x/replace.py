"""Edits of a user's YAML text: some top-level sections give way to others, every comment stays."""

import re
from typing import Any

import yaml

from mindswap.config.edit import COMMENT_MARK, above_own_comment, apply_edits
from mindswap.config.lines import after_line, line_start, newline_at
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level, Location, Problem
from mindswap.config.render import block_lines
from mindswap.errors import PolicyError

_COMMENT = re.compile(r"#[^\r\n]*")
_STEP = 2


def replace_sections(
    text: str, old: tuple[str, ...], new: dict[str, dict[str, Any]], comment: tuple[str, ...], file: str
) -> str:
    """The text with new sections in the place of old ones; comments in the old ones stand above the new.

    Args:
        text: a YAML file, line ends as they are.
        old: top-level sections that go; those that are missing are skipped.
        new: sections that come, as plain data.
        comment: lines to put above them, without `#`.
        file: name for messages.

    Raises:
        PolicyError: the file is written in a way that cannot be edited, or reads differently afterwards.
    """
    before = parse_document(text.encode("utf-8", "surrogatepass"), file)
    root = before.span
    if root is None or root.is_flow or before.root is None:
        raise _refusal(file, "the sections cannot be replaced: the file is not written as `key:` in lines of their own")
    spans = [(key.start, max(key.end, value.end)) for key, value in root.entries if key.text in old]
    places = [
        (above_own_comment(text, line_start(text, start), root.column), after_line(text, end)) for start, end in spans
    ]
    kept = [c for start, end in places for c in _comments(text[start:end]) if not c.startswith(COMMENT_MARK)]
    block = [*kept, *(f"{COMMENT_MARK} {line}" for line in comment)]
    block += [line for name, value in new.items() for line in block_lines({name: value}, root.column, _STEP)]
    edits = [(start, end, "") for start, end in places]
    if edits:
        first, end, _ = edits[0]
        edits[0] = (first, end, "".join(line + newline_at(text, first) for line in block))
    result = apply_edits(text, edits)
    after = parse_document(result.encode("utf-8", "surrogatepass"), file)
    expected = {**{key: value for key, value in before.data().items() if key not in old}, **new}
    if after.problems or after.data() != expected:
        raise _refusal(
            file, "the sections cannot be replaced: an anchor in them is used elsewhere, or a key stands twice"
        )
    return result


def _comments(section: str) -> list[str]:
    """The comments of a piece of YAML; a `#` inside a string is none."""
    found, done = [], 0
    for token in yaml.scan(section):
        found += _COMMENT.findall(section[done : token.start_mark.index])
        done = max(done, token.end_mark.index)
    return found + _COMMENT.findall(section[done:])


def _refusal(file: str, message: str) -> PolicyError:
    fix = "write each section as `key:` with its values below, and no anchors across sections"
    return PolicyError([Problem(Location(file), "convert", Level.ERROR, message, fix=fix)])
