"""Argument parser of all commands, and output of those that run a training."""

import argparse
import re
import sys
from collections.abc import Callable
from typing import NoReturn

from mindswap.errors import MindswapError
from mindswap.language import display_width, translate, translate_help
from mindswap.system.streams import OutputError, drop_output, printable


class UsageError(MindswapError):
    """Invalid arguments of a command line.

    Args:
        usage: usage line of the command, and its name.
        message: the error.
    """

    def __init__(self, usage: str, message: str):
        self.usage = usage
        super().__init__(message)


# Where a line of help may end: after a word, or between Chinese characters, but not before their punctuation.
_WORD = re.compile(r" |（?(?:[\u4e00-\u9fff]|[!-~]+)[，。；：、）]*|[^ ]")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Format help with lines as wide as the terminal, of whose columns a Chinese character takes two."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = [""]
        for word in _WORD.findall(" ".join(text.split())):
            if display_width(lines[-1] + word.rstrip()) > width:
                lines.append("")
            lines[-1] += word if lines[-1] else word.lstrip()
        return [line.rstrip() for line in lines]


class Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError for invalid arguments, and prints its help in the chosen language."""

    def format_help(self) -> str:
        """Return the text of `--help`."""
        replace_help_texts(self, translate_help)
        self.formatter_class = _HelpFormatter
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; argparse would print the usage and exit."""
        raise UsageError(f"{self.format_usage()}{self.prog}", message)


def replace_help_texts(parser: argparse.ArgumentParser, replace: Callable[[str], str]) -> None:
    """Replace each text of `--help` of a parser, without its subcommands, by the result of a function."""
    for group in (parser, *parser._action_groups):
        group.description = group.description and replace(group.description)
    parser.epilog = parser.epilog and replace(parser.epilog)
    for group in parser._action_groups:
        group.title = group.title and replace(group.title)
    for action in parser._actions:
        commands = action._choices_actions if isinstance(action, argparse._SubParsersAction) else ()
        for each in (action, *commands):
            if each.help and each.help != argparse.SUPPRESS:
                each.help = replace(each.help)


def write_out(data: bytes) -> None:
    """Write output of a training to stdout; the training continues if that fails (`mindswap run ... | head`)."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except (OSError, OutputError):
        drop_output()


def say(text: str) -> None:
    """Print lines of mindswap between those of a training, each with a prefix."""
    write_out("".join(f"mindswap: {translate(printable(line))}\n" for line in text.splitlines()).encode())
