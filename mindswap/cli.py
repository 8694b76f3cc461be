"""The command line: this module parses and dispatches, `mindswap.commands` does the work."""

import argparse
import ast
import importlib
import logging
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from mindswap.document.model_folder import use_folder
from mindswap.errors import MindswapError, PolicyError
from mindswap.version import __version__

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
    "prove",
    "prepare-data",
    "trace",
    "doctor",
)

EXIT_OK, EXIT_BAD_INPUT, EXIT_BUG, EXIT_INTERRUPTED = 0, 1, 3, 130


def build_parser(asked: str | None) -> argparse.ArgumentParser:
    """The parser of one command line.

    Args:
        asked: only this command is imported and has its options: some take as long to import as others to run.
            None lists all of them.
    """
    parser = _Parser(
        prog="mindswap", description="Fine-grained activation SWAP and recomputation for MindSpore and MindFormers."
    )
    parser.add_argument("--version", action="version", version=f"mindswap {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if asked is None:
        for name in COMMANDS:
            subparsers.add_parser(name, help=_read_help(name))
        return parser
    module = importlib.import_module(f"mindswap.commands.{_module_name(asked)}")
    command = subparsers.add_parser(
        asked,
        description=module.HELP,
        epilog="examples:\n" + module.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(command)
    if any(action.dest == "config" for action in command._actions):
        command.add_argument(
            "--pretrained_model_dir", metavar="DIR", help="folder with the model's config.json, in place of CONFIG's"
        )
    command.set_defaults(run=module.run)
    return parser


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the options; what was typed may have control characters."""

    def error(self, message: str) -> NoReturn:
        super().error(_escape(message))


def _escape(text: str) -> str:
    from mindswap.report.problems import escape

    return "\n".join(map(escape, text.split("\n")))


def _module_name(command: str) -> str:
    return command.replace("-", "_")


def _read_help(command: str) -> str:
    """`HELP` of the module of a command, from its text."""
    path = Path(__file__).parent / "commands" / f"{_module_name(command)}.py"
    statements = ast.parse(path.read_text("utf-8")).body
    return next(
        ast.literal_eval(statement.value)
        for statement in statements
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "HELP"
    )


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
        args = build_parser(argv[0] if argv[:1] and argv[0] in COMMANDS else None).parse_args(argv)
        with use_folder(getattr(args, "pretrained_model_dir", None)):
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
        print(_escape(f"mindswap: error: {error}"), file=sys.stderr)
        return EXIT_BAD_INPUT
    except Exception as error:  # noqa: BLE001 the one place where a bug becomes a message
        return _report_bug(error)


def _report_bug(error: Exception) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="mindswap-", suffix=".log", delete=False) as log:
        log.write(f"mindswap {__version__}, Python {sys.version}\narguments: {sys.argv}\n\n")
        traceback.print_exception(error, file=log)
    message = f"mindswap: a bug: {type(error).__name__}: {error}\n    please report it with {log.name}"
    print(_escape(message), file=sys.stderr)
    return EXIT_BUG
