"""All processes that a command starts, also those that its own children leave behind."""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from mindswap.environment import package_environment
from mindswap.errors import LaunchError, StoppedBySignal

_PR_SET_CHILD_SUBREAPER = 36
PACKAGE_FOLDER = Path(__file__).parents[3]
# `python -P -m MODULE` for Python 3.10, too: a folder of that name where the command runs is not the package.
_RUN_MODULE = (
    "import runpy, sys; sys.path[:] = filter(None, sys.path); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *words: str) -> list[str]:
    """The command that runs an installed module."""
    return [sys.executable, "-c", _RUN_MODULE, module, *words]


def child_environment(*first: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a child that finds this very package, whatever folder it runs in; `first` stand before it.

    `environ`: what else it gets; default is `package_environment`.
    """
    variables = package_environment() if environ is None else environ
    paths = [*map(str, first), str(PACKAGE_FOLDER), *filter(None, [variables.get("PYTHONPATH")])]
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}


def adopt_orphans() -> None:
    """From now on a process whose parent ends becomes a child of this one, not of init (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _looked_at(processes: Iterable[psutil.Process], what: str) -> Iterator[tuple[int, Any]]:
    """Number and `what` of each; not of one that has ended meanwhile, or is of another user."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield process.pid, getattr(process, what)()


def descendants() -> list[int]:
    """Children, their children and so on, parents first; those that have ended are left out."""
    found = _looked_at(psutil.Process().children(recursive=True), "status")
    return [pid for pid, state in found if state != psutil.STATUS_ZOMBIE]


def stop_descendants(grace_s: float = 5.0) -> int:
    """End all descendants, as `stop_processes` does."""
    return stop_processes(descendants, grace_s)


def stop_processes(find: Callable[[], list[int]], grace_s: float = 5.0, limit_s: float = 20.0) -> int:
    """End processes: ask, and after `grace_s` force. Waits until they are gone; gives how many there were.

    What waits for a device or a file system, no signal ends: it gives up `limit_s` after that.
    """
    first = find()
    for pid in first:  # parents first, so that msrun starts nothing new
        _send(pid, signal.SIGTERM)
    begin_s = time.monotonic()
    while (alive := find()) and time.monotonic() - begin_s < grace_s + limit_s:
        if time.monotonic() - begin_s > grace_s:
            for pid in alive:
                _send(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.05)
    _reap()
    return len(first)


def marked_processes(name: str, value: str) -> list[int]:
    """Processes that were started with this environment variable, whoever their parent is now."""
    return [pid for pid, own in _looked_at(psutil.process_iter(), "environ") if own.get(name) == value]


def worker_ranks() -> dict[int, int]:
    """Rank by process of the workers of msrun below this process."""
    found = _looked_at(psutil.Process().children(recursive=True), "environ")
    ranks = {pid: own.get("RANK_ID", "") for pid, own in found if own.get("MS_ROLE") == "MS_WORKER"}
    return {pid: int(rank) for pid, rank in ranks.items() if rank.isdigit()}


def raise_process_limit() -> None:
    """Every worker starts many threads: take what the system allows (`ulimit -u unlimited` upstream)."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# Workers that end with the process that watches over them, by the kernel's own hand.
#
# A process that watches can be killed itself, and a thread of the worker may wait for a compiler that holds the
# interpreter. So the watching process holds a pipe: when its end closes, however that process ended, the kernel sends
# every worker SIGKILL (F_SETSIG of fcntl(2)). It does not matter who started the worker, and who of those in between is
# still alive.

# Names the pipe in the environment of the workers.
VARIABLE = "MINDSWAP_LIFELINE"
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def lifeline() -> Iterator[str]:
    """While this lasts, processes that hold it live; to be entered after every fork that outlives this process.

    Gives its name, for `VARIABLE` in the environment of the workers.
    """
    read_end, write_end = os.pipe()
    try:
        yield f"/proc/{os.getpid()}/fd/{read_end}"
    finally:
        os.close(write_end)
        os.close(read_end)


def hold_lifeline(environment: Mapping[str, str]) -> None:
    """From now on this process ends at once when the one that holds the pipe does; nothing if none is named.

    Raises:
        LaunchError: it has ended already.
    """
    name = environment.get(VARIABLE)
    if not name:
        return
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return  # of another user: what is left of it ends with the next start
    except OSError as error:
        raise LaunchError(f"the run that this worker belongs to has ended ({VARIABLE}={name})") from error
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):  # nothing to read: the other end is held
        os.read(descriptor, 1)
        raise LaunchError(f"the run that this worker belongs to has ended ({VARIABLE}={name})")


def tie_to_parent() -> Callable[[], None]:
    """Function that a child calls before it starts its program, as msrun: it ends with the thread that started it."""
    library, parent = ctypes.CDLL(None), os.getpid()

    def tie() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


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
    is_tied: bool = False,
) -> Answer:
    """Run `mindswap WORDS`, or another module, whose answer is JSON.

    `variables` are added to its environment. `is_tied`: it ends with this process, which must have no threads then.

    Raises:
        LaunchError: it cannot be started, or took longer than `limit_s` and was ended.
    """
    environ = child_environment() | {**variables, "TQDM_DISABLE": "1"}
    try:
        # A session of its own: Ctrl-C is for this process, which then ends the child.
        done = subprocess.run(
            [sys.executable, "-m", module, *words], env=environ, check=False, stdin=subprocess.DEVNULL,
            capture_output=True, encoding="utf-8", errors="replace", start_new_session=True, timeout=limit_s,
            preexec_fn=tie_to_parent() if is_tied else None,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LaunchError(f"mindswap {words[0]} took longer than {limit_s:g} s") from None
    except OSError as error:
        raise LaunchError(f"{module} cannot be started: {error.strerror or error}") from error
    try:
        data = json.loads(done.stdout)
    except ValueError:
        data = None
    if isinstance(data, dict) and data.get("error") is not None:
        data = None  # it is on the standard error, too
    said = done.stderr.rpartition("mindswap: error: ")[2]  # behind how far it was; all, where there is no error
    return Answer(done.returncode, data, "\n".join(said.strip().splitlines()[-12:]))


# Signals that end a program, as an exception.


@contextlib.contextmanager
def signals_raise(*, only_first: bool = False) -> Iterator[None]:
    """Turn signals into an exception, except those that the caller ignores (nohup, `&` in a script).

    With `only_first` nothing interrupts what the first signal brings about.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if only_first:
            for other in before:
                signal.signal(other, signal.SIG_IGN)
        raise StoppedBySignal(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
