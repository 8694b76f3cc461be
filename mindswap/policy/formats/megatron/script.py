"""Extract the words of the Megatron-LM command from a launch script, without running the script.

Supported: variables and arrays that the script sets (`GPT_ARGS="..."`, `ARGS=(...)`, `+=`), `${NAME:-default}` if the
script does not set NAME, continued lines, comments, here-documents, and commands in quotes (`sh -c "python ..."`).
Variables that depend on the environment, on a command or on a condition are not expanded, so that the options that use
them can be reported.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from mindswap.errors import MindswapError
from mindswap.policy.formats.megatron.options import OPTIONS, OptionKind, read_tokens

MAX_VALUE_CHARS = 100_000
MAX_NESTED = 8

_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)\n.*?^[ \t]*\2[ \t]*$", re.DOTALL | re.MULTILINE)
_ASSIGNMENT = re.compile(r"(?:(?:export|local|readonly|declare)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^{}$]*))?\})")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_TOKEN = re.compile(
    r"""\\. | '[^']*' | (?P<double>"(?:\\.|[^"\\])*") | (?P<comment>(?<![^ \t\n;(])\#[^\n]*)
        | (?P<bracket>[()]) | (?P<end>[\n;&|]) | .""",
    re.DOTALL | re.VERBOSE,
)
_KEYWORD = re.compile(r"(?:then|else|do|\{|!|time)\s+")
_OPENS, _CLOSES = {"if", "for", "while", "until", "case", "select"}, {"fi", "done", "esac"}


class ScriptError(MindswapError):
    """The script cannot be parsed, or has no unambiguous options.

    Attributes:
        line: number of the line, from 1; 0 for the complete script.
    """

    def __init__(self, message: str, line: int = 0):
        self.line = line
        super().__init__(message)


@dataclass(frozen=True)
class Command:
    """Command of a script."""

    words: tuple[str, ...]  # words of the command, variables expanded
    unknown: tuple[str, ...]  # words whose value is not known and may hold options, e.g. `$EXTRA_ARGS`
    unknown_lines: tuple[int, ...] = ()  # line of each that sets it by a condition or a command, from 1; 0 for none


def find_command(text: str) -> Command:
    """Find the command with options of Megatron-LM in a script; the text may consist of options only.

    Raises:
        ScriptError: if there is no such command, or several with different options, or quotes are not closed.
    """
    shell = _Shell()
    commands = []
    for line, statement in _statements(text):
        try:
            shell.line = line
            words = shell.run(statement)
        except ValueError as error:
            raise ScriptError(f"cannot be read as a shell script: {str(error).lower()}", line) from None
        if read_tokens(words):
            commands.append((line, words))
    if not commands:
        words = [word for value in shell.values.values() if value is not None for word in _split(value)]
        if not read_tokens(words):
            raise ScriptError("has no option of Megatron-LM that decides recomputation or offloading")
        commands = [(0, words)]
    first = read_tokens(commands[0][1])
    for line, words in commands[1:]:
        if read_tokens(words) != first:
            raise ScriptError("a second command with other options; which one is meant cannot be known", line)
    unknown = tuple(_unknown_arguments(commands[0][1]))
    return Command(tuple(commands[0][1]), unknown, tuple(map(shell.line_of, unknown)))


def _unknown_arguments(words: list[str]) -> Iterator[str]:
    """Yield variables that are not the value of an option, so they may hold options."""
    for before, word in zip(["", *words], words, strict=False):
        is_flag = before in OPTIONS and OPTIONS[before].kind is OptionKind.FLAG
        takes_value = before.startswith("--") and "=" not in before and not is_flag
        if word in ("$@", "$*") or (_VARIABLE.fullmatch(word) and not takes_value):
            yield word


def option_line(text: str, option: str) -> int:
    """Return the number of the first line with an option outside of a comment, from 1; 0 if there is none."""
    match = re.search(rf"^[^#\n]*?(?<![\w-]){re.escape(option)}(?![\w-])", text, re.MULTILINE)
    return text.count("\n", 0, match.end()) + 1 if match else 0


@dataclass
class _Shell:
    """Variables of a script; None for values that only a run determines."""

    values: dict[str, str | None] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)  # where these values are set
    line: int = 0  # of the statement
    depth: int = 0

    def run(self, statement: str) -> list[str]:
        """Process one statement: an assignment sets variables, and a command returns its expanded words."""
        while True:
            first = statement.split(maxsplit=1)[0] if statement.strip() else ""
            self.depth = max(0, self.depth + (first in _OPENS) - (first in _CLOSES))
            keyword = _KEYWORD.match(statement)
            if keyword is None:
                break
            statement = statement[keyword.end() :]
        assignment = _ASSIGNMENT.fullmatch(statement)
        if assignment is not None and self._assign(*assignment.groups()):
            return []
        return [part for word in shlex.split(statement) for part in self._words(word)]

    def _assign(self, name: str, plus: str, value: str) -> bool:
        if value.startswith("(") and value.endswith(")"):
            words = shlex.split(value[1:-1])
        else:
            words = shlex.split(value)
            if len(words) > 1:  # `NAME=value command`
                return False
        new: str | None = self._expand(" ".join(words))
        before = self.values.get(name, "")
        if plus:
            new = f"{before} {new}" if before is not None else None
        is_conditional = self.depth > 0 and new != before
        has_command = re.search(r"\$\(|`", value) is not None
        self.values[name] = None if is_conditional or has_command or len(new or "") > MAX_VALUE_CHARS else new
        self.lines[name] = self.line if before is not None else self.lines[name]
        return True

    def line_of(self, word: str) -> int:
        """Return the line that makes a variable unknown; 0 if the script does not set it."""
        match = _VARIABLE.fullmatch(word)
        return self.lines.get(match[1] or match[2], 0) if match else 0

    def _words(self, word: str, nested: int = 0) -> list[str]:
        expanded = self._expand(word)
        if not re.search(r"\s", expanded) or nested == MAX_NESTED:
            return [expanded]
        return [part for inner in _split(expanded) for part in self._words(inner, nested + 1)]

    def _expand(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            current = self.values.get(name, match[3])
            return match[0] if current is None else current

        return _VARIABLE.sub(value, text)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each statement without comments; quotes and parentheses may span lines."""
    text = _HEREDOC.sub(lambda match: match[3] + "\n" * match[0].count("\n"), text.replace("\r\n", "\n"))
    statement, depth, line, start = "", 0, 1, 1
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        line += token.count("\n")
        if kind == "end" and not depth:
            if statement.strip():
                yield start, _strip(statement)
            statement, start = "", line
        elif kind == "double":
            statement += _ESCAPED.sub(lambda escaped: escaped[0].replace("\\\n", ""), token)
        elif kind != "comment":
            if kind == "bracket":
                depth = max(0, depth + (1 if token == "(" else -1))
            statement += " " if token in ("\n", "\\\n") else token
    if statement.strip():
        yield start, _strip(statement)


def _strip(statement: str) -> str:
    """Strip a statement, but for a blank after a last backslash: the shell reads that as an argument and ends there."""
    stripped = statement.strip()
    num_backslashes = len(stripped) - len(stripped.rstrip("\\"))
    return f"{stripped} " if num_backslashes % 2 else stripped
