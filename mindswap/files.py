"""Read package data and limited inputs; write files atomically. All output files of the package are written here."""

import csv
import itertools
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mindswap.errors import DataError, system_errors_as

# Tables and texts that come with the package.
DATA = Path(__file__).with_name("data")


@cache
def package_data(name: str) -> Any:
    """Return a JSON or YAML file below `data/`. The result is cached and shared, so callers must not change it."""
    text = (DATA / name).read_text("utf-8")
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


def is_recorded_step(start: bytes) -> bool:
    """Return whether a file that starts with these bytes is a step of `mindswap trace` (`pynative/trace.py`)."""
    return re.match(rb'\s*\{\s*"schema"\s*:\s*"mindswap-trace"', start) is not None


def file_name(path: object) -> str:
    """Return a path, as a Python user may pass it, as text.

    Raises:
        DataError: if it is neither text nor a `pathlib.Path`, or contains characters that no file name can have.
    """
    try:
        name = os.fsdecode(path)  # type: ignore[arg-type]
        is_encodable = b"\0" not in os.fsencode(name)
    except (TypeError, ValueError):
        is_encodable = False
    if not is_encodable:
        raise DataError(f"{path!r} is not a file name\n    fix:     a text, or a pathlib.Path") from None
    return name


# Limit for files that are read completely. Traces of a step have some MiB, scripts and settings some KiB.
MAX_INPUT_BYTES = 256 << 20


def read_limited(path: str | os.PathLike[str], max_bytes: int = MAX_INPUT_BYTES) -> bytes:
    """Return the content of a file; at most `max_bytes` + 1 bytes are read.

    Raises:
        DataError: if the file is larger than `max_bytes`.
        OSError: if it cannot be read.
    """
    with Path(path).open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise DataError(f"{path}: is too large\n    allowed: at most {max_bytes >> 20} MiB, as it is read completely")
    return content


def require_folders(*paths: Path | None) -> None:
    """Check, before the work starts, that the folders of output files exist and that no output file is a folder.

    Raises:
        DataError: for the first path that fails.
    """
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise DataError(f"cannot write {path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise DataError(f"cannot write {path}: it is a folder")


def require_folder(path: Path | None) -> None:
    """Check, before the work starts, that an output folder is not a file.

    Raises:
        DataError: if it is a file.
    """
    if path is not None and path.exists() and not path.is_dir():
        raise DataError(f"{path}: is not a folder\n    fix:     the name of a folder, which is made if it is missing")


def write_new(path: str | os.PathLike[str], content: str | bytes, overwrite: bool = False) -> None:
    """Write a file atomically. Line ends stay as they are; a replaced file keeps its mode.

    Args:
        path: target file. Links are followed, missing folders created; a device or a pipe is written to directly.
        content: text, which is encoded as UTF-8, or bytes.
        overwrite: replace an existing file.

    Raises:
        DataError: if it cannot be written, or already exists.
    """
    target = _resolve_links(Path(file_name(path)))
    if not overwrite:
        refuse_existing([target])
    with system_errors_as(DataError, f"{target}: cannot be written"):
        replace_file(target, content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)


def replace_file(path: Path, content: bytes, is_durable: bool = False) -> None:
    """Create or replace a file atomically: a reader sees either the old or the new content.

    Devices and pipes, such as /dev/null, are written to directly.

    Args:
        path: target file; its folder is created if it is missing.
        content: the new content.
        is_durable: flush the content to the disk first, so that it survives a crash of the machine.

    Raises:
        OSError: if it cannot be written; an existing file is then unchanged.
    """
    if _is_device(path):
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _resolve_links(path: Path) -> Path:
    """Return the path of the file that a write to `path` changes."""
    if _is_device(path):  # the link of a pipe, such as /dev/stdout, does not resolve to a file name
        return path
    return Path(os.path.realpath(path))  # Path.resolve raises for circular links


def _is_device(path: Path) -> bool:
    """Return whether the path exists and is not a regular file, so that it must not be replaced."""
    with suppress(OSError):
        return not stat.S_ISREG(path.stat().st_mode)
    return False


def refuse_existing(paths: list[Path], has_overwrite: bool = True) -> None:
    """Check that none of the paths exists.

    Args:
        paths: output files.
        has_overwrite: whether the command has the option `--overwrite`, which the message then suggests.

    Raises:
        DataError: lists the existing paths.
    """
    existing = [str(path) for path in paths if os.path.lexists(path)]
    if existing:
        fix = "another name, or --overwrite" if has_overwrite else "another name, or remove it"
        raise DataError(f"already exists: {', '.join(existing)}\n    fix:     {fix}")


@contextmanager
def staged(target: Path, companions: tuple[str, ...] = (), *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to; without an exception, its file and companions then move to `target`.

    The temporary file is in a hidden folder next to the target and has the target's name, because MindRecord writes
    the name into both of its files. After an exception the temporary files are removed and existing files unchanged.

    Args:
        target: final path of the file; its folder is created if it is missing.
        companions: suffixes of additional files that belong to it, for example ".db".
        overwrite: replace existing files.

    Raises:
        DataError: if the folder cannot be written, or a file exists (also one created in the meantime).
    """
    with system_errors_as(DataError, f"{target.parent}: cannot be written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        path = folder / target.name
        yield path
        moves = [(path.with_name(path.name + end), target.with_name(target.name + end)) for end in ("", *companions)]
        if not overwrite:
            refuse_existing([new for _, new in moves])
        _move_all(moves, folder / "replaced")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def archive_folder(folder: Path) -> None:
    """Rename an existing folder: append `.old1`, or the next free number."""
    candidates = (folder.with_name(f"{folder.name}.old{number}") for number in itertools.count(1))
    folder.rename(next(candidate for candidate in candidates if not candidate.exists()))


def make_fresh(folder: Path, is_put_aside: bool = False, fix: str = "another folder") -> None:
    """Create an empty folder, so that old files cannot be mistaken for new ones.

    Args:
        folder: the folder.
        is_put_aside: rename an existing folder with files (`archive_folder`), in place of raising.
        fix: fix for the error message.

    Raises:
        DataError: if the folder exists with files and is not to be renamed, or cannot be created.
    """
    with system_errors_as(DataError, f"{folder}: cannot be made"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not is_put_aside:
                raise DataError(f"{folder}: already exists, and is not empty\n    fix:     {fix}")
            archive_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)


def _move_all(moves: list[tuple[Path, Path]], backup: Path) -> None:
    """Move all files (source, target) or none; replaced files are kept in the folder `backup` until all are moved."""
    backup.mkdir()
    undo: list[tuple[Path, Path]] = []
    try:
        for _, target in moves:
            if os.path.lexists(target):
                undo.append((backup / target.name, target))
                target.rename(backup / target.name)
        for source, target in moves:
            undo.append((target, source))
            source.rename(target)
    except BaseException as error:
        for moved, original in reversed(undo):
            if os.path.lexists(moved):
                moved.rename(original)
        if isinstance(error, OSError):
            raise DataError(f"{error.filename2 or error.filename}: cannot be written: {error.strerror}") from error
        raise


def unique_labels(paths: Sequence[str | os.PathLike[str]], reserved: Collection[str] = ()) -> list[str]:
    """Return a short unique name for each file: its stem, preceded by folders where stems are equal.

    Args:
        paths: the files.
        reserved: names that must not be used.
    """
    stems = [Path(os.path.abspath(path)).with_suffix("").parts for path in paths]  # noqa: PTH100 links stay as named
    labels: list[str] = []
    for position, parts in enumerate(stems):
        other_stems = {other_parts for other_parts in stems if other_parts != parts}
        lengths = range(1, len(parts))
        is_reserved = {length: "/".join(parts[-length:]) in reserved for length in lengths}
        unique_lengths = (
            n
            for n in lengths
            if not is_reserved[n] and all(other_parts[-n:] != parts[-n:] for other_parts in other_stems)
        )
        label = "/".join(parts[-next(unique_lengths, len(parts)) :])
        number = stems[:position].count(parts)  # the same file, or one with another ending
        labels.append(f"{label} ({number + 1})" if number else label)
    return labels


@contextmanager
def csv_field_limit(max_chars: int) -> Iterator[None]:
    """Set the maximum length of CSV fields inside the context; the limit applies to the whole process."""
    limit = csv.field_size_limit(max_chars)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
