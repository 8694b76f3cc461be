"""Disk cache of files and folders, verified on each read.

Each entry is stored with its size and a hash. An entry that does not match, belongs to another user, or is not a
regular file (a pipe, a link) is created anew. Writes are atomic, also with several concurrent processes. If the cache
exceeds its size limit, the least recently used entries are evicted.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mindswap.errors import DataError
from mindswap.files import replace_file
from mindswap.system.cache_permissions import require_private, user_name

logger = logging.getLogger(__name__)
# A captured step of a large model takes a few MiB, stand-ins 10 MiB, samples 4 bytes for each token and column.
MAX_CACHE_BYTES = 2 << 30
# A process uses a folder for hours, so folders are not evicted for this long after each use.
IN_USE_S = 24 * 3600
HEADER = b"mindswap cache 1 "
MANIFEST = ".manifest.json"
FILE_END, TEMPORARY_END = ".entry", ".tmp"
FOLDERS = ("stand_ins", "samples")  # of entries that are folders
# Names of entries and of leftovers of killed writers. Only these are deleted, as the user may have chosen a folder
# with other files for the cache.
_FILE_NAME = re.compile(rf"[0-9a-f]{{64}}{FILE_END}|\.[0-9a-f]{{64}}{FILE_END}\.[0-9a-f]{{8}}{TEMPORARY_END}")
_FOLDER_NAME = re.compile(r"[0-9a-f]{16}|[0-9a-f]{64}")
_UNFINISHED_NAME = re.compile(rf"\.([0-9a-f]{{16}}|[0-9a-f]{{64}})\.[0-9a-f]{{8}}{TEMPORARY_END}")
_OF_PYTHON = "__pycache__"  # written where a module of an entry is imported
_CHUNK_BYTES = 1 << 20


# Entries that are one file: a line with size and hash, then the content.


def read_entry(folder: Path, name: str) -> bytes | None:
    """Return the content of a file entry; None if it is missing or invalid."""
    path = folder / f"{name}{FILE_END}"
    try:
        content = _read_regular(path)
        header, _, data = content.partition(b"\n")
        if header != _header(name, data):
            logger.warning("ignored a cache entry that is not as it was written: %s", path)
            return None
        os.utime(path)  # most recently used, so evicted last
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("ignored a cache entry that cannot be read: %s (%s)", path, error.strerror or error)
        return None
    return data


def write_entry(folder: Path, name: str, data: bytes) -> None:
    """Write a file entry and replace the existing one.

    Raises:
        OSError: if it cannot be written.
    """
    path = folder / f"{name}{FILE_END}"
    _make_private(folder)
    if not _is_regular(path):
        _remove(path)
    replace_file(path, _header(name, data) + b"\n" + data)
    evict(folder, keep=path)


def _header(name: str, data: bytes) -> bytes:
    """Return the first line of a file entry. The hash includes the name, so renamed files are invalid."""
    return HEADER + f"{len(data)} {hashlib.sha256(name.encode() + HEADER + data).hexdigest()}".encode()


def _read_regular(path: Path) -> bytes:
    """Read a regular file of this user or root, without blocking on a pipe or following a link.

    Raises:
        OSError: if it is not a regular file, or belongs to another user.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 a descriptor
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")
        if status.st_uid not in (0, os.geteuid()):
            raise OSError(f"it belongs to {user_name(status.st_uid)}")
        return file.read()


# Entries that are folders: their manifest has size and hash of every file.


def cached_folder(root: Path, kind: str, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder entry, created by `make` if it is missing or invalid. It appears only when complete.

    Args:
        root: folder of the cache.
        kind: one of `FOLDERS`.
        name: name of the entry.
        make: function that writes the files into an empty folder.

    Returns:
        Path of the folder.

    Raises:
        DataError: if the folder cannot be created.
    """
    folder = root / kind / name
    if _is_good(folder):
        with contextlib.suppress(OSError):
            os.utime(folder / MANIFEST)
        return folder
    if os.path.lexists(folder):
        logger.warning("made a cache entry anew that is not as it was written: %s", folder)
    place = folder.with_name(f".{name}.{secrets.token_hex(4)}{TEMPORARY_END}")
    try:
        _make_private(root)
        place.mkdir(parents=True)
        make(place)
        (place / MANIFEST).write_text(json.dumps(_manifest(place, name)), "utf-8")
        _install(place, folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made: {error.strerror or error}") from error
    finally:
        _remove(place)
    evict(root, keep=folder)
    return folder


def _install(new_folder: Path, folder: Path) -> None:
    """Rename a folder to its final path, replacing an invalid one; a valid one of another process is kept."""
    for _ in range(10):
        try:
            if not folder.is_dir() or folder.is_symlink():
                _remove(folder)
            new_folder.rename(folder)
            return
        except OSError as error:
            # A folder that was in the way may have been moved aside by another process since.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not os.path.lexists(folder):
                raise
        if _is_good(folder):
            return
        aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}{TEMPORARY_END}")
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            folder.rename(aside)
        _remove(aside)
    raise DataError(f"{folder}: cannot be made: other processes keep changing it")


def _is_good(folder: Path) -> bool:
    """Return whether the files of a folder match its manifest exactly."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return False
        return bool(json.loads(_read_regular(folder / MANIFEST)) == _manifest(folder, folder.name))
    except (OSError, ValueError, RecursionError):
        return False


def _manifest(folder: Path, name: str) -> dict[str, object]:
    return {"name": name, "files": {path: _fingerprint(folder / path) for path in _files(folder)}}


def _files(folder: Path) -> Iterator[str]:
    """Yield relative paths of all files and links, without the manifest and `__pycache__`."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != _OF_PYTHON]
        links = [name for name in folders if Path(place, name).is_symlink()]
        yield from (os.path.relpath(Path(place, name), folder) for name in (*names, *links) if name != MANIFEST)


def _fingerprint(path: Path) -> list[object]:
    """Return size and hash of a regular file, or the target of a link.

    Raises:
        OSError: if it is neither, or belongs to another user.
    """
    if path.is_symlink():
        return ["link", os.readlink(path)]  # noqa: PTH115 as text
    digest, size_bytes = hashlib.sha256(), 0
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 a descriptor
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            raise OSError("it is no regular file of this user")
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return [size_bytes, digest.hexdigest()]


# Size and eviction.


@dataclass(frozen=True, order=True)
class CacheEntry:
    """One entry on disk, or a leftover of a killed writer."""

    used_ns: int  # time of the last use
    path: Path
    size_bytes: int


def cache_size(folder: Path) -> int:
    """Return the size of all entries of a cache in bytes."""
    return sum(entry.size_bytes for entry in _entries(folder))


def evict(folder: Path, keep: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
    """Delete least recently used entries until those that are not in use take at most `max_bytes`.

    `keep` and folders that may be in use are never deleted. Such folders are not counted: many of them would leave no
    room for files, and each new file would delete the one before.
    """
    in_use_ns = time.time_ns() - IN_USE_S * 1_000_000_000
    entries = sorted(e for e in _entries(folder) if e.path.parent == folder or e.used_ns <= in_use_ns)
    left_bytes = sum(entry.size_bytes for entry in entries)
    for entry in entries:
        if left_bytes <= max_bytes:
            return
        if entry.path != keep:
            _remove(entry.path)
            left_bytes -= entry.size_bytes


def _entries(folder: Path) -> list[CacheEntry]:
    """List entries, recognized by name and, for folders, by manifest. All other files belong to the user."""
    paths = [path for path in _children(folder) if _FILE_NAME.fullmatch(path.name) and _is_regular(path)]
    paths += [path for kind in FOLDERS for path in _children(folder / kind) if _is_entry_folder(path)]
    entries = []
    for path in paths:
        with contextlib.suppress(OSError):  # gone meanwhile
            status = path.lstat()
            size_bytes, used_ns = _disk_bytes(status), status.st_mtime_ns
            if stat.S_ISDIR(status.st_mode):
                files = [(path / name).lstat() for name in (*_files(path), *_existing(path, MANIFEST))]
                size_bytes = sum(map(_disk_bytes, files))
                used_ns = max([used_ns, *((path / name).lstat().st_mtime_ns for name in _existing(path, MANIFEST))])
            entries.append(CacheEntry(used_ns, path, size_bytes))
    return entries


def _disk_bytes(status: os.stat_result) -> int:
    """Return the disk space of a file: synthetic samples are sparse files of 48 MiB."""
    return min(status.st_size, status.st_blocks * 512)


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # missing, not a folder, or no permission
        return [*folder.iterdir()]
    return []


def _is_entry_folder(path: Path) -> bool:
    """Return whether a folder is an entry (by name and manifest) or an unfinished one (by name).

    Its files are not verified: damaged entries count, too.
    """
    if not _is_kind(path, stat.S_ISDIR):
        return False
    if _UNFINISHED_NAME.fullmatch(path.name):
        return True
    if not _FOLDER_NAME.fullmatch(path.name):
        return False
    try:
        manifest = json.loads(_read_regular(path / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("name") == path.name


def _existing(folder: Path, name: str) -> tuple[str, ...]:
    return (name,) if os.path.lexists(folder / name) else ()


def _is_regular(path: Path) -> bool:
    return _is_kind(path, stat.S_ISREG)


def _is_kind(path: Path, is_of_mode: Callable[[int], bool]) -> bool:
    with contextlib.suppress(OSError):
        return is_of_mode(path.lstat().st_mode)
    return False


def _make_private(folder: Path) -> None:
    """Create the folder of a cache for this user only, if it is missing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    require_private(folder)  # another user may have created it in the meantime


def _remove(path: Path) -> None:
    """Delete a file, link or folder if it exists; ignore errors."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
