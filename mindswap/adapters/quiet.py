"""Keeps the chatter of MindSpore and MindFormers off the terminal and out of the user's folder.

Needs neither of them: it must act before they are imported.
"""

import contextlib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mindswap.errors import MindswapError

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[Path]:
    """While this lasts, whatever the process prints goes to a log file, and the working folder is a scratch one.

    MindSpore prints from C++ too, so the file descriptors themselves are redirected; both packages
    write logs and graphs into the working folder, MindFormers as soon as it is imported. The folder
    is deleted at the end; after an error it stays, and the error carries the path of the log.

    Yields:
        Path of the log.
    """
    folder = Path(tempfile.mkdtemp(prefix="mindswap-"))
    log_path = folder / "compile.log"
    home = Path.cwd()
    gc.disable()  # a quarter of the time of importing MindFormers is the collector walking over new modules
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    os.chdir(folder)
    with log_path.open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    has_failed = True
    try:
        yield log_path
        has_failed = False
    except MindswapError as error:
        error.args = (f"{error}\n    full log: {log_path}",)
        raise
    except Exception as error:
        error.add_note(f"full log: {log_path}")
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)
        os.chdir(home)
        gc.enable()
        if not has_failed:
            shutil.rmtree(folder, ignore_errors=True)
