"""Text files that commands write for the user."""

import os
import shutil
from pathlib import Path

from mindswap.datasets.staged_file import refuse_existing, staged
from mindswap.errors import DataError

__all__ = ["require_folders", "write_new"]


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


def write_new(path: str | os.PathLike, text: str, overwrite: bool = False) -> None:
    """Write a file complete or not at all; line ends as they are, the mode of a replaced file kept.

    Args:
        path: where; a link is followed.
        text: what.
        overwrite: replace a file that is there.

    Raises:
        DataError: it cannot be written, or is there already.
    """
    target = Path(path).resolve()
    if not overwrite:
        refuse_existing([target])
    with staged(target, overwrite=overwrite) as made:
        made.write_bytes(text.encode("utf-8", "surrogatepass"))
        if target.exists():
            shutil.copymode(target, made)
