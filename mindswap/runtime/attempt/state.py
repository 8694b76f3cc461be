"""State of a run on disk, written atomically and verified on read.

The file contains a key (configuration, versions, device) and a digest of its content. A file of another configuration,
a damaged or a foreign one is ignored with a message.
"""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from mindswap.config.parse import parse_document
from mindswap.config.source import BASE_CONFIG
from mindswap.errors import LaunchError, MindswapError, system_errors_as
from mindswap.files import archive_folder, replace_file
from mindswap.graph.capture_cache import CodecError, from_plain, to_plain
from mindswap.runtime.attempt.checkpoints import Checkpoint, CheckpointFolder, link_checkpoint
from mindswap.runtime.attempt.model import CLASSES, State
from mindswap.runtime.msrun import RUN_DIR_BYTES, describe_full

FORMAT = 3  # incremented when a class of the state is renamed or loses a field
MAX_BYTES = 64 << 20


class StateError(MindswapError):
    """The file cannot be used; the message has the reason."""


def state_path(run_dir: Path) -> Path:
    """Return the path of the state file of a run directory."""
    return run_dir / "adaptive" / "state.json"


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Lock a run directory for this process; the kernel releases the lock when the process ends.

    Raises:
        LaunchError: if another process holds the lock, or the directory cannot be written.
    """
    path = _lock_path(run_dir)
    with system_errors_as(LaunchError, f"{path.parent}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LaunchError(
                f"{run_dir}: an adaptive run is already running here\n"
                f"    fix:     another --log_dir; mindswap status {run_dir}"
            ) from error
        yield


def is_locked(run_dir: Path) -> bool:
    """Return whether a process holds the lock of a run directory."""
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
    """State file of a run directory."""

    def __init__(self, run_dir: Path) -> None:
        self.path = state_path(run_dir)

    def load(self, key: str | None = None) -> State | None:
        """Load the saved state.

        Args:
            key: required key of the file; None accepts any.

        Returns:
            The state; None if there is no file.

        Raises:
            StateError: if the file is damaged, foreign, or of another configuration.
        """
        try:
            with self.path.open("rb") as file:
                data = json.loads(file.read(MAX_BYTES))
            body = data["state"]
            if data["format"] != FORMAT:
                raise StateError(f"is of format {data['format']!r}, not {FORMAT}")
            if data["digest"] != _digest(body):
                raise StateError("is damaged: its digest does not match")
            if key is not None and data["key"] != key:
                raise StateError("is of another configuration, version or device")
            state = from_plain(body, CLASSES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StateError(f"cannot be read: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, RecursionError, CodecError) as error:
            raise StateError(f"is no state of an adaptive run: {type(error).__name__}") from None
        if not isinstance(state, State):
            raise StateError("is no state of an adaptive run")
        return state

    def save(self, state: State, key: str) -> None:
        """Write the state atomically: readers see the old or the new state, also after a kill.

        Raises:
            OSError: if it cannot be written; the old file is kept.
        """
        body = to_plain(state)
        content = json.dumps({"format": FORMAT, "key": key, "digest": _digest(body), "state": body}, indent=1)
        replace_file(self.path, content.encode(), is_durable=True)

    def archive(self) -> Path | None:
        """Rename an unusable file instead of deleting it; return the new path, None if that failed."""
        target = self.path.with_name("state.json.ignored")
        try:
            self.path.replace(target)
        except OSError:
            return None
        return target


def _digest(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# The folder of one attempt: plan, configuration of the workers, links to the checkpoint.


def attempt_folder(run_dir: Path, number: int) -> Path:
    """Return the folder with files and logs of an attempt."""
    return run_dir / f"attempt_{number}"


def prepare_attempt(
    folder: Path, yaml_text: str, config_path: Path, checkpoint: Checkpoint | None, *, is_parallel: bool
) -> Path:
    """Write the input files of the workers of an attempt; an existing folder is archived.

    Args:
        folder: folder of the attempt.
        yaml_text: the planned configuration.
        config_path: the user's file from which it was planned.
        checkpoint: checkpoint to resume from; None for a fresh start.
        is_parallel: whether MindFormers treats the processes as one parallel training.

    Returns:
        Path of the configuration of the attempt: the plan, or a file based on it that names the checkpoint.

    Raises:
        LaunchError: if the folder cannot be written.
    """
    with system_errors_as(LaunchError, f"{folder}: cannot be written"):
        if folder.exists():
            archive_folder(folder)
        folder.mkdir(parents=True)
        plan = folder / "plan.yaml"
        plan.write_text(with_absolute_bases(yaml_text, config_path.parent), encoding="utf-8", newline="")
        if checkpoint is None:
            return plan.absolute()
        resume = (folder / "resume").absolute()
        resumed = {
            BASE_CONFIG: plan.name,
            "load_checkpoint": str(resume),
            "resume_training": link_checkpoint(checkpoint, resume, is_parallel=is_parallel),
            "load_ckpt_format": checkpoint.format,
        }
        config = folder / "config.yaml"
        config.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in resumed.items()), encoding="utf-8")
    return config.absolute()


def full_disks(checkpoints: CheckpointFolder, run_dir: Path) -> tuple[str, ...]:
    """Return a line for each file system with too little space for another checkpoint, or for the run directory."""
    newest = checkpoints.newest()
    size_bytes = sum(path.stat().st_size for path in newest.files) if newest else RUN_DIR_BYTES
    by_disk = {path.stat().st_dev: path for path in reversed(checkpoints.folders()) if path.exists()}
    lines = [describe_full(path, size_bytes, "a checkpoint") for path in by_disk.values()]
    return tuple(line for line in (*lines, describe_full(run_dir, RUN_DIR_BYTES, "a run")) if line)


def with_absolute_bases(text: str, folder: Path) -> str:
    """Return the configuration with absolute paths in `base_config`."""
    root = parse_document(text, "config").span if BASE_CONFIG in text else None
    for key, value in reversed((root.entries or []) if root else []):
        if key.text == BASE_CONFIG:
            for span in reversed(value.items if value.items is not None else [value]):
                path = json.dumps(str((folder / span.text).absolute()))
                text = text[: span.start] + path + text[span.end :]
    return text
