"""Errors of PyYAML's parsers -> problems with the place of the mistake, which is often above the place of the error."""

import re
from collections.abc import Iterator

import yaml

from mindswap.config.builder import mark_location
from mindswap.config.characters import find_wide, name_character, to_ascii
from mindswap.config.problem import Level, Location, Problem
from mindswap.units import format_count

RULE = "yaml-syntax"
# A line that quotes which are not closed swallow: `key:`, or an element of a list.
_KEY_LINE = re.compile(r"\s*(?:- )?[\w'\"{.-][^#]*?:(?:\s|$)|\s*- ")


def syntax_problems(error: yaml.MarkedYAMLError, text: str, file: str, loader: type) -> list[Problem]:
    """Problems of a text at which a parser stopped.

    Args:
        error: of the parser.
        text: the whole text.
        file: name for messages.
        loader: class whose parser it was.
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
    message, allowed, fix = _describe(error, text)
    return [Problem(location, RULE, Level.ERROR, message, allowed, fix)]


def _wide_characters(error: yaml.MarkedYAMLError, text: str, file: str, loader: type) -> Iterator[Problem]:
    """Characters that only look like YAML, if the text can be read further with those that are meant."""
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
    """Line, from 0, at which the parser stops; None if it reads the whole text."""
    try:
        for _ in yaml.parse(text, Loader=loader):
            pass
    except yaml.MarkedYAMLError as error:
        return error.problem_mark.line if error.problem_mark is not None else 0
    except yaml.YAMLError:
        return 0
    return None


def _open_quote(error: yaml.MarkedYAMLError, text: str, loader: type) -> tuple[int, int] | None:
    """Line and column, from 0, of a quote that swallows the keys of the lines below; None without one."""
    lines = text.splitlines()
    try:
        for token in yaml.scan(text, Loader=loader):
            is_quoted = isinstance(token, yaml.ScalarToken) and token.style in ("'", '"')
            if is_quoted and _covers_key_line(lines, token.start_mark.line, token.end_mark.line):
                return token.start_mark.line, token.start_mark.column
    except yaml.MarkedYAMLError as scan_error:
        error = scan_error
    except yaml.YAMLError:
        return None
    begin, end = error.context_mark, error.problem_mark
    if begin is None or end is None or "quoted scalar" not in (error.context or ""):
        return None
    return (begin.line, begin.column) if begin.line < end.line else None


def _covers_key_line(lines: list[str], first: int, last: int) -> bool:
    """Return whether one of the lines below the first looks like a key or an element of a list."""
    return any(_KEY_LINE.match(line) for line in lines[first + 1 : last + 1])


def _quote_problem(quote: tuple[int, int], text: str, file: str) -> Problem:
    """Problem of a quote that is not closed in its line, with the text that it probably is about."""
    number, column = quote
    line = text.splitlines()[number]
    mark, rest = line[column], line[column + 1 :]
    before = line[:column]
    is_flow = any(before.count(opening) > before.count(closing) for opening, closing in ("[]", "{}"))
    content = re.split(r"[,\]}]|\s#" if is_flow else r"\s#", rest)[0].rstrip()
    message = "the quoted text that begins here is not closed in its line"
    return Problem(Location(file, number + 1, column + 1), RULE, Level.ERROR, message, fix=f"{mark}{content}{mark}")


def _describe(error: yaml.MarkedYAMLError, text: str) -> tuple[str, str, str]:
    """Message, allowed and fix; both parsers of PyYAML have their own words for each mistake."""
    problem = error.problem or ""
    message = ", ".join(part for part in (error.context, problem) if part) or "no valid YAML"
    place = error.problem_mark
    lines = text.splitlines()
    number = min(place.line, len(lines) - 1) if place is not None else 0
    line = lines[number] if lines else ""
    if "'\\t'" in message or "tab" in message:
        return "tab used for indentation", "spaces", "replace the tab by spaces"
    if "unknown escape" in problem:
        return _escape_message(line, place.column if place is not None else 0)
    if problem.startswith("mapping values are not allowed"):
        before = line[: place.column] if place is not None else line
        if ": " in before:
            return "a second ': ' in one line", "one key in a line", "put the value in quotes, or begin a new line"
        return _indentation_message(lines, number)
    if "expected <block end>" in problem or problem.startswith("did not find expected '-' indicator"):
        return _indentation_message(lines, number)
    begin = error.context_mark
    opened = f" that begins in line {begin.line + 1}" if begin is not None else ""
    if "flow" in (error.context or ""):
        kind = "list" if "sequence" in (error.context or "") else "mapping"
        end = "]" if kind == "list" else "}"
        if begin is not None and place is not None and begin.line < place.line:
            fix = f"add '{end}' at its end; line {place.line + 1} does not fit"
            return f"the {kind} in brackets that begins here is not closed", f"',' or '{end}'", fix
        return f"the {kind} in brackets{opened} is not closed", f"',' or '{end}'", f"add '{end}', or ',' before this"
    if "quoted scalar" in (error.context or ""):
        return f"the quoted text{opened} is not closed", "", "add the closing quote"
    if "expected ':'" in problem:
        place = begin if begin is not None else place
        return _missing_key_problem(place.line if place is not None else number)
    if "did not find expected key" in problem:
        return _indentation_message(lines, number)
    return message, "", "put the value in quotes, if it is a text"


def _missing_key_problem(number: int) -> tuple[str, str, str]:
    return f"line {number + 1} is not 'key: value'", "", "write 'key: value', or put the text behind its key"


def _escape_message(line: str, column: int) -> tuple[str, str, str]:
    r"""`"attention\.x"`: patterns are full of backslashes, and only single quotes leave them alone."""
    quoted = next((match for match in re.finditer(r'"([^"]*)"', line) if match.start() <= column < match.end()), None)
    fix = f"single quotes: '{quoted[1]}'" if quoted is not None and "'" not in quoted[1] else "single quotes"
    return r"in double quotes '\' begins an escape, and this is none", "single quotes for patterns", fix


def _indentation_message(lines: list[str], number: int) -> tuple[str, str, str]:
    """A line that begins in a column where no key, and no element of a list, above it does."""
    columns: list[int] = []  # of the blocks that are open above the line
    for line in lines[:number]:
        begin = len(line) - len(line.lstrip(" "))
        if line.strip() and not line.lstrip().startswith("#"):
            dashes = len(line) - len(line.lstrip(" -")) if line.lstrip().startswith("- ") else begin
            columns = [*(column for column in columns if column < begin), *dict.fromkeys((begin, dashes))]
    line = lines[number] if lines else ""
    begin = len(line) - len(line.lstrip(" "))
    if begin in columns or not columns:
        above = next((at for at in range(number - 1, -1, -1) if lines[at].strip()), None)
        if above is not None and not re.search(r":(\s|$)|^\s*(#|- )", lines[above]):
            return _missing_key_problem(above)
        what = "the indentation, or the kind of this line, does not fit the lines above"
        return what, "", "indent it as its neighbours"
    allowed = ", ".join(str(column) for column in columns)
    best = min(columns, key=lambda column: (abs(column - begin), -column))
    what = f"wrong indentation: {format_count(begin, 'space')}, where no open block above has as many"
    return what, f"{allowed} spaces", f"indent the line by {format_count(best, 'space')}"
