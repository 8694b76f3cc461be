"""What every `mindswap convert` does with its result: write it, show it, and the problems it has."""

import argparse
import sys
from collections.abc import Mapping, Sequence

from mindswap.document.problem import Level, Problem
from mindswap.files import write_new
from mindswap.report.answer import answer_text
from mindswap.report.problems import format_problems, problems_to_data

__all__ = ["hand_over", "target_of"]


def target_of(args: argparse.Namespace) -> str | None:
    """Where the result goes; None for the terminal."""
    target: str | None = args.output or (args.config if args.in_place else None)
    return target


def hand_over(args: argparse.Namespace, text: str, problems: Sequence[Problem], data: Mapping[str, object]) -> int:
    """Write or print a converted configuration.

    Args:
        args: options of `mindswap convert`.
        text: the configuration.
        problems: of the conversion and of its result.
        data: what `--json` says besides.

    Returns:
        0, or 1 if there is an error; it is written all the same.
    """
    target = target_of(args)
    if target:
        write_new(target, text, overwrite=args.overwrite or args.in_place)
    has_errors = any(problem.level is Level.ERROR for problem in problems)
    if args.json:
        answer = {"written": target, "text": text, **data, **problems_to_data(problems)}
        print(answer_text("convert", answer, not has_errors))
        return int(has_errors)
    if not target:
        print(text, end="" if text.endswith(("\n", "\r")) else "\n")
    if problems:
        print(format_problems(problems), file=sys.stderr)
    if target:
        print(f"written: {target}; next: mindswap check {target}")
    return int(has_errors)
