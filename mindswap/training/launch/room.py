"""Room on a file system: where a run writes, and how much is free there."""

import os
from pathlib import Path

from mindswap.errors import LaunchError
from mindswap.units import format_bytes

# Plan, state and the logs of a short run; assumed: a rank writes some 100 KiB before its first step.
RUN_DIR_BYTES = 1 << 20


def free_bytes(folder: Path) -> tuple[int, int]:
    """Free and all bytes of the file system that the folder is on, or will be; nothing is free without an inode."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    status = os.statvfs(place)
    is_out_of_inodes = status.f_files and not status.f_favail
    return 0 if is_out_of_inodes else status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def describe_full(folder: Path, needed_bytes: int, what: str) -> str:
    """What is missing on the file system of a folder, which need not exist, for `what`; empty if there is room."""
    try:
        free, whole = free_bytes(folder)
    except OSError:
        return ""
    if free >= needed_bytes:
        return ""
    return (
        f"{folder}: {format_bytes(free)} of {format_bytes(whole)} are free on its file system; "
        f"{what} needs {format_bytes(needed_bytes)}, {format_bytes(needed_bytes - free)} more"
    )


def require_room(run_dir: Path) -> None:
    """Stop before anything is planned for a run that could not write its logs.

    Raises:
        LaunchError: naming the folder and what is missing.
    """
    if missing := describe_full(run_dir, RUN_DIR_BYTES, "a run"):
        raise LaunchError(
            f"{missing}\n    fix:     make room there, or take another --run-dir; the same command goes on"
        )
