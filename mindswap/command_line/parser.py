"""Argument parser of all commands, and output of those that run a training."""

import argparse
import sys
from typing import NoReturn

from mindswap.errors import MindswapError
from mindswap.system.streams import OutputError, drop_output, printable


class UsageError(MindswapError):
    """The words of a command line do not fit.

    Args:
        usage: how the command is called.
        message: what is wrong.
    """

    def __init__(self, usage: str, message: str):
        self.usage = usage
        super().__init__(message)


class Parser(argparse.ArgumentParser):
    """Wrong options are an error like any other."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError where argparse would print the usage and end the process."""
        raise UsageError(f"{self.format_usage()}{self.prog}", message)


def write_out(data: bytes) -> None:
    """Write to the standard output of a training, which goes on if that fails (`mindswap run ... | head`)."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except (OSError, OutputError):
        drop_output()


def say(text: str) -> None:
    """Lines of mindswap beside those of a training."""
    write_out("".join(f"mindswap: {printable(line)}\n" for line in text.splitlines()).encode())
