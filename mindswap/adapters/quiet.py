"""Keeps the chatter of MindSpore and MindFormers off the terminal and out of the user's folder.

Needs neither of them: it must act before they are imported.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[Path]:
    """While this lasts, whatever the process prints goes to a log file.

    MindSpore prints from C++ too, so the file descriptors themselves are redirected. The log is
    deleted at the end; after an error it stays, and the error carries its path as a note.

    Yields:
        Path of the log.
    """
    folder = Path(tempfile.mkdtemp(prefix="mindswap-"))
    log_path = folder / "compile.log"
    os.environ.setdefault("LOG_MF_PATH", str(folder / "mindformers"))
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield log_path
    except Exception as error:
        error.add_note(f"full log: {log_path}")
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
