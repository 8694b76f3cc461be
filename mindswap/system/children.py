"""Child processes: what they import, and that they end with this one, however it ends."""

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

from mindswap.errors import LaunchError
from mindswap.system.environment import package_environment
from mindswap.system.scratch import remove_abandoned
from mindswap.system.signals import LIFELINE, held_signals

PACKAGE_FOLDER = Path(__file__).parents[2]
# `sys` is built in: nothing is imported from the working folder before the paths are set, no `runpy.py` either.
_RUN_MODULE = (
    "import sys; sys.path[:] = {paths!r}; import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_START_FOLDER = ""  # absolute; "" where it is gone
with contextlib.suppress(OSError):
    _START_FOLDER = str(Path.cwd())


def import_paths() -> list[str]:
    """Where this process finds modules, as absolute paths, without the working folder.

    A child with these imports the same MindFormers, and this very package, whatever folder it runs in.
    """
    paths = [os.path.join(_START_FOLDER, path) for path in sys.path if path]  # noqa: PTH118 they stay as they are
    return paths if str(PACKAGE_FOLDER) in paths else [*paths, str(PACKAGE_FOLDER)]


def module_command(module: str, *words: str, first: Sequence[Path] = ()) -> list[str]:
    """The command that runs a module, which imports what this process would; `first` is searched before."""
    paths = [*map(str, first), *import_paths()]
    return [sys.executable, "-c", _RUN_MODULE.format(paths=paths), module, *words]


def with_package(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which a Python of any command finds this package, after the paths that they name."""
    if str(PACKAGE_FOLDER) in (*site.getsitepackages(), site.getusersitepackages()):
        return {**environ}
    paths = [*filter(None, [environ.get("PYTHONPATH")]), str(PACKAGE_FOLDER)]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


# Workers that end with the process that watches over them, by the kernel's own hand.
#
# A process that watches can be killed itself, and a thread of the worker may wait for a compiler that holds the
# interpreter. So the watching process holds a pipe: when its end closes, however that process ended, the kernel sends
# every worker SIGKILL (F_SETSIG of fcntl(2)). It does not matter who started the worker, and who of those in between is
# still alive.

_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def lifeline() -> Iterator[str]:
    """While this lasts, processes that hold it live; to be entered after every fork that outlives this process.

    Gives its name, for `LIFELINE` in the environment of the workers.
    """
    read_end, write_end = os.pipe()
    try:
        yield f"/proc/{os.getpid()}/fd/{read_end}"
    finally:
        os.close(write_end)
        os.close(read_end)


def hold_lifeline(environment: Mapping[str, str], number: int = signal.SIGKILL) -> None:
    """Send this process a signal as soon as the one that holds the pipe ends; nothing if no pipe is named.

    Raises:
        LaunchError: it has ended already.
    """
    name = environment.get(LIFELINE)
    if not name:
        return
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return  # of another user: what is left of it ends with the next start
    except OSError as error:
        raise LaunchError(f"the run that this worker belongs to has ended ({LIFELINE}={name})") from error
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, number)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):  # nothing to read: the other end is held
        os.read(descriptor, 1)
        raise LaunchError(f"the run that this worker belongs to has ended ({LIFELINE}={name})")


def tie_to_parent() -> Callable[[], None]:
    """Function that a child calls before it starts its program, as msrun: it ends with the thread that started it."""
    library, parent = ctypes.CDLL(None), os.getpid()

    def tie() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


# Processes that end with this one, however it ends.

STOP_GRACE_S, STOP_LIMIT_S = 5.0, 20.0


@contextlib.contextmanager
def started(
    words: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
) -> Iterator["subprocess.Popen[Any]"]:
    """Start a process, in a session of its own; when this is left, it has ended with what it started.

    Ctrl-C in a terminal is for this process, which then ends the other one. A program of this package holds the
    lifeline, so it ends even if this process is killed.

    Args:
        words: its command.
        environment: its variables; default is `package_environment`.
        options: of `Popen`.

    Raises:
        OSError: it cannot be started.
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
    """End a process that leads a session, with all of that; scratch folders of one that had to be killed go, too."""
    if process.poll() is None:
        _send_group(process.pid, signal.SIGTERM)
        limit_s = time.monotonic() + STOP_GRACE_S
        while (is_running := not _has_ended(process.pid)) and time.monotonic() < limit_s:
            time.sleep(0.02)
        _send_group(process.pid, signal.SIGKILL)  # not reaped yet: nobody else has this number
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a device or a file system
            process.wait(STOP_LIMIT_S)
        if is_running:
            remove_abandoned()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):  # what was left in the buffer
                stream.close()


def _send_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended; it is not reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody reaped it
        return True


# Questions to programs of the package: a process of its own takes the memory of MindSpore with it when it ends, and a
# compiler that crashes does not end the one that asks.


@dataclass(frozen=True)
class Answer:
    """Answer of a command."""

    exit_code: int  # 0 and 1 come with data, if the command has any
    data: Any  # its JSON; None where it printed none
    error: str  # its error, or what else it wrote to the standard error; last lines

    def require(self, what: str) -> Any:
        """The data. Raises LaunchError: there is none."""
        if self.data is None:
            raise LaunchError(f"{what}: {self.error or f'exit code {self.exit_code}'}")
        return self.data


def ask(
    words: Sequence[str],
    limit_s: float | None = None,
    module: str = "mindswap",
    variables: Mapping[str, str] = {},
) -> Answer:
    """Run `mindswap WORDS`, or another module, whose answer is JSON. `variables` are added to its environment.

    Raises:
        LaunchError: it cannot be started, or took longer than `limit_s` and was ended.
    """
    environment = {**package_environment(), **variables, "TQDM_DISABLE": "1"}
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
        data = None  # it is on the standard error, too
    said = error_text.rpartition("mindswap: error: ")[2]  # after the progress; all, where there is no error
    return Answer(process.returncode, data, "\n".join(said.strip().splitlines()[-12:]))
