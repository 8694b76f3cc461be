"""Problems as text: what is wrong, where, what is allowed, how to fix it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from mindswap.config.problem import Level, Problem, sort_problems
from mindswap.system.streams import printable
from mindswap.units import format_count

# Nobody reads more at once, and a file can have a hundred thousand.
MAX_SHOWN = 100
_COLOURS = {Level.ERROR: "\033[1;31m", Level.WARNING: "\033[1;33m"}
_BOLD, _RESET = "\033[1m", "\033[0m"


def format_problems(problems: Iterable[Problem], colour: bool = False) -> str:
    """The problems in file order, one block of lines each; of very many the first, then how many there are."""
    found = sort_problems(problems)
    blocks = [_format(problem, colour) for problem in _shown(found)]
    if len(blocks) < len(found):
        blocks.append(f"... {len(blocks)} of {len(found)} problems are shown")
    return "\n".join(blocks)


def problems_to_data(problems: Iterable[Problem]) -> dict[str, Any]:
    """The problems as plain data, for JSON: `problems`, the first of very many, and `num_problems`."""
    found = sort_problems(problems)
    return {"problems": [_to_data(problem) for problem in _shown(found)], "num_problems": len(found)}


def _shown(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """The first ones, errors before warnings, in file order."""
    if len(problems) <= MAX_SHOWN:
        return problems
    levels = list(Level)
    return sort_problems(sorted(problems, key=lambda problem: levels.index(problem.level))[:MAX_SHOWN])


def _to_data(problem: Problem) -> dict[str, Any]:
    said = {"message": problem.message, "allowed": problem.allowed, "fix": problem.fix}
    return {**asdict(problem.location), "rule": problem.rule, "level": problem.level.value, **said}


def format_counts(problems: Iterable[Problem], ignored: Iterable[Problem] = ()) -> str:
    """Numbers of problems by level: `1 error, 2 warnings, 3 warnings ignored (overlap)`."""
    levels = [problem.level for problem in problems]
    counts = [(levels.count(level), level.value) for level in Level]
    parts = [format_count(count, name) for count, name in counts if count] or ["no problems"]
    rules = [problem.rule for problem in ignored]
    if rules:
        parts.append(f"{format_count(len(rules), 'warning')} ignored ({', '.join(sorted(set(rules)))})")
    return ", ".join(parts)


def escape(text: str) -> str:
    """Text that a terminal shows as it is: control characters of the user's file become escapes."""
    return printable(text).replace("\n", "\\n")


def _format(problem: Problem, colour: bool) -> str:
    place, level = escape(str(problem.location)), problem.level.value
    if colour:
        place, level = f"{_BOLD}{place}{_RESET}", f"{_COLOURS[problem.level]}{level}{_RESET}"
    lines = [f"{place}: {level}: {escape(problem.message)} [{problem.rule}]"]
    if problem.allowed:
        lines.append(f"    allowed: {escape(problem.allowed)}")
    if problem.fix:
        lines.append(f"    fix:     {escape(problem.fix)}")
    return "\n".join(lines)


# What every command says with `--json`: one object, of one outer shape, on success and on error.
#
# `{"schema": "mindswap.COMMAND", "version": 1, "ok": ..., "error": ..., "problems": [...], DATA}`; `data/schema/` has
# the rest. `ok` is exit code 0. Where there is an error there is no data; where `ok` is false without one, the data
# says why: nothing fits, or the graph does not do what is asked.

# Of the outer shape and of all data; one more where a key goes or changes its meaning, not where one is new.
VERSION = 1


def answer_text(command: str, data: Mapping[str, Any], is_ok: bool, error: str | None = None) -> str:
    """The answer of a command: JSON values, `problems` among them if there are any.

    `command` is "" where there is no such one; `is_ok` says that it exits with 0, `error` why there is no data.
    """
    name = f"mindswap.{command}" if command else "mindswap"
    outer = {"schema": name, "version": VERSION, "ok": is_ok, "error": error}
    return json.dumps({**outer, "problems": [], **data, **outer}, indent=1)
