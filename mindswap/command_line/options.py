"""Options that several commands have, each defined once."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mindswap.errors import DataError, PlanError
from mindswap.report.problems import answer_text
from mindswap.simulator.cost.device_file import list_devices
from mindswap.simulator.cost.hardware import OPTIONS
from mindswap.system.streams import print_data, print_text

FIGURE_PREFIX = "figure_"
MEMORY_UNITS = "; GB is 10^9 bytes here, but 58GB in a YAML of MindFormers is 58GiB"  # in `--help`
MAX_LAYERS = 10_000  # limit, because each layer takes time
MAX_NUMBER = 999_999  # limit of all other counts


def optional_path(text: str) -> Path | None:
    """Parse a path, as a `type` of argparse; None for "", as an unset shell variable gives."""
    return Path(text) if text else None


def number_from(min_value: int, max_value: int = MAX_NUMBER) -> Callable[[str], int]:
    """Return a `type` of argparse that parses an integer in the range."""

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 6 or not min_value <= int(text) <= max_value:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer between {min_value} and {max_value}")
        return int(text)

    return parse


def add_expert_skew(parser: argparse._ActionsContainer) -> None:
    """Add `--expert-skew`."""
    parser.add_argument(
        "--expert-skew",
        metavar="N",
        help="tokens of the busiest expert parallel rank, relative to the average; default 1 (balanced)",
    )


def add_html(parser: argparse._ActionsContainer) -> None:
    """Add `--html`."""
    parser.add_argument("--html", metavar="FILE", type=optional_path, help="write an HTML page; it opens offline")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, also for errors; docs/python.md")


def add_no_cache(parser: argparse._ActionsContainer) -> None:
    """Add `--no-cache`."""
    parser.add_argument("--no-cache", action="store_true", help="compile without reading the cache")


def add_num_layers(parser: argparse._ActionsContainer) -> None:
    """Add `--num-layers`."""
    parser.add_argument(
        "--num-layers",
        metavar="N",
        type=number_from(1, MAX_LAYERS),
        help="number of layers, instead of that in model.model_config",
    )


def add_plot(parser: argparse._ActionsContainer) -> None:
    """Add `--plot`."""
    parser.add_argument("--plot", metavar="FILE", type=optional_path, help="write a picture (.png, .svg, .pdf)")


def add_rank(parser: argparse._ActionsContainer) -> None:
    """Add `--rank`."""
    parser.add_argument("--rank", metavar="R", type=int, help="show the sizes and the layers of this rank")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device` and an option for each figure of a device; `--help` lists the common ones."""
    group = parser.add_argument_group(
        "device",
        description=(
            "each figure of the device can be set here, or in `mindswap:` of CONFIG;\n"
            "`mindswap simulate CONFIG --figures` lists all of them, and --h2d-latency sets h2d_latency"
        ),
    )
    group.add_argument("--device", metavar="NAME|FILE", help=f"{', '.join(list_devices())}, or a .yaml file")
    for name, figure in OPTIONS.items():
        is_memory = name == "memory"
        group.add_argument(
            f"--{name.replace('_', '-')}",
            metavar=figure.kind.name,
            help=f"{figure.meaning}{MEMORY_UNITS if is_memory else ''}"
            if figure.is_common or is_memory
            else argparse.SUPPRESS,
            dest=f"{FIGURE_PREFIX}{name}",
        )


def answer(args: argparse.Namespace, data: Mapping[str, Any], text: object, is_ok: bool = True) -> int:
    """Print the result of a command: `text`, or `data` with `--json`. Returns the exit code."""
    if args.json:
        print_data(answer_text(args.command, data, is_ok))
    else:
        print_text(text)
    return 0 if is_ok else 1


def refuse_given(args: argparse.Namespace, options: str, message: str, fix: str) -> None:
    """Raise PlanError if one of the options is used.

    Args:
        args: the parsed command line.
        options: options separated by blanks; `--objective=memory` stands for this value only. A value of 1 is a
            default, not a use.
        message: text of the error; `{}` is replaced by the option.
        fix: fix of the error; "" for none.

    Raises:
        PlanError: for the first option that is used.
    """
    for option in options.split():
        name, _, refused_value = option.partition("=")
        value = getattr(args, "output" if name == "-o" else name[2:].replace("-", "_"))
        if value == refused_value if refused_value else bool(value) and (value is True or value != 1):
            raise PlanError(message.format(option.replace("=", " ")) + (f"\n    fix:     {fix}" if fix else ""))


def reject_overwrite_without_output(args: argparse.Namespace) -> None:
    """Raise DataError for `--overwrite` without `-o`."""
    if args.overwrite and not args.output:
        raise DataError("--overwrite: no file is written without -o\n    fix:     -o FILE, or leave it out")


def device_overrides(args: argparse.Namespace) -> dict[str, str]:
    """Return the figures of the device that options replace: name -> text of the option."""
    texts = {name: getattr(args, f"{FIGURE_PREFIX}{name}") for name in OPTIONS}
    return {name: text for name, text in texts.items() if text is not None}
