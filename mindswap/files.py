"""Files that appear complete or not at all: the one place where the package writes files that others read."""

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
    """A JSON or YAML file below `data/`, read once; whoever asks changes nothing in it."""
    text = (DATA / name).read_text("utf-8")
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


def is_recorded_step(start: bytes) -> bool:
    """True for the beginning of a step that `mindswap trace` wrote (`pynative/trace.py`)."""
    return re.match(rb'\s*\{\s*"schema"\s*:\s*"mindswap-trace"', start) is not None


def file_name(path: object) -> str:
    """The name of a file as text, of what a Python user gives for it.

    Raises:
        DataError: it is neither text nor a `pathlib.Path`, or has characters that no file can have.
    """
    try:
        name = os.fsdecode(path)  # type: ignore[arg-type]
        is_encodable = b"\0" not in os.fsencode(name)
    except (TypeError, ValueError):
        is_encodable = False
    if not is_encodable:
        raise DataError(f"{path!r} is not a file name\n    fix:     a text, or a pathlib.Path") from None
    return name


# Of a file that is read completely: traces of a step have some MiB, scripts and settings some KiB.
MAX_INPUT_BYTES = 256 << 20


def read_limited(path: str | os.PathLike[str], max_bytes: int = MAX_INPUT_BYTES) -> bytes:
    """The content of a file, no more of which is read than the limit.

    Raises:
        DataError: there is more.
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise DataError(f"{path}: is too large\n    allowed: at most {max_bytes >> 20} MiB, as it is read completely")
    return content


def require_folders(*paths: Path | None) -> None:
    """Refuse a file that cannot be written because of folders, before the work that fills it.

    Raises:
        DataError: names the first such file.
    """
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise DataError(f"cannot write {path}: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise DataError(f"cannot write {path}: it is a folder")


def require_folder(path: Path | None) -> None:
    """Refuse a folder to write into that is a file, before the work that fills it.

    Raises:
        DataError: it is.
    """
    if path is not None and path.exists() and not path.is_dir():
        raise DataError(f"{path}: is not a folder\n    fix:     the name of a folder, which is made if it is missing")


def write_new(path: str | os.PathLike[str], content: str | bytes, overwrite: bool = False) -> None:
    """Write a text, or bytes, complete or not at all; line ends as they are, the mode of a replaced file kept.

    Args:
        path: where; a link is followed, folders are made. A device or a pipe is written to.
        content: what.
        overwrite: replace a file that is there.

    Raises:
        DataError: it cannot be written, or already exists.
    """
    target = _behind_links(Path(file_name(path)))
    if not overwrite:
        refuse_existing([target])
    with system_errors_as(DataError, f"{target}: cannot be written"):
        replace_file(target, content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)


def replace_file(path: Path, content: bytes, is_durable: bool = False) -> None:
    """Put a file in place of the one that may be there: a reader sees the old or the new one.

    What is there and is no file, as /dev/null, is written to.

    Args:
        path: where; its folder is made if it is missing.
        content: what.
        is_durable: wait until it is on the disk, so that it outlives a crash of the machine.

    Raises:
        OSError: it cannot be written; what was there stays.
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


def _behind_links(path: Path) -> Path:
    """Place of a file that is written to a path."""
    if _is_device(path):  # the link of a pipe, as of /dev/stdout, leads to no name of a file
        return path
    return Path(os.path.realpath(path))  # Path.resolve raises for links in a circle


def _is_device(path: Path) -> bool:
    """True if something is there that cannot be replaced by a file."""
    with suppress(OSError):
        return not stat.S_ISREG(path.stat().st_mode)
    return False


def refuse_existing(paths: list[Path], has_overwrite: bool = True) -> None:
    """Raise unless none of the paths is there; `has_overwrite`: the command has that option.

    Raises:
        DataError: naming those that are.
    """
    existing = [str(path) for path in paths if os.path.lexists(path)]
    if existing:
        fix = "another name, or --overwrite" if has_overwrite else "another name, or remove it"
        raise DataError(f"already exists: {', '.join(existing)}\n    fix:     {fix}")


@contextmanager
def staged(target: Path, companions: tuple[str, ...] = (), *, overwrite: bool = False) -> Iterator[Path]:
    """A path to write to; with a clean end its file and its companions move to `target`.

    The path has the target's own name, in a hidden folder beside it: MindRecord writes the name into
    both of its files. With an error or an interruption nothing is left, and what was there stays.

    Args:
        target: where the file shall be; its folder is made if it is missing.
        companions: what to append to the name for files that belong to it, for example ".db".
        overwrite: replace files that are there.

    Raises:
        DataError: the folder cannot be written, or a file is there (also one that came meanwhile).
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
    """Give a folder that is there a name with `.old1`, or the next number."""
    others = (folder.with_name(f"{folder.name}.old{number}") for number in itertools.count(1))
    folder.rename(next(other for other in others if not other.exists()))


def make_fresh(folder: Path, is_put_aside: bool = False, fix: str = "another folder") -> None:
    """Make a folder with nothing in it: what is there, which must not be taken for what comes, is refused or put aside.

    Raises:
        DataError: something is there, or the folder cannot be made.
    """
    with system_errors_as(DataError, f"{folder}: cannot be made"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not is_put_aside:
                raise DataError(f"{folder}: already exists, and is not empty\n    fix:     {fix}")
            archive_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)


def _move_all(moves: list[tuple[Path, Path]], attic: Path) -> None:
    """Move every file, or none: those replaced wait in the attic until all moves are done."""
    attic.mkdir()
    undo: list[tuple[Path, Path]] = []
    try:
        for _, target in moves:
            if os.path.lexists(target):
                undo.append((attic / target.name, target))
                target.rename(attic / target.name)
        for made, target in moves:
            undo.append((target, made))
            made.rename(target)
    except BaseException as error:
        for now, before in reversed(undo):
            if os.path.lexists(now):
                now.rename(before)
        if isinstance(error, OSError):
            raise DataError(f"{error.filename2 or error.filename}: cannot be written: {error.strerror}") from error
        raise


def unique_labels(paths: Sequence[str | os.PathLike[str]], taken: Collection[str] = ()) -> list[str]:
    """A short name for each file that tells it from the others: its stem, with folders before it where stems are equal.

    Args:
        paths: the files.
        taken: names that none may have.
    """
    stems = [Path(os.path.abspath(path)).with_suffix("").parts for path in paths]  # noqa: PTH100 links stay as named
    labels: list[str] = []
    for position, parts in enumerate(stems):
        others = {other for other in stems if other != parts}
        lengths = range(1, len(parts))
        is_taken = {length: "/".join(parts[-length:]) in taken for length in lengths}
        found = (n for n in lengths if not is_taken[n] and all(other[-n:] != parts[-n:] for other in others))
        label = "/".join(parts[-next(found, len(parts)) :])
        number = stems[:position].count(parts)  # the same file, or one with another ending
        labels.append(f"{label} ({number + 1})" if number else label)
    return labels


@contextmanager
def csv_field_limit(max_chars: int) -> Iterator[None]:
    """Let the fields of CSV files be that long while this lasts; the limit is one of the whole process."""
    limit = csv.field_size_limit(max_chars)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
