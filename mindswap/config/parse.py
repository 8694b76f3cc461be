"""YAML text -> located nodes. Survives any file: what is wrong becomes a Problem with its place."""

import re
from collections.abc import Iterator
from dataclasses import replace

import yaml

from mindswap.config.builder import Builder, mark_location
from mindswap.config.nodes import Document
from mindswap.config.problem import Level, Location, Problem, find_errors
from mindswap.config.safe_load import find_load_problem
from mindswap.files import is_recorded_step
from mindswap.units import format_count

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML's own loader, which MindFormers uses, is stricter (about tabs, say) and takes a second for 200 KB.
MAX_CHARS_OF_SLOW_LOADER = 64 * 1024


def loader_for(text: str) -> type:
    """The loader that reads a text as MindFormers does; of large texts the fast one, whose grammar is a bit wider."""
    return yaml.SafeLoader if len(text) <= MAX_CHARS_OF_SLOW_LOADER else LOADER


# A MindFormers configuration is a few hundred lines.
MAX_FILE_BYTES = 32 * 1024 * 1024


def parse_file(path: str) -> Document:
    """Read one file; `base_config` is not followed (see `source`)."""
    location = Location(path)
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 a Path drops "./", which messages should keep
            content = stream.read(MAX_FILE_BYTES + 1)
    except IsADirectoryError:
        return _unreadable(location, "yaml-file", "is a directory", fix="name a YAML file in it")
    except FileNotFoundError:
        fix = "check the path; it is relative to the working directory"
        return _unreadable(location, "yaml-file", "does not exist", fix=fix)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return _unreadable(location, "yaml-file", f"cannot be read: {reason}")
    if is_recorded_step(content):
        fix = "mindswap inspect, simulate, compare or plan, under a name that ends in .json"
        return _unreadable(location, "yaml-file", "is a step that `mindswap trace` recorded", "a configuration", fix)
    if len(content) > MAX_FILE_BYTES:
        return _unreadable(location, "yaml-file", "is too large", f"at most {MAX_FILE_BYTES // 2**20} MiB")
    return parse_document(content, path)


def parse_document(content: bytes | str, file: str) -> Document:
    """Parse the text of one file; bytes must be UTF-8 (MindFormers reads nothing else)."""
    if isinstance(content, bytes):
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            fix = f"iconv -f UTF-16 -t UTF-8 {file}"
            return _unreadable(Location(file, 1, 1), "yaml-encoding", "is UTF-16", "UTF-8", fix)
        try:
            content = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            location = _end_location(file, error.object[: error.start].decode("utf-8", "replace"))
            message = f"is not UTF-8 text (byte 0x{error.object[error.start]:02x})"
            fix = f"iconv -f GBK -t UTF-8 {file}, if it is GBK"
            return _unreadable(location, "yaml-encoding", message, "UTF-8", fix)
    builder = Builder(file, content)
    events: list[yaml.Event] = []
    try:
        builder.read(_kept(yaml.parse(content, Loader=loader_for(content)), events))
    except yaml.MarkedYAMLError as error:
        builder.report(mark_location(file, error.problem_mark), "yaml-syntax", *_syntax_message(error, content))
    except yaml.reader.ReaderError as error:
        code = error.character
        character = f"U+{code:04X}" if isinstance(code, int) else repr(code)
        message = f"the character {character} is not allowed in YAML"
        builder.report(_reader_location(file, content), "yaml-syntax", message, fix="delete it")
    document = builder.document()
    if document.root is None or find_errors(document.problems):
        return document
    problem = find_load_problem(events, document.root, file)
    return document if problem is None else replace(document, problems=(problem,))


def _kept(events: Iterator[yaml.Event], kept: list[yaml.Event]) -> Iterator[yaml.Event]:
    """The events of a parser, each also added to a list."""
    for event in events:
        kept.append(event)
        yield event


def _unreadable(location: Location, rule: str, message: str, allowed: str = "", fix: str = "") -> Document:
    problem = Problem(location, rule, Level.ERROR, f"the file {message}", allowed, fix)
    return Document(location.file, None, (problem,))


def _syntax_message(error: yaml.MarkedYAMLError, text: str) -> tuple[str, str, str]:
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
        return f"the {kind} in brackets{opened} is not closed", f"',' or '{end}'", f"add '{end}', or ',' before this"
    if "quoted scalar" in (error.context or ""):
        return f"the quoted text{opened} is not closed", "", "add the closing quote"
    if "expected ':'" in problem:
        place = begin if begin is not None else place
        return _no_key(place.line if place is not None else number)
    if "did not find expected key" in problem:
        return _indentation_message(lines, number)
    return message, "", "put the value in quotes, if it is a text"


def _no_key(number: int) -> tuple[str, str, str]:
    return f"line {number + 1} is not 'key: value'", "", "write 'key: value', or put the text behind its key"


def _escape_message(line: str, column: int) -> tuple[str, str, str]:
    r"""`"attention\.x"`: patterns are full of backslashes, and only single quotes leave them alone."""
    quoted = next((found for found in re.finditer(r'"([^"]*)"', line) if found.start() <= column < found.end()), None)
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
            return _no_key(above)
        what = "the indentation, or the kind of this line, does not fit the lines above"
        return what, "", "indent it as its neighbours"
    allowed = ", ".join(str(column) for column in columns)
    best = min(columns, key=lambda column: (abs(column - begin), -column))
    what = f"wrong indentation: {format_count(begin, 'space')}, where no open block above has as many"
    return what, f"{allowed} spaces", f"indent the line by {format_count(best, 'space')}"


def _reader_location(file: str, text: str) -> Location:
    """Location of the first character that YAML does not allow; the two readers count differently."""
    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if bad is None:
        return Location(file)
    return _end_location(file, text[: bad.start()])


def _end_location(file: str, text: str) -> Location:
    """The place right behind a text."""
    return Location(file, text.count("\n") + 1, len(text) - text.rfind("\n"))
