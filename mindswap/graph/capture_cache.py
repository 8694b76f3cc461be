"""Disk cache for captured steps, so that a configuration is compiled only once.

The name of an entry is a digest of everything that determines its content.
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
from mindswap.system.cache_permissions import find_danger, find_unsafe_reason, require_private
from mindswap.system.disk_cache import read_entry, write_entry
from mindswap.system.environment import home_folder, private_folder

# Captures are stored as JSON and read back into the same frozen dataclasses. Nothing in a file is executed.

# JSON has neither tuples nor dataclasses: both are written as an object with one of these keys. No dataclass may have a
# field called `class`.
TUPLE, KIND = "tuple", "class"


class CodecError(MindswapError):
    """The data was not written by `to_plain`."""


def to_plain(value: Any) -> Any:
    """Convert a value to JSON values.

    Args:
        value: dataclasses, tuples, mappings with string keys, numbers, strings, booleans and None, nested in any way.

    Raises:
        CodecError: if the value contains anything else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        values = {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.init}
        return {KIND: type(value).__name__, **values}
    if isinstance(value, (tuple, list)):
        return {TUPLE: [to_plain(item) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) and KIND not in value:
        return {"map": [[key, to_plain(item)] for key, item in value.items()]}
    raise CodecError(f"cannot write {type(value).__name__}")


def from_plain(data: Any, classes: Mapping[str, type]) -> Any:
    """Convert the output of `to_plain` back.

    Args:
        data: JSON values.
        classes: the dataclasses that may occur, by class name.

    Raises:
        CodecError: if the data is not the output of `to_plain` for these classes.
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
    """Return `$MINDSWAP_CACHE`, else `mindswap` in the user's cache folder, else a folder in `private_folder`.

    Raises:
        DataError: if no usable folder exists.
    """
    chosen = _chosen_folder(environ)
    return private_folder() / "cache" if find_unfit(environ) else chosen


def _chosen_folder(environ: Mapping[str, str]) -> Path:
    if named := environ.get("MINDSWAP_CACHE"):
        return Path(named).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or home_folder(environ) / ".cache").absolute() / "mindswap"


def find_unfit(environ: Mapping[str, str] = os.environ) -> str:
    """Return the reason why the default cache folder is not used; "" if it is used or `$MINDSWAP_CACHE` is set.

    A typical reason is a container whose home folder is writable for every user id.

    Raises:
        DataError: see `cache_folder`.
    """
    if environ.get("MINDSWAP_CACHE"):
        return ""
    folder = _chosen_folder(environ)
    return find_danger(folder) or ("" if _is_writable(folder) else f"{folder} cannot be written")


def _is_writable(folder: Path) -> bool:
    """Return whether the folder, or else its closest existing parent, is writable."""
    existing = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def open_cache() -> Path:
    """Return the cache folder for content that is executed: only this user and root may write to it.

    Raises:
        DataError: if other users can write to it, or no usable folder exists.
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
    """Return the cache folder for results that are only read; None, with a warning, where `open_cache` raises."""
    try:
        return open_cache()
    except DataError as error:
        _warn_once(f"{error}")
        return None


def open_samples_cache() -> Path:
    """Return the cache folder for token samples; a private one, with a warning, if others can write to the default.

    Raises:
        DataError: if no usable folder exists.
    """
    folder = cache_folder()
    if danger := find_danger(folder):
        _warn_once(find_unsafe_reason(folder, danger))
        return private_folder() / "cache"
    return open_cache()


@functools.cache
def _warn_once(text: str) -> None:
    if multiprocessing.parent_process() is None:  # processes of a pool would each log the warning
        logger.warning("%s", text)


def make_key(**parts: Any) -> str:
    """Return the digest of JSON values.

    Raises:
        TypeError: if a value cannot be written as JSON.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def cached(folder: Path | None, key: str, classes: Mapping[str, type], make: Callable[[], T]) -> T:
    """Return the cached value for a key, or compute and store it.

    Args:
        folder: the cache; None computes the value without storing it.
        key: from `make_key`.
        classes: the dataclasses that the value consists of, by class name.
        make: computes the value.
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
    except (OSError, CodecError, DataError) as error:  # DataError: others gained write access meanwhile
        logger.warning("not cached: %s", error)
    return value
