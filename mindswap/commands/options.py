"""Options that several commands have, each defined once."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tqdm import tqdm

from mindswap.errors import DataError
from mindswap.simulator.cost.device_file import list_devices
from mindswap.simulator.cost.hardware import OPTIONS, UNITS_OF

CONFIG_OR_STEP = "YAML of MindFormers, or a step that `mindswap trace` recorded (.json)"

# Options of the device that `--help` lists; the others are there all the same.
COMMON_OPTIONS = (
    "memory",
    "fragments",
    "host_memory",
    "d2h",
    "h2d",
    "contended_fraction",
    "compute_fraction",
    "memory_bandwidth_fraction",
)
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


def option(
    parser: argparse._ActionsContainer,
    name: str,
    help: str,
    read: Callable[[str], Any] | None = None,
    default: Any = None,
    **more: Any,
) -> None:
    """One option of a command: `--full` is a switch, `--jobs N` takes a value.

    Args:
        parser: of the command, or a group of it.
        name: with what the value is called in `--help`.
        help: what it is for.
        read: makes the value of the text.
        default: the value where it is not given.
        more: as of `ArgumentParser.add_argument`, e.g. `choices`.
    """
    words = name.split()
    names = [word for word in words if word.startswith("-")]
    if len(names) == len(words) and not more:
        more = {"action": "store_true"}
    given = {"metavar": " ".join(words[len(names) :]) or None, "type": read, "default": default}
    parser.add_argument(*names, help=help, **{key: value for key, value in given.items() if value is not None}, **more)


_COMMON: tuple[tuple[str, str, Callable[[str], Any] | None], ...] = (
    ("--expert-skew N", "tokens that the busiest rank of experts gets; 1, the default, is balanced", None),
    ("--html FILE", "write a page that opens offline in a browser", optional_path),
    ("--json", "for machines: one object, also for errors; docs/python.md", None),
    ("--no-cache", "compile again, keep nothing", None),
    ("--num-layers N", "layers, if not as in model.model_config", number_from(1, MOST_LAYERS)),
    ("--plot FILE", "write a picture (.png, .svg, .pdf)", optional_path),
    ("--rank R", "sizes on this rank, layers of its pipeline stage", int),
)


def add_common(parser: argparse.ArgumentParser, *names: str) -> None:
    """Options that mean the same everywhere, in the order of `--help`."""
    common = {words.split()[0]: (words, help, read) for words, help, read in _COMMON}
    for name in names:
        option(parser, *common[name])


def add_target_arguments(parser: argparse.ArgumentParser, help_text: str) -> None:
    """`-o`, `--in-place` and `--overwrite` of a command that changes CONFIG; `help_text`: what -o does."""
    place = parser.add_mutually_exclusive_group()
    option(place, "-o --output FILE", help_text, optional_path)
    option(place, "--in-place", "change CONFIG itself")
    option(parser, "--overwrite", "replace FILE")


def reject_overwrite_without_output(args: argparse.Namespace) -> None:
    """Refuse `--overwrite` without `-o`. Raises DataError: it is there."""
    if args.overwrite and not args.output:
        raise DataError("--overwrite: no file is written without -o\n    fix:     -o FILE, or leave it out")


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """`--device` and an option for each figure of it."""
    group = parser.add_argument_group("device", "all figures can be replaced; `mindswap:` of CONFIG takes them too")
    option(group, "--device NAME|FILE", f"{', '.join(list_devices())}, or a .yaml file")
    for name, figure in OPTIONS.items():
        meaning = (
            f"most that may be used: {figure.meaning}; GB is 10^9 here, 58GB in a YAML of MindFormers is 58GiB"
            if name == "memory"
            else figure.meaning
        )
        words = f"--{name.replace('_', '-')} {UNITS_OF[figure.kind][1]}"
        shown = meaning if name in COMMON_OPTIONS else argparse.SUPPRESS
        option(group, words, shown, dest=f"{FIGURE_PREFIX}{name}")


def device_overrides(args: argparse.Namespace) -> dict[str, str]:
    """The figures that options replace."""
    found = {name: getattr(args, f"{FIGURE_PREFIX}{name}") for name in OPTIONS}
    return {name: text for name, text in found.items() if text is not None}


class PhaseLines:
    """One line per phase, with the time since the start."""

    def __init__(self, begin_s: float, stream: TextIO):
        self.begin_s = begin_s
        self.stream = stream

    def __call__(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begin_s:4.0f} s] {text}", file=self.stream, flush=True)


# A search that takes longer shows how far it is.
PATIENCE_S = 2.0
INTERRUPTED = b"\nmindswap: interrupted: the best plan so far comes next; Ctrl-C again ends at once\n"


class SearchBar:
    """Counts simulations on a terminal once it takes long; the first Ctrl-C asks the search for its best so far."""

    def __init__(self) -> None:
        self.begin_s = time.monotonic()
        self.bar: tqdm[NoReturn] | None = None
        self.is_interrupted = False

    def __enter__(self) -> "SearchBar":
        self.handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self.handler)
        if self.bar is not None:
            self.bar.close()

    def _interrupt(self, number: int, frame: object) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.is_interrupted = True
        os.write(sys.stderr.fileno(), INTERRUPTED)  # print would not do: the signal may come while it prints

    def raise_if_interrupted(self) -> None:
        """For a search that runs elsewhere."""
        if self.is_interrupted:
            from mindswap.planner.solvers.search import Stop  # imports numba, which `check` needs not

            raise Stop

    def __call__(self) -> None:
        self.raise_if_interrupted()
        if self.bar is None and time.monotonic() - self.begin_s > PATIENCE_S:
            self.bar = tqdm(desc="planning", unit=" simulations", leave=False, disable=None)
        if self.bar is not None:
            self.bar.update()
