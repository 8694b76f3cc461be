"""Captures on disk, so that asking twice compiles once.

A file is named by a digest of everything that decides its content. It is written atomically, and
one that cannot be read is ignored and written anew.
"""

import gzip
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mindswap.files import replace_file
from mindswap.graph.codec import CodecError, from_plain, to_plain

T = TypeVar("T")
logger = logging.getLogger(__name__)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """`$MINDSWAP_CACHE`, else `mindswap` in the user's cache folder."""
    if folder := environ.get("MINDSWAP_CACHE"):
        return Path(folder)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mindswap"


def make_key(**parts: Any) -> str:
    """A digest of values that JSON can write.

    Raises:
        TypeError: if it cannot.
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def cached(folder: Path, key: str, classes: Mapping[str, type], make: Callable[[], T]) -> T:
    """The value kept under a key of `make_key`, made of these dataclasses (by name); made and kept if there is none."""
    path = folder / f"{key}.json.gz"
    try:
        return from_plain(json.loads(gzip.decompress(path.read_bytes())), classes)
    except FileNotFoundError:
        pass
    except (OSError, EOFError, ValueError, CodecError, RecursionError) as error:
        logger.warning("ignored a cache file that cannot be read: %s (%s)", path, error)
    value = make()
    try:
        replace_file(path, gzip.compress(json.dumps(to_plain(value)).encode(), compresslevel=3))
    except (OSError, CodecError) as error:
        logger.warning("not cached: %s", error)
    return value
