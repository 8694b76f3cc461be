"""The command line: this module parses and dispatches, `mindswap.commands` does the work."""

import argparse
import importlib
import logging
import os
import sys
import tempfile
import traceback

from mindswap import __version__
from mindswap.errors import MindswapError, PolicyError

__all__ = ["main"]

# Each is a module of `mindswap.commands` with HELP, EXAMPLES, add_arguments(parser) and
# run(args) -> exit code.
COMMANDS = (
    "check",
    "convert",
    "explain",
    "run",
    "status",
    "verify",
    "inspect",
    "simulate",
    "plan",
    "compare",
    "calibrate",
    "prepare-data",
)

EXIT_OK, EXIT_BAD_INPUT, EXIT_BUG, EXIT_INTERRUPTED = 0, 1, 3, 130


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command."""
    parser = argparse.ArgumentParser(
        prog="mindswap", description="Fine-grained activation SWAP and recomputation for MindSpore and MindFormers."
    )
    parser.add_argument("--version", action="version", version=f"mindswap {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"mindswap.commands.{name.replace('-', '_')}")
        command = subparsers.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog="examples:\n" + module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command line.

    Returns:
        0 good, 1 the input is wrong, 3 a bug of mindswap (with a log file), 130 interrupted. Wrong
        options exit with 1 as well.
    """
    logging.basicConfig(format="mindswap: %(levelname)s: %(message)s", level=logging.WARNING)
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["run"] and argv[1:2] not in (["-h"], ["--help"]):
        argv.insert(1, "--")  # every option behind `run` belongs to the training script
    try:
        args = build_parser().parse_args(argv)
        return args.run(args)
    except SystemExit as stop:  # argparse leaves with 2 on wrong options, a training script as it likes
        if stop.code in (None, 0):
            return EXIT_OK
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) and stop.code != 2 else EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `mindswap check ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except PolicyError as error:
        from mindswap.report.problems import format_problems

        print(format_problems(error.problems), file=sys.stderr)
        return EXIT_BAD_INPUT
    except MindswapError as error:
        print(f"mindswap: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except Exception as error:  # noqa: BLE001 the one place where a bug becomes a message
        return _report_bug(error)


def _report_bug(error: Exception) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="mindswap-", suffix=".log", delete=False) as log:
        log.write(f"mindswap {__version__}, Python {sys.version}\narguments: {sys.argv}\n\n")
        traceback.print_exception(error, file=log)
    print(f"mindswap: a bug: {type(error).__name__}: {error}\n    please report it with {log.name}", file=sys.stderr)
    return EXIT_BUG
