"""Edits a user's YAML text in place: one top-level section gets a new value, everything else stays.

The edits are made at the places of the values, so comments, order, quotes, blank lines and line ends of all
the rest survive byte for byte. The result is read back before it is given.
"""

import functools
from collections.abc import Mapping
from typing import Any

from mindswap.config.edit import Editor, edit_error, is_same
from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level, Location, Problem, find_errors
from mindswap.errors import PolicyError

BYTE_ORDER_MARK = "\ufeff"
# What one section is written into was read when the section before it was.
_parse = functools.lru_cache(maxsize=8)(parse_document)


def rewrite_section(
    text: str, section: str, value: Mapping[Any, Any], comment: str | None = None, file: str = "the configuration"
) -> str:
    """The text with one top-level section set to a value.

    Keys of the section that have their value already are left as they are written; the others are
    replaced, added at its end, or removed. A section that uses `<<` is written out as a whole, one
    that is missing comes at the end of the file.

    Args:
        text: a YAML file, line ends as they are; may be empty.
        section: key on the top level, e.g. `swap_config`.
        value: what the section shall be, as plain data.
        comment: lines to put above the section, in place of those that mindswap put there before; None
            leaves them.
        file: name for messages.

    Raises:
        PolicyError: the text cannot be read, or not be edited without changing something else
            (another section uses an anchor that stands in this one).
    """
    if text.startswith(BYTE_ORDER_MARK):
        return BYTE_ORDER_MARK + rewrite_section(text.removeprefix(BYTE_ORDER_MARK), section, value, comment, file)
    before = _read(text, file).data()
    after = _ordered({**before, section: value}, section)
    result = text
    if not is_same(_ordered(before, section), after):
        result = Editor(result, _read(result, file)).with_section(section, value)
    if comment is not None:
        result = Editor(result, _read(result, file)).with_comment(section, comment)
    written = _parse(result, file)
    if find_errors(written.problems) or not is_same(_ordered(written.data(), section), after):
        raise edit_error(Location(file), f"{section}: cannot be changed the way it is written", "one key to a line")
    return result


def _read(text: str, file: str) -> Document:
    """The document of a text; an empty one has no root. Raises PolicyError with every problem of the text."""
    document = _parse(text, file)
    is_blank = not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines())
    if document.root is None and is_blank:
        return Document(file, None)
    problems = list(find_errors(document.problems))
    for duplicate in document.duplicates:
        message = f"{duplicate.path}: appears twice, first in line {duplicate.first.line}"
        problems.append(Problem(duplicate.location, "duplicate-key", Level.ERROR, message, "each key once"))
    if problems:
        raise PolicyError(problems)
    return document


def _ordered(data: dict[Any, Any], section: str) -> dict[Any, Any]:
    """The data with the keys of one section sorted: their order means nothing, and that of the file stays."""
    value = data.get(section)
    if not isinstance(value, Mapping):
        return data
    return {**data, section: {key: value[key] for key in sorted(value, key=repr)}}
