"""Captures as JSON and back: plain data in, the same frozen dataclasses out. Nothing in a file is executed."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from mindswap.errors import MindswapError

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
    """What `to_plain` was given, of these dataclasses by name.

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
