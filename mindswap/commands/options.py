"""Options that several commands have, each defined once."""

import argparse
from pathlib import Path
from typing import Any

from mindswap.cost.device_file import list_devices
from mindswap.cost.figures import EXAMPLES, OPTIONS

__all__ = [
    "CONFIG_OR_STEP",
    "add_common",
    "add_device_arguments",
    "add_skew_argument",
    "device_overrides",
    "positive_int",
]

CONFIG_OR_STEP = "YAML of MindFormers, or a step that `mindswap trace` recorded (.json)"

# Options of the device that `--help` lists; the others are there all the same.
COMMON_OPTIONS = (
    "memory",
    "host_memory",
    "d2h",
    "h2d",
    "contended_fraction",
    "compute_fraction",
    "memory_bandwidth_fraction",
)
FIGURE_PREFIX = "figure_"

_SWITCH = {"action": "store_true"}
_COMMON: dict[str, dict[str, Any]] = {
    "--html": {"metavar": "FILE", "type": Path, "help": "write a page that opens offline in a browser"},
    "--json": {**_SWITCH, "help": "for machines: one object, also for errors; docs/python.md"},
    "--no-cache": {**_SWITCH, "help": "compile again, keep nothing"},
    "--plot": {"metavar": "FILE", "type": Path, "help": "write a picture (.png, .svg, .pdf)"},
    "--rank": {"metavar": "R", "type": int, "help": "sizes on this rank, layers of its pipeline stage"},
}


def add_common(parser: argparse.ArgumentParser, *names: str) -> None:
    """Options that mean the same everywhere.

    Args:
        parser: of a command.
        names: of the options, in the order of `--help`.
    """
    for name in names:
        parser.add_argument(name, **_COMMON[name])


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """`--device` and an option for each figure of it."""
    group = parser.add_argument_group("device", "all figures can be replaced; `mindswap:` of CONFIG takes them too")
    group.add_argument("--device", metavar="NAME|FILE", help=f"{', '.join(list_devices())}, or a .yaml file")
    for name, figure in OPTIONS.items():
        meaning = (
            f"most that may be used: {figure.meaning}; GB is 10^9 here, 58GB in a YAML of MindFormers is 58GiB"
            if name == "memory"
            else figure.meaning
        )
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"{FIGURE_PREFIX}{name}",
            metavar=EXAMPLES[figure.kind],
            help=meaning if name in COMMON_OPTIONS else argparse.SUPPRESS,
        )


def device_overrides(args: argparse.Namespace) -> dict[str, str]:
    """The figures that options replace."""
    found = {name: getattr(args, f"{FIGURE_PREFIX}{name}") for name in OPTIONS}
    return {name: text for name, text in found.items() if text is not None}


def positive_int(text: str) -> int:
    """A number of layers, for argparse."""
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 1 to 10000")
    return int(text)


def add_skew_argument(parser: argparse.ArgumentParser) -> None:
    """`--expert-skew`."""
    parser.add_argument(
        "--expert-skew",
        metavar="N",
        help="tokens that the busiest rank of experts gets; 1, the default, is balanced",
    )
