"""Problems as text: what is wrong, where, what is allowed, how to fix it."""

from collections.abc import Iterable

from mindswap.document.problem import Level, Problem, sort_problems

__all__ = ["escape", "format_counts", "format_problems", "problem_to_data"]

_COLOURS = {Level.ERROR: "\033[1;31m", Level.WARNING: "\033[1;33m"}
_BOLD, _RESET = "\033[1m", "\033[0m"


def format_problems(problems: Iterable[Problem], colour: bool = False) -> str:
    """All problems in file order, one block of lines each.

    Args:
        problems: what was found.
        colour: write ANSI colours, for a terminal.
    """
    return "\n".join(_format(problem, colour) for problem in sort_problems(problems))


def problem_to_data(problem: Problem) -> dict:
    """One problem as plain data, for JSON."""
    return {
        "file": problem.location.file,
        "line": problem.location.line,
        "column": problem.location.column,
        "rule": problem.rule,
        "level": problem.level.value,
        "message": problem.message,
        "allowed": problem.allowed,
        "fix": problem.fix,
    }


def format_counts(problems: Iterable[Problem]) -> str:
    """How many there are of each level: `1 error, 2 warnings`."""
    levels = [problem.level for problem in problems]
    counts = [(levels.count(level), level.value) for level in Level]
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts if count) or "no problems"


def escape(text: str) -> str:
    """Text that a terminal shows as it is: control characters of the user's file become escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


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
