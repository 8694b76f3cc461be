"""Child processes: their import paths, their lifetime (they end with this process), and JSON commands."""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap import language
from mindswap.errors import LaunchError
from mindswap.system.environment import package_environment
from mindswap.system.scratch import remove_abandoned
from mindswap.system.signals import LIFELINE, held_signals

PACKAGE_FOLDER = Path(__file__).parents[2]
# `sys` is built in, so nothing is imported from the working folder before the paths are set, not even a `runpy.py`.
_RUN_MODULE = (
    "import sys; sys.path[:] = {paths!r}; import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_START_FOLDER = ""  # absolute path of the working folder at start; "" if it was deleted
with contextlib.suppress(OSError):
    _START_FOLDER = str(Path.cwd())


def import_paths() -> list[str]:
    """Return the module search path of this process, as absolute paths without the working folder.

    A child with this path imports the same MindFormers and the same package, in any working folder.
    """
    paths = [os.path.join(_START_FOLDER, path) for path in sys.path if path]  # noqa: PTH118 they stay as they are
    return paths if str(PACKAGE_FOLDER) in paths else [*paths, str(PACKAGE_FOLDER)]


def module_command(module: str, *words: str, first: Sequence[Path] = ()) -> list[str]:
    """Return the command that runs a module with the search path of this process, after the paths in `first`."""
    paths = [*map(str, first), *import_paths()]
    return [sys.executable, "-c", _RUN_MODULE.format(paths=paths), module, *words]


def with_package(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables with this package appended to PYTHONPATH, for Python in any command."""
    if str(PACKAGE_FOLDER) in (*site.getsitepackages(), site.getusersitepackages()):
        return {**environ}
    paths = [*filter(None, [environ.get("PYTHONPATH")]), str(PACKAGE_FOLDER)]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


# Lifeline: the kernel ends the workers when the supervising process ends.
#
# The supervisor itself can be killed, and a watchdog thread in a worker can be blocked by a compiler that holds the
# GIL. Therefore the supervisor holds the write end of a pipe. When it closes, for any reason, the kernel sends SIGKILL
# to every worker (F_SETSIG of fcntl(2)), independent of the processes between supervisor and worker.

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def lifeline() -> Iterator[str]:
    """Open a lifeline: processes that hold it are killed when the context or this process ends.

    Enter it after forking any process that outlives this one.

    Yields:
        Name of the pipe, for `LIFELINE` in the environment of the workers.
    """
    read_end, write_end = os.pipe()
    try:
        yield f"/proc/{os.getpid()}/fd/{read_end}"
    finally:
        os.close(write_end)
        os.close(read_end)


def hold_lifeline(environment: Mapping[str, str], number: int = signal.SIGKILL) -> None:
    """Hold the lifeline of another process: this process gets a signal when that one ends.

    Args:
        environment: variables; nothing happens without `LIFELINE`.
        number: the signal.

    Raises:
        LaunchError: if the other process has already ended.
    """
    name = environment.get(LIFELINE)
    if not name:
        return
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return  # of another user; leftovers are stopped by the next start
    except OSError as error:
        raise LaunchError(f"the run that this worker belongs to has ended ({LIFELINE}={name})") from error
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, number)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):  # nothing to read: the other end is held
        os.read(descriptor, 1)
        raise LaunchError(f"the run that this worker belongs to has ended ({LIFELINE}={name})")


def tie_to_parent() -> Callable[[], None]:
    """Return a `preexec_fn` for children that cannot hold a lifeline (msrun): they end with the starting thread."""
    library, parent = ctypes.CDLL(None), os.getpid()

    def tie() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


# Processes that end with this one.

STOP_GRACE_S, STOP_LIMIT_S = 5.0, 20.0


@contextlib.contextmanager
def started(
    words: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
) -> Iterator["subprocess.Popen[Any]"]:
    """Start a process in a new session, and end it with all its children when the context is left.

    Ctrl-C in a terminal reaches this process only, which then ends the other one. Programs of this package hold the
    lifeline, so they end even if this process is killed.

    Args:
        words: the command.
        environment: its variables; None for `package_environment`.
        options: options of `Popen`.

    Yields:
        The process.

    Raises:
        OSError: if it cannot be started.
    """
    process: subprocess.Popen[Any] | None = None
    with lifeline() as held:
        variables = {**(package_environment() if environment is None else environment), LIFELINE: held}
        try:
            with held_signals():
                process = subprocess.Popen(words, env=variables, start_new_session=True, **options)
            yield process
        finally:
            with held_signals():
                if process is not None:
                    _end_session(process)


def _end_session(process: "subprocess.Popen[Any]") -> None:
    """End a session leader and its session; if it has to be killed, also remove its scratch folders."""
    if process.poll() is None:
        _send_group(process.pid, signal.SIGTERM)
        limit_s = time.monotonic() + STOP_GRACE_S
        while (is_running := not _has_ended(process.pid)) and time.monotonic() < limit_s:
            time.sleep(0.02)
        _send_group(process.pid, signal.SIGKILL)  # not reaped yet, so the number is not reused
        with contextlib.suppress(subprocess.TimeoutExpired):  # blocked by a device or a file system
            process.wait(STOP_LIMIT_S)
        if is_running:
            remove_abandoned()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # unwritten data in the buffer
                stream.close()


def _send_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # already reaped
        return True


# Commands with JSON output. They run in a child process, because that frees the memory of MindSpore, and because a
# crash of the compiler does not end this process.


@dataclass(frozen=True)
class Answer:
    """Result of a command."""

    exit_code: int  # 0 and 1 have data, if the command has any
    data: Any  # parsed JSON; None without any
    error: str  # error message, or the last lines of the standard error

    def require(self, action: str) -> Any:
        """Return the data.

        Args:
            action: name of the action, for the error.

        Raises:
            LaunchError: if there is none.
        """
        if self.data is None:
            raise LaunchError(f"{action}: {self.error or f'exit code {self.exit_code}'}")
        return self.data


def ask(
    words: Sequence[str],
    limit_s: float | None = None,
    module: str = "mindswap",
    variables: Mapping[str, str] = {},
) -> Answer:
    """Run `mindswap WORDS`, or another module, and parse its JSON output.

    Args:
        words: arguments of the command.
        limit_s: timeout; None for no limit.
        module: the module to run.
        variables: additional environment variables.

    Returns:
        The result, also if the command failed.

    Raises:
        LaunchError: if it cannot be started, or was stopped after `limit_s`.
    """
    environment = {**package_environment(), **variables, "TQDM_DISABLE": "1", language.VARIABLE: "en"}
    environment.pop(language.INHERITED, None)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    text = {"encoding": "utf-8", "errors": "replace"}
    try:
        with started(module_command(module, *words), environment, **pipes, **text) as process:
            out, error_text = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"mindswap {words[0]} took longer than {limit_s:g} s") from None
    except OSError as error:
        raise LaunchError(f"{module} cannot be started: {error.strerror or error}") from error
    try:
        data = json.loads(out)
    except ValueError:
        data = None
    if isinstance(data, dict) and data.get("error") is not None:
        data = None  # the standard error has it, too
    message = error_text.rpartition("mindswap: error: ")[2]  # without progress messages; all of it if there is no error
    return Answer(process.returncode, data, "\n".join(message.strip().splitlines()[-12:]))
