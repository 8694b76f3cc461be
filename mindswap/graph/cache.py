"""Captures on disk, so that asking twice compiles once.

An entry of the cache is named by a digest of everything that decides its content.
"""

import gzip
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from mindswap.cache import find_danger, read_entry, require_private, write_entry
from mindswap.environment import home_folder, private_folder
from mindswap.errors import MindswapError

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
    """`$MINDSWAP_CACHE`, else `mindswap` in the user's cache folder; in `private_folder` if that cannot be written, or
    others can change it, as in containers whose home folder is open to every user id.

    Raises:
        DataError: there is no place for one.
    """
    if chosen := environ.get("MINDSWAP_CACHE"):
        return Path(chosen).absolute()
    folder = Path(environ.get("XDG_CACHE_HOME") or home_folder(environ) / ".cache").absolute() / "mindswap"
    return folder if _is_writable(folder) and not find_danger(folder) else private_folder() / "cache"


def _is_writable(folder: Path) -> bool:
    """Return whether files can be written to a folder that exists, or can be made."""
    existing = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def open_cache() -> Path:
    """The folder of the cache, which only this user and root can change.

    Raises:
        DataError: others can.
    """
    folder = cache_folder()
    require_private(folder)
    return folder


def make_key(**parts: Any) -> str:
    """A digest of values that JSON can write.

    Raises:
        TypeError: if it cannot.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def cached(folder: Path, key: str, classes: Mapping[str, type], make: Callable[[], T]) -> T:
    """The value kept under a key of `make_key`, made of these dataclasses (by name); made and kept if there is none."""
    data = read_entry(folder, key)
    if data is not None:
        try:
            return cast(T, from_plain(json.loads(gzip.decompress(data)), classes))
        except (OSError, EOFError, ValueError, zlib.error, CodecError, RecursionError) as error:
            logger.warning("ignored a cache entry that cannot be read: %s (%s)", key, error)
    value = make()
    try:
        write_entry(folder, key, gzip.compress(json.dumps(to_plain(value)).encode(), compresslevel=3))
    except (OSError, CodecError) as error:
        logger.warning("not cached: %s", error)
    return value
