"""The place of the cache, and captures in it, so that asking twice compiles once.

An entry of the cache is named by a digest of everything that decides its content.
"""

import functools
import gzip
import hashlib
import json
import logging
import multiprocessing
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from mindswap.errors import DataError, MindswapError
from mindswap.system.disk_cache import find_danger, find_unsafe_reason, read_entry, require_private, write_entry
from mindswap.system.environment import home_folder, private_folder

# Captures as JSON and back: plain data in, the same frozen dataclasses out. Nothing in a file is executed.

# JSON knows no tuples and no dataclasses: both are written as an object with one of these keys. No field of a
# dataclass can be called `class`.
TUPLE, KIND = "tuple", "class"


class CodecError(MindswapError):
    """The data is not what `to_plain` writes."""


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples, mappings with text keys, numbers, text, booleans and None as JSON values.

    Raises:
        CodecError: if the value holds anything else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.init}
        return {KIND: type(value).__name__, **given}
    if isinstance(value, (tuple, list)):
        return {TUPLE: [to_plain(item) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) and KIND not in value:
        return {"map": [[key, to_plain(item)] for key, item in value.items()]}
    raise CodecError(f"cannot write {type(value).__name__}")


def from_plain(data: Any, classes: Mapping[str, type]) -> Any:
    """Inverse of `to_plain`, with these dataclasses by name.

    Raises:
        CodecError: if the data is anything else than what `to_plain` writes for these classes.
    """
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if not isinstance(data, dict):
        raise CodecError(f"unexpected {type(data).__name__}")
    if isinstance(data.get(TUPLE), list):
        return tuple(from_plain(item, classes) for item in data[TUPLE])
    if isinstance(data.get("map"), list):
        return {key: from_plain(item, classes) for key, item in data["map"]}
    cls = classes.get(data.get(KIND, ""))
    if cls is None:
        raise CodecError(f"unknown kind {data.get(KIND)!r}")
    try:
        return cls(**{key: from_plain(item, classes) for key, item in data.items() if key != KIND})
    except TypeError as error:
        raise CodecError(str(error)) from None


T = TypeVar("T")
logger = logging.getLogger(__name__)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `$MINDSWAP_CACHE`, else `mindswap` in the user's cache folder; in `private_folder` if that is unfit.

    Raises:
        DataError: there is no place for one.
    """
    chosen = _chosen_folder(environ)
    return private_folder() / "cache" if find_unfit(environ) else chosen


def _chosen_folder(environ: Mapping[str, str]) -> Path:
    if named := environ.get("MINDSWAP_CACHE"):
        return Path(named).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or home_folder(environ) / ".cache").absolute() / "mindswap"


def find_unfit(environ: Mapping[str, str] = os.environ) -> str:
    """Return why the cache is not in its default folder; "" if it is, or `$MINDSWAP_CACHE` names one.

    As in containers whose home folder is open to every user id.

    Raises:
        DataError: as of `cache_folder`.
    """
    if environ.get("MINDSWAP_CACHE"):
        return ""
    folder = _chosen_folder(environ)
    return find_danger(folder) or ("" if _is_writable(folder) else f"{folder} cannot be written")


def _is_writable(folder: Path) -> bool:
    """Return whether files can be written to a folder that exists, or can be made."""
    existing = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def open_cache() -> Path:
    """Return the cache for what is executed: only this user and root can change it.

    Raises:
        DataError: others can, or there is no place for one.
    """
    folder = cache_folder()
    require_private(folder)
    if unfit := find_unfit():
        _warn_once(
            f"the cache is in {folder}, which other machines do not see: {unfit}\n"
            "    fix:     take the others' permissions away (chmod go-w), or export MINDSWAP_CACHE=a folder of yours"
        )
    return folder


def open_data_cache() -> Path | None:
    """Return the cache for results, which are data: None, with a warning, where `open_cache` refuses it."""
    try:
        return open_cache()
    except DataError as error:
        _warn_once(f"{error}")
        return None


def open_samples_cache() -> Path:
    """Return the cache for samples; where others can change it, one in `private_folder`, with a warning.

    Raises:
        DataError: there is no place for one.
    """
    folder = cache_folder()
    if danger := find_danger(folder):
        _warn_once(find_unsafe_reason(folder, danger))
        return private_folder() / "cache"
    return open_cache()


@functools.cache
def _warn_once(text: str) -> None:
    if multiprocessing.parent_process() is None:  # a pool's processes would all tell it
        logger.warning("%s", text)


def make_key(**parts: Any) -> str:
    """A digest of values that JSON can write.

    Raises:
        TypeError: if it cannot.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def cached(folder: Path | None, key: str, classes: Mapping[str, type], make: Callable[[], T]) -> T:
    """Return the value kept under a key of `make_key`, made of these dataclasses (by name).

    It is made and kept if there is none; without a cache it is made.
    """
    if folder is None:
        return make()
    data = read_entry(folder, key)
    if data is not None:
        try:
            return cast(T, from_plain(json.loads(gzip.decompress(data)), classes))
        except (OSError, EOFError, ValueError, zlib.error, CodecError, RecursionError) as error:
            logger.warning("ignored a cache entry that cannot be read: %s (%s)", key, error)
    value = make()
    try:
        write_entry(folder, key, gzip.compress(json.dumps(to_plain(value)).encode(), compresslevel=3))
    except (OSError, CodecError, DataError) as error:  # the last: others can change it meanwhile
        logger.warning("not cached: %s", error)
    return value
