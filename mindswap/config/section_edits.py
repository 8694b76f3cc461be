"""Edit a user's YAML text in place: one top-level section gets a new value, everything else is unchanged.

Only the character ranges of changed values are replaced, so comments, order, quotes, blank lines and line breaks of the
rest are preserved byte for byte. The result is parsed and compared before it is returned.
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
# Sections are written one after the other, so each text is parsed as a result and as the next input.
_parse = functools.lru_cache(maxsize=8)(parse_document)


def rewrite_section(
    text: str, section: str, value: Mapping[Any, Any], comment: str | None = None, file: str = "the configuration"
) -> str:
    """Set one top-level section of a YAML text to a value.

    Unchanged keys of the section keep their text; other keys are replaced, appended to the section, or removed. A
    section with `<<` is rewritten completely. A missing section is appended to the file.

    Args:
        text: a YAML file with its line breaks; may be empty.
        section: top-level key, e.g. `swap_config`.
        value: new value of the section, as plain data.
        comment: lines to put above the section, which replace earlier comments of mindswap; None changes no comment.
        file: name for messages.

    Returns:
        The edited text.

    Raises:
        PolicyError: if the text cannot be parsed, or the section cannot be edited without changing something else (for
            example, another section uses an anchor of this one).
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
    """Parse a text; an empty one has no root. Raises PolicyError with all problems of the text."""
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
    """Return the data with the keys of one section sorted, because their order is not compared."""
    value = data.get(section)
    if not isinstance(value, Mapping):
        return data
    return {**data, section: {key: value[key] for key in sorted(value, key=repr)}}
