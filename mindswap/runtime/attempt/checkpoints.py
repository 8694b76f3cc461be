"""The newest checkpoint that all ranks have complete, and a folder from which MindFormers resumes it."""

import contextlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAX_HEADER_BYTES = 256 << 20
_NAMES = ("epoch_num", "step_num")


@dataclass(frozen=True, order=True)
class SavedStep:
    """Epoch and step at which a checkpoint was written; epochs and steps from 1, steps over all epochs."""

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
    for number, end in _fields(file, size_bytes):
        if number != 1:
            raise EOFError
        tag = ""
        for part, part_end in _fields(file, end):
            if part == 1:
                tag = file.read(part_end - file.tell()).decode("utf-8")
            elif tag in _NAMES:
                for name, last in _fields(file, part_end):
                    if name == 3:  # tensor_content
                        values[tag] = int.from_bytes(file.read(min(last - file.tell(), 8)), "little")
    return values


def _fields(file: BinaryIO, limit: int) -> Iterator[tuple[int, int]]:
    """Numbers of the fields that have a length, the file at the begin of each, and where each ends."""
    while file.tell() < limit:
        key, value = _varint(file), _varint(file)
        end = file.tell() + value
        if key & 7 == 0:  # the value itself, as of a dimension
            continue
        if key & 7 != 2 or end > limit:
            raise EOFError
        yield key >> 3, end
        file.seek(end)


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


# Checkpoint files from the inside: complete or not, and of which step. The names that MindFormers gives count the steps
# since the last start; the true step stands in the file.

# `small_rank_0-1_10.safetensors`; after a restart `small_rank_0_1-1_5.safetensors`.
_NAME = re.compile(r"(?P<prefix>.+)_rank_(?P<rank>\d{1,6})(?:_\d{1,6})?-\d{1,9}_\d{1,9}\.(?P<format>ckpt|safetensors)")


# When it was written, what the names begin with, and the format.
CheckpointKey = tuple[SavedStep, str, str]


@dataclass(frozen=True)
class Checkpoint:
    """Files of one step, one per rank."""

    saved: SavedStep  # when it was written
    files: tuple[Path, ...]  # by rank
    prefix: str  # what the names begin with
    format: str  # `safetensors` or `ckpt`
    first_rank: int = 0  # of the first file


class CheckpointFolder:
    """The folder with `rank_0`, `rank_1`, ..., as many as a checkpoint needs; it may not exist yet.

    `ignored` are marks of files that do not count, from `marks`; a node of a cluster has ranks from `first_rank` on.
    """

    def __init__(self, folder: Path, num_ranks: int, ignored: Iterable[str] = (), first_rank: int = 0) -> None:
        self.folder = folder
        self._ranks = range(first_rank, first_rank + num_ranks)
        self._ignored = frozenset(ignored)
        self._known: dict[str, SavedStep | None] = {}

    def folders(self) -> list[Path]:
        """The folder, and those of the ranks that are there: each may be a disk of its own."""
        ranks = (self.folder / f"rank_{rank}" for rank in self._ranks)
        return [self.folder, *(path for path in ranks if path.is_dir())]

    def marks(self) -> tuple[str, ...]:
        """One mark per file that is there: name and what changes when it is written again."""
        found = (_mark(path) for rank in self._ranks for path in self._files(rank))
        return tuple(sorted(mark for mark in found if mark))

    def newest(self) -> Checkpoint | None:
        """The newest step that every rank has a complete file of; None for none."""
        complete = self.complete()
        return self.at(max(complete)) if complete else None

    def complete(self) -> frozenset[CheckpointKey]:
        """All steps that every rank has a complete file of."""
        by_rank = [frozenset(self._read(rank)) for rank in self._ranks]
        return frozenset.intersection(*by_rank) if by_rank else frozenset()

    def at(self, key: CheckpointKey) -> Checkpoint:
        """One of `complete`."""
        saved, prefix, format_ = key
        return Checkpoint(
            saved, tuple(self._read(rank)[key] for rank in self._ranks), prefix, format_, self._ranks.start
        )

    def _read(self, rank: int) -> dict[CheckpointKey, Path]:
        found: dict[CheckpointKey, Path] = {}
        last = self._last_complete(rank)
        for path in self._files(rank):
            match, mark = _NAME.fullmatch(path.name), _mark(path)
            if match is None or mark is None or mark in self._ignored:
                continue
            if self._known.get(mark) is None:  # an incomplete file is looked at again
                self._known[mark] = read_saved_step(path)
            saved = self._known[mark]
            if saved and (last is None or saved <= last):
                found[saved, match["prefix"], match["format"]] = path
        return found

    def _last_complete(self, rank: int) -> SavedStep | None:
        """The last step by `meta.json`, which MindFormers writes when a file is complete; None if it does not say."""
        folder = self.folder / f"rank_{rank}"
        try:
            name = json.loads((folder / "meta.json").read_bytes())["last_ckpt_file"]
            return read_saved_step(folder / Path(name).name)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _files(self, rank: int) -> list[Path]:
        return sorted((self.folder / f"rank_{rank}").glob("*"))  # none of a folder that cannot be read


def incomplete_on(complete: Sequence[frozenset[CheckpointKey]]) -> tuple[CheckpointKey | None, list[int]]:
    """The newest checkpoint of any node if it is not one of all, and the ranks of the nodes that lack it."""
    newest = max(frozenset[CheckpointKey]().union(*complete), default=None)
    lacking = [rank for rank, keys in enumerate(complete) if newest not in keys]
    return (newest, lacking) if newest and lacking else (None, [])


def _mark(path: Path) -> str | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return f"{path.parent.name}/{path.name}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def link_checkpoint(checkpoint: Checkpoint, target: Path, *, is_parallel: bool) -> str | bool:
    """Links to the files in a folder for `load_checkpoint`, where no later checkpoint pushes them out.

    Several processes take `rank_0`, `rank_1`, ... of it. One process refuses safetensors in such folders, and from 1.9
    also a single file (mindformers 1.9.0: utils/load_checkpoint_utils.py:394, checkpoint/utils.py:468); it takes what
    lies in the folder itself, with steps and epochs from `hyper_param.safetensors` (trainer/utils.py:373). A checkpoint
    holds both, so that one name does.

    Returns:
        What `resume_training` takes: the name of the file of rank 0, or True.

    Raises:
        OSError: the links cannot be made.
    """
    if not is_parallel and checkpoint.format == "safetensors":
        _link(checkpoint.files[0], target / "hyper_param.safetensors")
        return True
    saved = checkpoint.saved
    name = f"{checkpoint.prefix}_rank_{{}}-{saved.epoch}_{saved.step}.{checkpoint.format}".format
    for rank, path in enumerate(checkpoint.files, checkpoint.first_rank):
        _link(path, target / f"rank_{rank}" / name(rank))
    return name(0)


def _link(path: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        link.unlink()
    try:
        os.link(path, link)
    except OSError:  # another file system, or one without hard links
        link.symlink_to(path.absolute())
