"""Scratch folders: the one place that makes and removes them, whatever ends the command.

Each has a marker file. Its maker holds a lock on that as long as it lives, so that any process of this host can tell a
folder in use from one whose maker was killed. The marker names its folder, the inode, and the host with the id of its
boot: a copy, or a folder that somebody moved or renamed for own use, is none of ours, and a lock on a shared disk need
not be seen from other hosts. Of what another process left, only files go that MindSpore, MindFormers, CANN and this
package write.
"""

import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mindswap.errors import DataError
from mindswap.system.signals import held_signals

PREFIX, MARKER = "mindswap-", "mindswap-scratch"
# The content of the marker: this line with `_mark`, and a second one if an error names it.
MARK, KEPT = "scratch folder of mindswap, 5e0b6c1d-3f0a-4f4e-9d6a-0c7b8a52e4f1", b"kept for the log of an error\n"
# Names of files in scratch folders: of this package, MindSpore, MindFormers and CANN, which write where they run.
_OWN_FILES = re.compile(
    rf"{MARKER}|log|folder|cann|(compile|info|error|worker_\d+|scheduler|msrun)\.log|.*\.(ir|dot|dat|yaml|ckpt)"
    r"|.*\.(o|so|cce)|rank_table.*"
    r"|(task|memory_block|execute_order|comm_execute_order)\.csv|.*\.mindrecord(\.db)?|.*\.json(\.gz)?|\..*\.tmp"
)
# Of the kernel: other hosts and other starts have others.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KEPT_S = 7 * 24 * 3600


class _Folders:
    """Folders of this process."""

    def __init__(self) -> None:
        self.locks: dict[Path, int] = {}  # descriptor of the locked marker, of folders in use
        self.kept: list[Path] = []  # those that an error left


_folders = _Folders()


@contextmanager
def scratch_folder(
    purpose: str, kept_on: tuple[type[BaseException], ...] = (), parent: Path | None = None
) -> Iterator[Path]:
    """A new folder in the temporary one, removed at the end.

    Args:
        purpose: a word for its name.
        kept_on: errors after which it stays, as their text names a log in it.
        parent: folder in place of the temporary one.
    """
    folder: Path | None = None
    try:
        with held_signals():
            folder = _make(purpose, parent)
        yield folder
    except kept_on:
        if folder is not None:
            _keep(folder)
        raise
    finally:
        with held_signals():
            if folder in _folders.locks:
                _remove(folder)


@contextmanager
def plain_name(folder: Path, also: str = "") -> Iterator[Path]:
    """A name of a folder without separators (blanks, colons, commas): its own, or that of a link, until the end.

    Lists of paths, options of MindSpore and commands of a shell have no way to escape them.

    Args:
        folder: one that is there.
        also: more characters that do no harm.

    Raises:
        DataError: there is no place for a link.
    """
    if _is_plain(folder, also):
        yield folder
        return
    with scratch_folder("link", parent=_plain_parent()) as place:
        link = place / (folder.name if _is_plain(folder.name) else "folder")
        link.symlink_to(folder.absolute())
        yield link


def _is_plain(name: object, also: str = "") -> bool:
    return re.fullmatch(rf"[\w./+=@%{also}-]+", str(name)) is not None


def _plain_parent() -> Path:
    """A folder for links."""
    for place in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        if _is_plain(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    raise DataError(
        f"{tempfile.gettempdir()}: blanks, colons, commas and the like are separators of MindSpore, and no other "
        "temporary folder can be written\n    fix:     export TMPDIR=a folder with a plain name"
    )


def forget_kept_folders() -> list[Path]:
    """Leave the folders that errors of this process left to `remove_abandoned`; return them."""
    kept, _folders.kept = _folders.kept, []
    return kept


def remove_kept_folders(error_text: str = "") -> None:
    """Remove folders that errors of this process left, except those that a text names."""
    with held_signals():
        for folder in list(_folders.kept):
            if str(folder) not in error_text:
                shutil.rmtree(folder, ignore_errors=True)
            _folders.kept.remove(folder)


def remove_abandoned() -> None:
    """Remove scratch folders of this user whose maker was killed, and those that an error left more than a week ago."""
    temporary = Path(tempfile.gettempdir())
    places, folders = [temporary], list[Path]()
    if not _is_plain(temporary):
        with suppress(DataError):  # then there are no links
            places.append(_plain_parent())
    for place in places:
        with suppress(OSError):  # a mount that is gone
            folders += place.glob(f"{PREFIX}*")
    for folder in folders:
        with suppress(OSError):
            if is_scratch(folder) and _is_abandoned(folder):
                _remove_own_files(folder)


def _remove_own_files(top: Path) -> None:
    """Remove the files of this user and of the listed names, and the folders that are empty then."""
    for _, folders, files, descriptor in os.fwalk(top, topdown=False, follow_symlinks=False):
        for name in files:
            if _OWN_FILES.fullmatch(name) and name != MARKER:
                _remove_own(name, descriptor, os.unlink)
        for name in folders:  # a link to a folder is among them
            if stat.S_ISLNK(os.lstat(name, dir_fd=descriptor).st_mode):
                if _OWN_FILES.fullmatch(name):
                    _remove_own(name, descriptor, os.unlink)
            else:
                _remove_own(name, descriptor, os.rmdir)
    if [path.name for path in top.iterdir()] == [MARKER]:
        (top / MARKER).unlink()
        top.rmdir()


def _remove_own(name: str, folder: int, remove: Callable[..., None]) -> None:
    with suppress(OSError):  # not empty, or gone meanwhile
        if os.lstat(name, dir_fd=folder).st_uid == os.geteuid():
            remove(name, dir_fd=folder)


def is_scratch(folder: Path) -> bool:
    """Return whether `scratch_folder` made this folder, for this user, on this host since it was started.

    Raises:
        OSError: it cannot be read, or is gone.
    """
    place = folder.lstat()
    if not stat.S_ISDIR(place.st_mode) or place.st_uid != os.geteuid():
        return False
    marker = (folder / MARKER).lstat()
    is_own = stat.S_ISREG(marker.st_mode) and marker.st_uid == os.geteuid()
    return is_own and (folder / MARKER).read_bytes().startswith(_mark(folder))


def _mark(folder: Path) -> bytes:
    """The first line of the marker of a folder."""
    boot_id = ""
    with suppress(OSError):
        boot_id = _BOOT_ID.read_text("ascii").strip()
    return f"{MARK} {folder.name} {folder.lstat().st_ino} {socket.gethostname()} {boot_id}\n".encode()


def _make(purpose: str, parent: Path | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=parent))
    try:
        descriptor = os.open(folder / MARKER, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, _mark(folder))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _folders.locks[folder] = descriptor
    return folder


def _keep(folder: Path) -> None:
    descriptor = _folders.locks.pop(folder)
    with suppress(OSError):  # no space left
        os.write(descriptor, KEPT)
    os.close(descriptor)
    _folders.kept.append(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(_folders.locks.pop(folder))


def _is_abandoned(folder: Path) -> bool:
    """Return whether nobody holds the lock of its marker, and no error of the last days names the folder."""
    descriptor = os.open(folder / MARKER, os.O_RDWR | os.O_CLOEXEC)  # NFS: an exclusive lock needs it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_old = time.time() - os.fstat(descriptor).st_mtime > KEPT_S
        mark = _mark(folder)
        return is_old or os.read(descriptor, len(mark) + 1) == mark
    finally:
        os.close(descriptor)
