"""Format problems as text and JSON, and the common JSON output of all commands."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from mindswap.config.problem import Level, Problem, sort_problems
from mindswap.language import translate, translate_cell
from mindswap.system.streams import printable
from mindswap.units import format_count

# Limit of printed problems, as a file can have a hundred thousand.
MAX_SHOWN = 100
_COLOURS = {Level.ERROR: "\033[1;31m", Level.WARNING: "\033[1;33m"}
_BOLD, _RESET = "\033[1m", "\033[0m"


def format_problems(problems: Iterable[Problem], colour: bool = False) -> str:
    """Format problems in file order, one block of lines each; limited to `MAX_SHOWN`, then with their number."""
    sorted_problems = sort_problems(problems)
    blocks = [_format(problem, colour) for problem in _shown(sorted_problems)]
    if len(blocks) < len(sorted_problems):
        blocks.append(f"... {len(blocks)} of {len(sorted_problems)} problems are shown")
    return "\n".join(blocks)


def problems_to_data(problems: Iterable[Problem]) -> dict[str, Any]:
    """Return problems as JSON data: `problems`, limited to `MAX_SHOWN`, and `num_problems`."""
    sorted_problems = sort_problems(problems)
    return {
        "problems": [_to_data(problem) for problem in _shown(sorted_problems)],
        "num_problems": len(sorted_problems),
    }


def _shown(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Return at most `MAX_SHOWN` problems in file order; errors take precedence over warnings."""
    if len(problems) <= MAX_SHOWN:
        return problems
    levels = list(Level)
    return sort_problems(sorted(problems, key=lambda problem: levels.index(problem.level))[:MAX_SHOWN])


def _to_data(problem: Problem) -> dict[str, Any]:
    texts = {"message": problem.message, "allowed": problem.allowed, "fix": problem.fix}
    return {**asdict(problem.location), "rule": problem.rule, "level": problem.level.value, **texts}


def format_counts(problems: Iterable[Problem], ignored: Iterable[Problem] = ()) -> str:
    """Format the numbers of problems by level, for example `1 error, 2 warnings, 3 warnings ignored (overlap)`."""
    levels = [problem.level for problem in problems]
    counts = [(levels.count(level), level.value) for level in Level]
    parts = [format_count(count, name) for count, name in counts if count] or ["no problems"]
    rules = [problem.rule for problem in ignored]
    if rules:
        parts.append(f"{format_count(len(rules), 'warning')} ignored ({', '.join(sorted(set(rules)))})")
    return ", ".join(parts)


def escape(text: str) -> str:
    """Escape control characters and newlines, because texts from the user's files may contain them."""
    return printable(text).replace("\n", "\\n")


def _format(problem: Problem, colour: bool) -> str:
    place, level = escape(str(problem.location)), translate_cell(problem.level.value)
    if colour:
        place, level = f"{_BOLD}{place}{_RESET}", f"{_COLOURS[problem.level]}{level}{_RESET}"
    lines = [f"{place}: {level}: {translate(escape(problem.message))} [{problem.rule}]"]
    if problem.allowed:
        lines.append(f"    allowed: {escape(problem.allowed)}")
    if problem.fix:
        lines.append(f"    fix:     {escape(problem.fix)}")
    return "\n".join(lines)


# Output of every command with `--json`: one object of the same outer form, on success and on error.
#
# `{"schema": "mindswap.COMMAND", "version": 1, "ok": ..., "error": ..., "problems": [...], DATA}`, see `data/schema/`.
# `ok` means exit code 0. With an error there is no data. If `ok` is false without an error, the data has the reason,
# for example that no plan fits.

# Version of the outer form and all data; incremented when a key is removed or changes its meaning.
VERSION = 1


def answer_text(command: str, data: Mapping[str, Any], is_ok: bool, error: str | None = None) -> str:
    """Format the JSON output of a command.

    Args:
        command: name of the command; "" if it is unknown.
        data: JSON data, may include `problems`.
        is_ok: whether the exit code is 0.
        error: error message if there is no data.
    """
    name = f"mindswap.{command}" if command else "mindswap"
    outer = {"schema": name, "version": VERSION, "ok": is_ok, "error": error}
    return json.dumps({**outer, "problems": [], **data, **outer}, indent=1)
