"""Check that nobody else can change the cache.

Stand-ins are libraries that a dry run preloads, so anyone who can write to the cache can run code as this user.
"""

import grp
import os
import pwd
import stat
from pathlib import Path

from mindswap.errors import DataError

# In a container, the owner of files of users outside of its user namespace.
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


def require_private(folder: Path) -> None:
    """Refuse a cache that users other than this one and root can change.

    Raises:
        DataError: if they can; names the folder, its owner or mode, and a fix.
    """
    if danger := find_danger(folder):
        raise DataError(find_unsafe_reason(folder, danger))


def find_unsafe_reason(folder: Path, danger: str) -> str:
    """Return the message for a cache that others can change, with the fix."""
    return (
        f"{folder}: the cache is not used: {danger}\n"
        "    allowed: a folder of yours that nobody else can write to, nor to the folders above it\n"
        "    fix:     take the others' permissions away (chmod go-w), or export MINDSWAP_CACHE=another folder"
    )


def find_danger(folder: Path) -> str:
    """Return why users other than this one and root could change a cache; "" if they cannot.

    Same rule as sshd: the folder and all its parents belong to this user or to root, and nobody else can write to
    them. Parents with the sticky bit, such as /tmp, are allowed.
    """
    ends = {folder.absolute(), Path(os.path.realpath(folder))}  # Path.resolve raises for circles
    for place in sorted({place for end in ends for place in (end, *end.parents)}):
        if danger := _danger(place, is_cache=place in ends):
            return danger
    return ""


def _danger(place: Path, is_cache: bool) -> str:
    """Return why others could change the content of a folder; "" if they cannot."""
    try:
        status = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:  # no permission to enter a parent folder, or the disk was removed
        return f"{place} cannot be read ({error.strerror or error})"
    trusted = {0, os.geteuid()} if is_cache else {0, os.geteuid(), _overflow_uid()}
    if status.st_uid not in trusted:
        return f"{place} belongs to {user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not is_cache):
        return ""
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_own_group(status.st_gid)):
        return f"others can write to {place} (mode {mode:o})"
    return ""


def _is_own_group(group_id: int) -> bool:
    """Return whether a group is this user's private group: it has the user's name and no other member."""
    try:
        group, user = grp.getgrgid(group_id), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}


def user_name(user_id: int) -> str:
    """Return the name of a user, for messages."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"user {user_id}"


def _overflow_uid() -> int:
    try:
        return int(_OVERFLOW_UID.read_text("utf-8"))
    except (OSError, ValueError):
        return 0
