"""The state of a run on disk: written whole or not at all, and read with care.

The file carries a key (configuration, versions, device) and a digest of its content: one of another
configuration, a damaged or a foreign one is passed over with a message, never trusted.
"""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from mindswap.errors import LaunchError, MindswapError
from mindswap.files import replace_file
from mindswap.graph.cache import CodecError, from_plain, to_plain
from mindswap.training.adaptive.model import CLASSES, State

FORMAT = 3  # one more where a class of the state is renamed or loses a field
MAX_BYTES = 64 << 20


class StateProblem(MindswapError):
    """The file cannot be used; the text says why."""


def state_path(run_dir: Path) -> Path:
    """Where the state of a run directory is."""
    return run_dir / "adaptive" / "state.json"


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Only one process works on a run directory; the lock goes with the process, however it ends.

    A child that was forked meanwhile holds it too if this process is killed, and not after a clean end.

    Raises:
        LaunchError: another one does, or it cannot be written.
    """
    path = _lock_path(run_dir)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise LaunchError(f"{path.parent}: cannot be written: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LaunchError(
                f"{run_dir}: an adaptive run is already running here\n"
                f"    fix:     another --log_dir; mindswap status {run_dir}"
            ) from error
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing would leave it to the copies of forked children


def is_locked(run_dir: Path) -> bool:
    """Whether a process works on a run directory."""
    try:
        file = _lock_path(run_dir).open()
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _lock_path(run_dir: Path) -> Path:
    return state_path(run_dir).with_name("lock")


class StateFile:
    """The state of one run directory."""

    def __init__(self, run_dir: Path) -> None:
        self.path = state_path(run_dir)

    def load(self, key: str | None = None) -> State | None:
        """The saved state; None if there is no file.

        It must have been saved under this key; None accepts any.

        Raises:
            StateProblem: it is damaged, foreign, or of another configuration.
        """
        try:
            with self.path.open("rb") as file:
                data = json.loads(file.read(MAX_BYTES))
            body = data["state"]
            if data["format"] != FORMAT:
                raise StateProblem(f"is of format {data['format']!r}, not {FORMAT}")
            if data["digest"] != _digest(body):
                raise StateProblem("is damaged: its digest does not match")
            if key is not None and data["key"] != key:
                raise StateProblem("is of another configuration, version or device")
            state = from_plain(body, CLASSES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StateProblem(f"cannot be read: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, RecursionError, CodecError) as error:
            raise StateProblem(f"is no state of an adaptive run: {type(error).__name__}") from None
        if not isinstance(state, State):
            raise StateProblem("is no state of an adaptive run")
        return state

    def save(self, state: State, key: str) -> None:
        """Write the state so that a reader, or a run that goes on after a kill, sees the old or the new one.

        Raises:
            OSError: it cannot be written; what was there stays.
        """
        body = to_plain(state)
        content = json.dumps({"format": FORMAT, "key": key, "digest": _digest(body), "state": body}, indent=1)
        replace_file(self.path, content.encode(), is_durable=True)

    def put_aside(self) -> Path | None:
        """Rename a file that cannot be used, so that nothing of it is lost."""
        target = self.path.with_name("state.json.ignored")
        try:
            self.path.replace(target)
        except OSError:
            return None
        return target


def _digest(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
