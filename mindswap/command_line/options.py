"""Options that several commands have, each defined once."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mindswap.errors import DataError, PlanError
from mindswap.report.problems import answer_text
from mindswap.simulator.cost.device_file import list_devices
from mindswap.simulator.cost.hardware import OPTIONS
from mindswap.system.streams import print_text

FIGURE_PREFIX = "figure_"
MOST_LAYERS = 10_000  # each is looked at
MOST = 999_999  # of anything else that is counted


def optional_path(text: str) -> Path | None:
    """A type for argparse: a file; "", as of a variable that is not set, is none."""
    return Path(text) if text else None


def number_from(least: int, most: int = MOST) -> Callable[[str], int]:
    """A type for argparse: a number of steps, layers, workers, ..."""

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 6 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer between {least} and {most}")
        return int(text)

    return parse


# What several commands have: with what its value is called, what it is for, and how it is read.
_COMMON: dict[str, tuple[str, str, Callable[[str], Any] | None]] = {
    "--expert-skew": ("N", "tokens that the busiest rank of experts gets; 1, the default, is balanced", None),
    "--html": ("FILE", "write a page that opens offline in a browser", optional_path),
    "--json": ("", "for machines: one object, also for errors; docs/python.md", None),
    "--no-cache": ("", "compile again, keep nothing", None),
    "--num-layers": ("N", "layers, if not as in model.model_config", number_from(1, MOST_LAYERS)),
    "--plot": ("FILE", "write a picture (.png, .svg, .pdf)", optional_path),
    "--rank": ("R", "sizes on this rank, layers of its pipeline stage", int),
}


def add_options(parser: argparse.ArgumentParser, text: str, arguments: Mapping[str, Mapping[str, Any]]) -> None:
    """Options as `--help` has them, from the part behind `options:` of a docstring.

    A line is a name with what its value is called, two blanks, and what it is for, which goes on in lines that are
    indented further. `[CONFIG]` may be left out, of `CONFIG...` there may be several; `| --full` is not together with
    the one above; a line at the margin begins a group. A name alone is one that several commands have.

    Args:
        parser: gets them.
        text: the lines.
        arguments: more about some of them, as of `ArgumentParser.add_argument`.
    """
    rows: list[list[str]] = []
    for line in text.strip("\n").split("\n"):
        if line.startswith(" " * 6):
            rows[-1][1] = f"{rows[-1][1]} {line.strip()}".strip()
        else:
            rows.append([*re.split(r"(?<=\S)  +", line.strip(), maxsplit=1), ""][:2])
    group: argparse._ActionsContainer = parser
    for (name, help), (following, _) in zip(rows, [*rows[1:], ["", ""]], strict=True):
        if name.endswith(":"):
            group = parser.add_argument_group(name[:-1])
        elif name == "--device" and not help:
            _add_device_options(parser)
        else:
            if not name.startswith("| "):
                place = group.add_mutually_exclusive_group() if following.startswith("| ") else group
            _add_option(place, name.removeprefix("| "), help, arguments)


def _add_option(
    place: argparse._ActionsContainer, name: str, help: str, arguments: Mapping[str, Mapping[str, Any]]
) -> None:
    names = [word for word in name.split() if word.startswith("-")]
    metavar = name.removeprefix(" ".join(names)).strip()
    more: dict[str, Any] = {"metavar": metavar} if metavar else {}
    if names and names[0] in _COMMON and not help:
        metavar, help, read = _COMMON[names[0]]
        more = {"metavar": metavar, "type": read} if metavar else {}
    if not names:
        kind = "?" if name.endswith("]") else "+" if name.endswith("...") else None
        more = {"metavar": metavar.strip("[].") if kind else metavar, "nargs": kind}
    more |= arguments.get(names[-1] if names else name, {})
    if names and not more:
        more = {"action": "store_true"}
    place.add_argument(*(names or [more.pop("dest", more["metavar"].lower())]), help=help or None, **more)


def _add_device_options(parser: argparse.ArgumentParser) -> None:
    """`--device` and an option for each figure of it; `--help` lists those that most need."""
    group = parser.add_argument_group("device", "all figures can be replaced; `mindswap:` of CONFIG takes them too")
    group.add_argument("--device", metavar="NAME|FILE", help=f"{', '.join(list_devices())}, or a .yaml file")
    for name, figure in OPTIONS.items():
        meaning = figure.meaning
        if name == "memory":
            meaning = f"most that may be used: {meaning}; GB is 10^9 here, 58GB in a YAML of MindFormers is 58GiB"
        group.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=figure.kind.example,
            help=meaning if figure.is_common or name == "memory" else argparse.SUPPRESS,
            dest=f"{FIGURE_PREFIX}{name}",
        )


def answer(args: argparse.Namespace, data: Mapping[str, Any], text: object, is_ok: bool = True) -> int:
    """Print the answer of a command, with `--json` its data; gives the exit code."""
    print_text(answer_text(args.command, data, is_ok) if args.json else text)
    return 0 if is_ok else 1


def refuse_given(args: argparse.Namespace, options: str, message: str, fix: str) -> None:
    """Raise PlanError with the first of the options that is given in place of `{}`.

    `options` are divided by blanks; `--objective=memory` is given with this value only, and 1 is nothing that is given.
    """
    for option in options.split():
        name, _, value = option.partition("=")
        found = getattr(args, "output" if name == "-o" else name[2:].replace("-", "_"))
        if found == value if value else bool(found) and (found is True or found != 1):
            raise PlanError(message.format(option.replace("=", " ")) + (f"\n    fix:     {fix}" if fix else ""))


def reject_overwrite_without_output(args: argparse.Namespace) -> None:
    """Refuse `--overwrite` without `-o`. Raises DataError: it is there."""
    if args.overwrite and not args.output:
        raise DataError("--overwrite: no file is written without -o\n    fix:     -o FILE, or leave it out")


def device_overrides(args: argparse.Namespace) -> dict[str, str]:
    """The figures that options replace."""
    found = {name: getattr(args, f"{FIGURE_PREFIX}{name}") for name in OPTIONS}
    return {name: text for name, text in found.items() if text is not None}
