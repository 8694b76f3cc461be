"""Argument parser of all commands, and output of those that run a training."""

import argparse
import sys
from typing import NoReturn

from mindswap.errors import MindswapError
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


class Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError for invalid arguments."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; argparse would print the usage and exit."""
        raise UsageError(f"{self.format_usage()}{self.prog}", message)


def write_out(data: bytes) -> None:
    """Write output of a training to stdout; the training continues if that fails (`mindswap run ... | head`)."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except (OSError, OutputError):
        drop_output()


def say(text: str) -> None:
    """Print lines of mindswap between those of a training, each with a prefix."""
    write_out("".join(f"mindswap: {printable(line)}\n" for line in text.splitlines()).encode())
