"""Parse YAML text to located nodes. Any file can be parsed: mistakes become problems with a location."""

from collections.abc import Iterator
from dataclasses import replace

import yaml

from mindswap.config.builder import Builder
from mindswap.config.nodes import Document
from mindswap.config.problem import Level, Location, Problem, find_errors
from mindswap.config.safe_load import find_load_problem
from mindswap.config.syntax_errors import syntax_problems
from mindswap.files import is_recorded_step

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# PyYAML's Python loader, which MindFormers uses, is stricter (for example about tabs) and takes 1 s for 200 KB.
MAX_CHARS_OF_SLOW_LOADER = 64 * 1024


def loader_for(text: str) -> type:
    """Return the loader class that MindFormers uses; for large texts the fast one, which accepts slightly more."""
    return yaml.SafeLoader if len(text) <= MAX_CHARS_OF_SLOW_LOADER else LOADER


# A MindFormers configuration is a few hundred lines.
MAX_FILE_BYTES = 32 * 1024 * 1024


def parse_file(path: str) -> Document:
    """Parse one file, without its `base_config` (see `source`)."""
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
    return parse_document(content, path)


def parse_document(content: bytes | str, file: str) -> Document:
    """Parse the text of one file; bytes must be UTF-8, the only encoding that MindFormers reads."""
    if isinstance(content, bytes):
        if len(content) > MAX_FILE_BYTES:
            return _unreadable(Location(file), "yaml-file", "is too large", f"at most {MAX_FILE_BYTES // 2**20} MiB")
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
        builder.problems += syntax_problems(error, content, file, loader_for(content))
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
    """Yield the events of a parser, and append each to a list."""
    for event in events:
        kept.append(event)
        yield event


def _unreadable(location: Location, rule: str, message: str, allowed: str = "", fix: str = "") -> Document:
    problem = Problem(location, rule, Level.ERROR, f"the file {message}", allowed, fix)
    return Document(location.file, None, (problem,))


def _reader_location(file: str, text: str) -> Location:
    """Return the location of the first invalid character; the two readers report it differently."""
    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if bad is None:
        return Location(file)
    return _end_location(file, text[: bad.start()])


def _end_location(file: str, text: str) -> Location:
    """Return the location directly after a text."""
    return Location(file, text.count("\n") + 1, len(text) - text.rfind("\n"))
