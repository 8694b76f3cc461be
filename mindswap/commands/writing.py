"""Text files that commands write for the user."""

import os
import shutil
from pathlib import Path

from mindswap.datasets.staged_file import refuse_existing, staged

__all__ = ["write_new"]


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
