"""Command line: parse the arguments and dispatch to the command in `mindswap.features`."""

import argparse
import importlib
import logging
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from mindswap.command_line.parser import Parser, UsageError
from mindswap.config.source import use_folder
from mindswap.errors import MindswapError, PolicyError, StoppedBySignal, system_errors_as
from mindswap.language import set_language
from mindswap.system.environment import home_is_set
from mindswap.system.scratch import forget_kept_folders, remove_kept_folders
from mindswap.system.signals import LIFELINE, signals_raise
from mindswap.system.streams import MessageFormatter, OutputError, drop_output, prepare_streams, print_data, print_text
from mindswap.version import __version__

if TYPE_CHECKING:
    from mindswap.config.problem import Problem


class CommandEntry(NamedTuple):
    """Summary of a command, for `mindswap --help`, and its module in `mindswap.features`.

    The module has `EPILOG` (examples and notes of `--help`), `add_arguments(parser)`, `run(args) -> exit code`, and
    optionally `USAGE` (the usage line).
    """

    summary: str
    module: str


COMMANDS: Mapping[str, CommandEntry] = {
    "check": CommandEntry(
        "Check the swap and recompute settings of a MindFormers YAML file; nothing is run.", "check.cli"
    ),
    "convert": CommandEntry(
        "Rewrite swap and recompute settings: MindFormers 1.9 or 2.x, counts per stage, Megatron-LM; nothing is run.",
        "convert.cli",
    ),
    "explain": CommandEntry(
        "Show what CONFIG recomputes and swaps in each layer, stage and chunk; nothing is built or run.", "explain.cli"
    ),
    "run": CommandEntry(
        "Train with the plugin on: put `mindswap run` in front of run_mindformer.py, or set MINDSWAP=1.", "run.cli"
    ),
    "status": CommandEntry(
        "Show the state of an adaptive run: restarts, budgets, predicted and measured memory and step time.",
        "adaptive.status_cli",
    ),
    "verify": CommandEntry(
        "Compile the network of CONFIG without a device and show that its swap and recompute are in the graph.",
        "verify.cli",
    ),
    "inspect": CommandEntry(
        "Show what each layer and operator of CONFIG keeps, swaps and recomputes, from the compiled graph; no device.",
        "inspect.cli",
    ),
    "simulate": CommandEntry(
        "Simulate a step of CONFIG on a device model: step time, peak memory, waits for copies; needs no device.",
        "simulate.cli",
    ),
    "dryrun": CommandEntry(
        "Run CONFIG on MindSpore's Ascend backend without a card: peak memory as MindSpore itself allocates it.",
        "dryrun.cli",
    ),
    "plan": CommandEntry(
        "Find the swap and recompute settings of CONFIG that train fastest within a memory budget; no device.",
        "plan.cli",
    ),
    "compare": CommandEntry(
        "Compare simulated step time and peak memory of several configurations and baselines; no device.", "compare.cli"
    ),
    "calibrate": CommandEntry(
        "Make a device file from a profile of a real machine (MindSpore, torch_npu, msprof): operators, copies, links.",
        "calibrate.cli",
    ),
    "prove": CommandEntry(
        "Run CONFIG for a few steps with swap off, as written and planned; compare measured with simulated figures.",
        "prove.cli",
    ),
    "example": CommandEntry("Write a small configuration and a text file for a first try on a CPU.", "example.cli"),
    "prepare-data": CommandEntry("Turn text into a MindRecord that MindFormers trains on.", "data.cli"),
    "trace": CommandEntry(
        "Run one step of CONFIG in PyNative mode on this machine, and record operators, tensors and saved tensors.",
        "trace.cli",
    ),
    "doctor": CommandEntry(
        "Check whether this machine is ready to train: versions, limits, memory, environment variables.", "doctor.cli"
    ),
}

EXIT_OK, EXIT_BAD_INPUT, EXIT_BUG, EXIT_INTERRUPTED = 0, 1, 3, 130


def build_parser(command_name: str | None) -> argparse.ArgumentParser:
    """Return the parser of one command.

    Args:
        command_name: the only command that is imported, because imports take long. None returns a parser that lists
            all commands, without their options.
    """
    parser = Parser(
        prog="mindswap", description="Fine-grained activation SWAP and recomputation for MindSpore and MindFormers."
    )
    parser.add_argument("--version", action="version", version=f"mindswap {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if command_name is None:
        for name, command in COMMANDS.items():
            subparsers.add_parser(name, help=command.summary)
        return parser
    command = COMMANDS[command_name]
    module = importlib.import_module(f"mindswap.features.{command.module}")
    command_parser = subparsers.add_parser(
        command_name,
        usage=getattr(module, "USAGE", None),
        description=command.summary,
        epilog=module.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(command_parser)
    if any(action.dest in ("config", "configs") for action in command_parser._actions):
        command_parser.add_argument(
            "--pretrained_model_dir", metavar="DIR", help="folder with the model's config.json, in place of CONFIG's"
        )
    command_parser.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command line.

    Returns:
        0 for success, 1 for invalid input or options, 3 for a bug of mindswap (with a log file), 128 + the number of a
        signal: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    """
    is_program = argv is None
    if is_program:
        prepare_streams()
    messages = logging.StreamHandler()
    messages.setFormatter(MessageFormatter("mindswap: %(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[messages], level=logging.WARNING)
    argv = _normalize_words(sys.argv[1:] if argv is None else argv)
    command = argv[0] if argv[0] in COMMANDS else None
    set_language(os.environ)
    if sys.warnoptions and command != "run":  # with PYTHONWARNINGS=error the imports of MindFormers fail
        warnings.simplefilter("ignore")
    try:
        _require_usable_python()
        code = _run(command, argv)
        for folder in forget_kept_folders():
            print_text(f"mindswap: kept {folder}: the log of an error", is_message=True)
        sys.stdout.flush()
        return code
    except (KeyboardInterrupt, StoppedBySignal) as stop:
        remove_kept_folders()
        print_text("mindswap: interrupted", is_message=True)
        code = stop.exit_code if isinstance(stop, StoppedBySignal) else EXIT_INTERRUPTED
        if is_program:
            _exit_at_once(code)
        return code
    except BrokenPipeError:  # `mindswap check ... | head`
        drop_output()
        return EXIT_OK
    except Exception as error:  # noqa: BLE001 the one place where a bug becomes a message
        wants_json = command != "run" and "--json" in argv[1:]  # options after `run` are those of the training
        return _refuse(error, command or "", wants_json)


def _normalize_words(words: Sequence[str]) -> list[str]:
    """Return the arguments in the form that the parser expects: `help plan` becomes `plan --help`."""
    argv = list(words)
    if argv[:1] in ([], ["help"]):
        return [*argv[1:2], "--help"]
    if argv[0] == "run" and argv[1:2] not in (["-h"], ["--help"]):
        argv.insert(1, "--")  # every option after `run` belongs to the training script
    return argv


def _refuse(error: Exception, command: str, wants_json: bool) -> int:
    """Print an error, for `--json` also as JSON; return the exit code."""
    code, shown = EXIT_BAD_INPUT, f"mindswap: error: {error}"
    problems: Sequence[Problem] = ()
    if isinstance(error, PolicyError):
        from mindswap.report.problems import format_problems

        problems = error.problems
        shown = format_problems(error.problems)
    elif isinstance(error, UsageError):
        shown = f"{error.usage}: error: {error}"
    elif isinstance(error, OSError | MemoryError):
        error = _refused_by_system(error)
        shown = f"mindswap: error: {error}"
    elif not isinstance(error, MindswapError):
        code = EXIT_BUG
        shown = f"mindswap: a bug: {type(error).__name__}: {error}\n    please report it with {_write_trace(error)}"
    remove_kept_folders(shown)
    print_text(shown, is_message=True)
    if isinstance(error, OutputError):
        drop_output()
    elif wants_json:
        from mindswap.report.problems import answer_text, problems_to_data

        try:
            print_data(answer_text(command, problems_to_data(problems), False, str(error)))
        except (OSError, OutputError):  # the standard error has it
            drop_output()
    return code


def _run(command: str | None, argv: list[str]) -> int:
    """Parse the arguments and run the command; return its exit code."""
    with ExitStack() as stack:
        if command != "run":  # a training handles signals as its script does, and keeps the user's variables
            stack.enter_context(home_is_set())
            stack.enter_context(signals_raise())
        try:
            _end_with_parent(command)
            args = build_parser(command).parse_args(argv)
            with use_folder(getattr(args, "pretrained_model_dir", None)):
                code: int = args.run(args)
                return code
        except StoppedBySignal:
            raise
        except SystemExit as stop:  # argparse exits with 0 after help, a training script with any code
            if stop.code in (None, 0):
                return EXIT_OK
            if isinstance(stop.code, str):
                print_text(stop.code, is_message=True)
            return stop.code if isinstance(stop.code, int) else EXIT_BAD_INPUT


def _end_with_parent(command: str | None) -> None:
    """End this process when the mindswap process that started it ends, even if that is killed."""
    if LIFELINE in os.environ and command != "run":  # `run` keeps it open for its training
        from mindswap.system.children import hold_lifeline

        hold_lifeline(os.environ, signal.SIGTERM)


def _exit_at_once(code: int) -> NoReturn:
    """End this process without finalizers: MindSpore crashes in them if its import or a compile was interrupted."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _require_usable_python() -> None:
    """Raise MindswapError if the working directory is unusable, because then no command works."""
    with system_errors_as(MindswapError, "the working directory cannot be used"):
        os.getcwd()  # noqa: PTH109 raises if it was deleted


def _refused_by_system(error: OSError | MemoryError) -> MindswapError:
    """Convert an error of the operating system: no space left, a deleted folder, no memory."""
    if isinstance(error, MemoryError):
        return MindswapError(f"there is not enough memory\n    details: {_write_trace(error)}")
    place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return MindswapError(f"{place}{error.strerror or error}\n    details: {_write_trace(error)}")


def _write_trace(error: BaseException) -> str:
    """Write the traceback of an error to a log file; return its name."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="mindswap-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as log:
            log.write(f"mindswap {__version__}, Python {sys.version}\narguments: {sys.argv}\n\n")
            traceback.print_exception(error, file=log)
    except OSError as refused:
        return f"no log: {refused.strerror or refused}"
    return log.name
