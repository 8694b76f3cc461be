"""Checkpoint files from the inside: complete or not, and of which step.

The names that MindFormers gives count the steps since the last start; the true step stands in the file.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAX_HEADER_BYTES = 256 << 20
_NAMES = ("epoch_num", "step_num")


@dataclass(frozen=True, order=True)
class SavedStep:
    """When a checkpoint was written; epochs and steps from 1, steps over all epochs."""

    step: int
    epoch: int


def read_saved_step(path: Path) -> SavedStep | None:
    """The step a file was written at; None if it is incomplete, no checkpoint, or does not say.

    Reads headers only, so a file of any size takes little.
    """
    read = {".safetensors": _read_safetensors, ".ckpt": _read_ckpt}.get(path.suffix)
    if read is None:
        return None
    try:
        with path.open("rb") as file:
            values = read(file, path.stat().st_size)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError, EOFError):
        return None
    return SavedStep(values["step_num"], values["epoch_num"]) if len(values) == len(_NAMES) else None


def _read_safetensors(file: BinaryIO, size_bytes: int) -> dict[str, int]:
    """8 bytes length, a JSON header, then the tensors without gaps."""
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(MAX_HEADER_BYTES, size_bytes):
        raise EOFError
    tensors = {name: value for name, value in json.loads(file.read(length)).items() if name != "__metadata__"}
    start = 8 + length
    if size_bytes != start + max((value["data_offsets"][1] for value in tensors.values()), default=0):
        raise EOFError
    values = {}
    for name in _NAMES:
        if name in tensors:
            low, high = tensors[name]["data_offsets"]
            file.seek(start + low)
            values[name] = int.from_bytes(file.read(min(high - low, 8)), "little")
    return values


def _read_ckpt(file: BinaryIO, size_bytes: int) -> dict[str, int]:
    """Protobuf of MindSpore: Checkpoint {repeated Value value = 1}, Value {tag = 1, TensorProto tensor = 2}."""
    values: dict[str, int] = {}
    while file.tell() < size_bytes:
        end = _enter(file, 1, size_bytes)
        tag_end = _enter(file, 1, end)
        tag = file.read(tag_end - file.tell()).decode("utf-8")
        if tag in _NAMES:
            tensor_end = _enter(file, 2, end)
            while file.tell() < tensor_end:
                key = _varint(file)
                if key & 7 == 0:  # a dimension
                    _varint(file)
                    continue
                length = _varint(file)
                if key >> 3 == 3:  # tensor_content
                    values[tag] = int.from_bytes(file.read(min(length, 8)), "little")
                    break
                file.seek(length, 1)
        file.seek(end)
    return values


def _enter(file: BinaryIO, number: int, limit: int) -> int:
    """Past the head of a field with a length; where the field ends."""
    if _varint(file) != number << 3 | 2:
        raise EOFError
    end = _varint(file)
    end += file.tell()
    if end > limit:
        raise EOFError
    return end


def _varint(file: BinaryIO) -> int:
    value = shift = 0
    while shift < 64:
        byte = file.read(1)
        if not byte:
            raise EOFError
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
    raise EOFError
