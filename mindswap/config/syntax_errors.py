"""Convert errors of PyYAML's parsers to problems at the location of the mistake, often above that of the error."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml

from mindswap.config.builder import mark_location
from mindswap.config.characters import find_wide, name_character, to_ascii
from mindswap.config.problem import Level, Location, Problem
from mindswap.units import format_count

RULE = "yaml-syntax"
# A line inside a quoted scalar that looks like a key or an element of a list, so the quote was probably not closed.
_KEY_LINE = re.compile(r"\s*(?:- )?[\w'\"{.-][^#]*?:(?:\s|$)|\s*- ")


class _Description(NamedTuple):
    """Text of a problem, as in `Problem`."""

    message: str
    allowed: str
    fix: str


class _Position(NamedTuple):
    """A position in a text, from 0."""

    line: int
    column: int


def syntax_problems(error: yaml.MarkedYAMLError, text: str, file: str, loader: type) -> list[Problem]:
    """Return the problems of a text at which a parser stopped.

    Args:
        error: error of the parser.
        text: the complete text.
        file: name for messages.
        loader: loader class of the parser.
    """
    wide = list(_wide_characters(error, text, file, loader))
    if wide:
        return wide
    quote = _open_quote(error, text, loader)
    if quote is not None:
        return [_quote_problem(quote, text, file)]
    location, begin = mark_location(file, error.problem_mark), error.context_mark
    end = error.problem_mark
    if "flow" in (error.context or "") and begin is not None and end is not None and begin.line < end.line:
        location = mark_location(file, begin)
    return [Problem(location, RULE, Level.ERROR, *_describe(error, text))]


def _wide_characters(error: yaml.MarkedYAMLError, text: str, file: str, loader: type) -> Iterator[Problem]:
    """Yield a problem for each look-alike near the error, if replacing them moves the error further down."""
    lines = text.splitlines()
    last = error.problem_mark.line if error.problem_mark is not None else len(lines) - 1
    first = min(last, error.context_mark.line if error.context_mark is not None else last) - 1
    characters = list(find_wide(lines, first, last))
    if not characters:
        return
    replaced = [to_ascii(line) if first <= number <= last else line for number, line in enumerate(lines)]
    stop = _find_parser_stop("\n".join(replaced), loader)
    if stop is not None and stop <= last:
        return
    for line, column, character in characters:
        message = f"YAML reads the character {name_character(character)} as text"
        ascii_character = to_ascii(character)
        substitute = repr(ascii_character) if ascii_character.strip() else "a space" if ascii_character else "nothing"
        fix = f"write {substitute} in its place"
        yield Problem(Location(file, line, column), RULE, Level.ERROR, message, fix=fix)


def _find_parser_stop(text: str, loader: type) -> int | None:
    """Return the line, from 0, at which the parser stops; None if it parses the complete text."""
    try:
        for _ in yaml.parse(text, Loader=loader):
            pass
    except yaml.MarkedYAMLError as error:
        return error.problem_mark.line if error.problem_mark is not None else 0
    except yaml.YAMLError:
        return 0
    return None


def _open_quote(error: yaml.MarkedYAMLError, text: str, loader: type) -> _Position | None:
    """Return the position of a quote that is not closed, so that its text includes keys below; None without one."""
    lines = text.splitlines()
    try:
        for token in yaml.scan(text, Loader=loader):
            is_quoted = isinstance(token, yaml.ScalarToken) and token.style in ("'", '"')
            if is_quoted and _covers_key_line(lines, token.start_mark.line, token.end_mark.line):
                return _Position(token.start_mark.line, token.start_mark.column)
    except yaml.MarkedYAMLError as scan_error:
        error = scan_error
    except yaml.YAMLError:
        return None
    begin, end = error.context_mark, error.problem_mark
    if begin is None or end is None or "quoted scalar" not in (error.context or ""):
        return None
    return _Position(begin.line, begin.column) if begin.line < end.line else None


def _covers_key_line(lines: list[str], first: int, last: int) -> bool:
    """Return whether one of the lines below the first looks like a key or an element of a list."""
    return any(_KEY_LINE.match(line) for line in lines[first + 1 : last + 1])


def _quote_problem(quote: _Position, text: str, file: str) -> Problem:
    """Return the problem of a quote that is not closed in its line; the fix has the text that was probably meant."""
    number, column = quote
    line = text.splitlines()[number]
    mark, following_text = line[column], line[column + 1 :]
    before = line[:column]
    is_flow = any(before.count(opening) > before.count(closing) for opening, closing in ("[]", "{}"))
    content = re.split(r"[,\]}]|\s#" if is_flow else r"\s#", following_text)[0].rstrip()
    message = "the quoted text that begins here is not closed in its line"
    return Problem(Location(file, number + 1, column + 1), RULE, Level.ERROR, message, fix=f"{mark}{content}{mark}")


def _describe(error: yaml.MarkedYAMLError, text: str) -> _Description:
    """Describe an error; both parsers of PyYAML have their own wording for each mistake."""
    problem, context = error.problem or "", error.context or ""
    message = ", ".join(part for part in (context, problem) if part) or "no valid YAML"
    position = error.problem_mark
    lines = text.splitlines()
    number = min(position.line, len(lines) - 1) if position is not None else 0
    line = lines[number] if lines else ""
    if "'\\t'" in message or "tab" in message:
        return _Description("tab used for indentation", "spaces", "replace the tab by spaces")
    if "unknown escape" in problem:
        return _describe_escape(line, position.column if position is not None else 0)
    if problem.startswith("mapping values are not allowed"):
        before = line[: position.column] if position is not None else line
        return _describe_second_colon() if ": " in before else _describe_indentation(lines, number)
    if "expected <block end>" in problem or problem.startswith("did not find expected '-' indicator"):
        return _describe_indentation(lines, number)
    if "flow" in context or "quoted scalar" in context:
        return _describe_unclosed(error)
    if "expected ':'" in problem:
        start = error.context_mark if error.context_mark is not None else position
        return _describe_missing_key(start.line if start is not None else number)
    if "did not find expected key" in problem:
        return _describe_indentation(lines, number)
    return _Description(message, "", "put the value in quotes, if it is a text")


def _describe_second_colon() -> _Description:
    fix = "put the value in quotes, or begin a new line"
    return _Description("a second ': ' in one line", "one key in a line", fix)


def _describe_unclosed(error: yaml.MarkedYAMLError) -> _Description:
    """Describe a list, mapping or quoted text that is not closed."""
    context, begin, position = error.context or "", error.context_mark, error.problem_mark
    opened = f" that begins in line {begin.line + 1}" if begin is not None else ""
    if "flow" not in context:
        return _Description(f"the quoted text{opened} is not closed", "", "add the closing quote")
    kind, end = ("list", "]") if "sequence" in context else ("mapping", "}")
    allowed = f"',' or '{end}'"
    if begin is not None and position is not None and begin.line < position.line:
        fix = f"add '{end}' at its end; line {position.line + 1} does not fit"
        return _Description(f"the {kind} in brackets that begins here is not closed", allowed, fix)
    return _Description(f"the {kind} in brackets{opened} is not closed", allowed, f"add '{end}', or ',' before this")


def _describe_missing_key(number: int) -> _Description:
    fix = "write 'key: value', or put the text after its key"
    return _Description(f"line {number + 1} is not 'key: value'", "", fix)


def _describe_escape(line: str, column: int) -> _Description:
    r"""Describe an escape such as `"attention\.x"`: backslashes of patterns are literal in single quotes only."""
    matches = re.finditer(r'"([^"]*)"', line)
    quoted = next((match for match in matches if match.start() <= column < match.end()), None)
    fix = f"single quotes: '{quoted[1]}'" if quoted is not None and "'" not in quoted[1] else "single quotes"
    message = r"in double quotes '\' begins an escape, and this is none"
    return _Description(message, "single quotes for patterns", fix)


def _describe_indentation(lines: list[str], number: int) -> _Description:
    """Describe a line whose column is not that of any open block above."""
    columns = _open_columns(lines[:number])
    line = lines[number] if lines else ""
    begin = len(line) - len(line.lstrip(" "))
    if begin in columns or not columns:
        above = next((at for at in range(number - 1, -1, -1) if lines[at].strip()), None)
        if above is not None and not re.search(r":(\s|$)|^\s*(#|- )", lines[above]):
            return _describe_missing_key(above)
        message = "the indentation, or the kind of this line, does not fit the lines above"
        return _Description(message, "", "indent it as its neighbours")
    allowed = ", ".join(str(column) for column in columns)
    nearest = min(columns, key=lambda column: (abs(column - begin), -column))
    message = f"wrong indentation: {format_count(begin, 'space')}, where no open block above has as many"
    return _Description(message, f"{allowed} spaces", f"indent the line by {format_count(nearest, 'space')}")


def _open_columns(lines: list[str]) -> list[int]:
    """Return the columns of the blocks that are open after some lines."""
    columns: list[int] = []
    for line in lines:
        begin = len(line) - len(line.lstrip(" "))
        if line.strip() and not line.lstrip().startswith("#"):
            dashes = len(line) - len(line.lstrip(" -")) if line.lstrip().startswith("- ") else begin
            columns = [*(column for column in columns if column < begin), *dict.fromkeys((begin, dashes))]
    return columns
