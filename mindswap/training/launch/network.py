"""Is the master's port free?"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindswap.errors import LaunchError
from mindswap.units import format_bytes


def check_port(address: str, port: int, fix: str = "") -> None:
    """Raise if the master runs here and its port is taken; a port of another machine is not checked.

    `fix` is what is typed before the free port, such as `add --master_port=`.

    Raises:
        LaunchError: naming a free port; or the address is unknown.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(address.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise LaunchError(f"MASTER_ADDR is {address!r}: {error}\n    allowed: an IP address or a host name") from error
    is_here = _can_listen(family, place, 0)  # port 0 asks for any
    if not is_here or _can_listen(family, place, port):
        return
    free = next((other for other in _others(port) if _can_listen(family, place, other)), None)
    use = f"{fix}{free}" if fix else f"{free} is free"
    raise LaunchError(f"MASTER_PORT {port} of {address} is in use\n    fix:     {use} (ss -ltnp shows who has {port})")


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _others(port: int) -> Iterator[int]:
    yield from range(port + 1, min(port + 1000, 65536))
    yield from range(1024, port)


def _can_listen(family: int, place: tuple[Any, ...], port: int) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        # As MindSpore's scheduler does: connections of an earlier run that wait for their end do not count.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((place[0], port, *place[2:]))
            server.listen(1)
        except OSError:
            return False
    return True


# Room on a file system: where a run writes, and how much is free there.

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
