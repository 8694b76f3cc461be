"""Files that appear complete or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindswap.errors import DataError

__all__ = ["staged", "refuse_existing"]


def refuse_existing(paths: list[Path]) -> None:
    """Raise unless none of the paths is there.

    Raises:
        DataError: naming those that are.
    """
    existing = [str(path) for path in paths if os.path.lexists(path)]
    if existing:
        raise DataError(f"already there: {', '.join(existing)}\n    fix:     another name, or --overwrite")


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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        raise DataError(f"{target.parent}: cannot be written: {error.strerror}") from error
    try:
        path = folder / target.name
        yield path
        moves = [(path.with_name(path.name + end), target.with_name(target.name + end)) for end in ("", *companions)]
        if not overwrite:
            refuse_existing([new for _, new in moves])
        _move_all(moves, folder / "replaced")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
