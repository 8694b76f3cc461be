"""Create and remove scratch folders, however the command ends.

Each folder has a marker file, which its process locks as long as it runs. So any process of this host can detect
folders whose process was killed. The marker contains the path, the inode, and the host with its boot id: copied, moved
or renamed folders are not removed, nor those of other hosts, as locks on shared disks may not be visible to them. In
folders of other processes only files that MindSpore, MindFormers, CANN and this package write are deleted.
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
# Content of the marker: this line with `_mark`, and a second one if an error message names the folder.
MARK, KEPT = "scratch folder of mindswap, 5e0b6c1d-3f0a-4f4e-9d6a-0c7b8a52e4f1", b"kept for the log of an error\n"
# Names of files in scratch folders: of this package, MindSpore, MindFormers and CANN, which write where they run.
_OWN_FILES = re.compile(
    rf"{MARKER}|log|folder|cann|(compile|info|error|worker_\d+|scheduler|msrun)\.log|.*\.(ir|dot|dat|yaml|ckpt)"
    r"|.*\.(o|so|cce)|rank_table.*"
    r"|(task|memory_block|execute_order|comm_execute_order)\.csv|.*\.mindrecord(\.db)?|.*\.json(\.gz)?|\..*\.tmp"
)
# Boot id of the kernel, unique for each host and boot.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KEPT_S = 7 * 24 * 3600


class _Folders:
    """Scratch folders of this process."""

    def __init__(self) -> None:
        self.locks: dict[Path, int] = {}  # folder in use -> descriptor of its locked marker
        self.kept: list[Path] = []  # folders kept after an error


_folders = _Folders()


@contextmanager
def scratch_folder(
    purpose: str, kept_on: tuple[type[BaseException], ...] = (), parent: Path | None = None
) -> Iterator[Path]:
    """Create a scratch folder, and remove it on exit.

    Args:
        purpose: a word for its name.
        kept_on: exceptions after which it is kept, because their message names a log in it.
        parent: parent folder; None for the temporary folder.
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
    """Provide a path of a folder without separators (blanks, colons, commas): its own, or a temporary link.

    Lists of paths, options of MindSpore and shell commands cannot escape separators.

    Args:
        folder: an existing folder.
        also: additional allowed characters.

    Raises:
        DataError: if a link is needed but cannot be created.
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
    """Return a folder for links."""
    for place in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        if _is_plain(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    raise DataError(
        f"{tempfile.gettempdir()}: blanks, colons, commas and the like are separators of MindSpore, and no other "
        "temporary folder can be written\n    fix:     export TMPDIR=a folder with a plain name"
    )


def forget_kept_folders() -> list[Path]:
    """Return the folders kept after errors, and leave their removal to `remove_abandoned`."""
    kept, _folders.kept = _folders.kept, []
    return kept


def remove_kept_folders(error_text: str = "") -> None:
    """Remove the folders kept after errors, except those named in a text."""
    with held_signals():
        for folder in list(_folders.kept):
            if str(folder) not in error_text:
                shutil.rmtree(folder, ignore_errors=True)
            _folders.kept.remove(folder)


def remove_abandoned() -> None:
    """Remove scratch folders of killed processes of this user, and those kept after errors for over a week."""
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
    """Remove files that belong to this user and have a listed name, then empty folders."""
    for _, folders, files, descriptor in os.fwalk(top, topdown=False, follow_symlinks=False):
        for name in files:
            if _OWN_FILES.fullmatch(name) and name != MARKER:
                _remove_owned(name, descriptor, os.unlink)
        for name in folders:  # a link to a folder is among them
            if stat.S_ISLNK(os.lstat(name, dir_fd=descriptor).st_mode):
                if _OWN_FILES.fullmatch(name):
                    _remove_owned(name, descriptor, os.unlink)
            else:
                _remove_owned(name, descriptor, os.rmdir)
    if [path.name for path in top.iterdir()] == [MARKER]:
        (top / MARKER).unlink()
        top.rmdir()


def _remove_owned(name: str, folder: int, remove: Callable[..., None]) -> None:
    with suppress(OSError):  # not empty, or gone meanwhile
        if os.lstat(name, dir_fd=folder).st_uid == os.geteuid():
            remove(name, dir_fd=folder)


def is_scratch(folder: Path) -> bool:
    """Return whether `scratch_folder` created this folder for this user on this host since its last boot.

    Raises:
        OSError: if it cannot be read.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    marker = (folder / MARKER).lstat()
    is_ours = stat.S_ISREG(marker.st_mode) and marker.st_uid == os.geteuid()
    return is_ours and (folder / MARKER).read_bytes().startswith(_mark(folder))


def _mark(folder: Path) -> bytes:
    """Return the first line of the marker of a folder."""
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
