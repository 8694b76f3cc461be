"""Find the newest checkpoint that is complete for all ranks, and prepare a folder to resume from it."""

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
    """Epoch and step of a checkpoint; both start at 1, and steps count over all epochs."""

    step: int
    epoch: int


def read_saved_step(path: Path) -> SavedStep | None:
    """Read the step of a checkpoint file; reads headers only, so it is fast for files of any size.

    Returns:
        The step; None if the file is incomplete, not a checkpoint, or without a step.
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
    """Read safetensors: 8 bytes with the length of a JSON header, the header, then the tensors without gaps."""
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
    """Read MindSpore's protobuf: Checkpoint {repeated Value value = 1}, Value {tag = 1, TensorProto tensor = 2}."""
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
    """Yield number and end position of each length-delimited field, with the file positioned at its start."""
    while file.tell() < limit:
        key, value = _varint(file), _varint(file)
        end = file.tell() + value
        if key & 7 == 0:  # a varint, such as a dimension
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


# The step is read from the file, because file names of MindFormers count steps since the last start.

# `small_rank_0-1_10.safetensors`; after a restart `small_rank_0_1-1_5.safetensors`.
_NAME = re.compile(r"(?P<prefix>.+)_rank_(?P<rank>\d{1,6})(?:_\d{1,6})?-\d{1,9}_\d{1,9}\.(?P<format>ckpt|safetensors)")


# Saved step, prefix of the file names, and format.
CheckpointKey = tuple[SavedStep, str, str]


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint files of one step, one per rank."""

    saved: SavedStep
    files: tuple[Path, ...]  # in order of rank
    prefix: str  # prefix of the file names
    format: str  # `safetensors` or `ckpt`
    first_rank: int = 0  # rank of the first file


class CheckpointFolder:
    """Checkpoint folder with `rank_0`, `rank_1`, ...

    Args:
        folder: path of the folder, which need not exist.
        num_ranks: number of ranks of this node.
        ignored: marks of files to ignore, from `marks`.
        first_rank: first rank of this node.
    """

    def __init__(self, folder: Path, num_ranks: int, ignored: Iterable[str] = (), first_rank: int = 0) -> None:
        self.folder = folder
        self._ranks = range(first_rank, first_rank + num_ranks)
        self._ignored = frozenset(ignored)
        self._steps_by_mark: dict[str, SavedStep | None] = {}

    def folders(self) -> list[Path]:
        """Return the folder and the existing folders of ranks: each may be on a separate disk."""
        ranks = (self.folder / f"rank_{rank}" for rank in self._ranks)
        return [self.folder, *(path for path in ranks if path.is_dir())]

    def marks(self) -> tuple[str, ...]:
        """Return a mark for each existing file, which changes whenever the file is rewritten."""
        marks = (_mark(path) for rank in self._ranks for path in self._files(rank))
        return tuple(sorted(mark for mark in marks if mark))

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is complete for every rank; None if there is none."""
        complete = self.complete()
        return self.at(max(complete)) if complete else None

    def complete(self) -> frozenset[CheckpointKey]:
        """Return all checkpoints that are complete for every rank."""
        by_rank = [frozenset(self._read(rank)) for rank in self._ranks]
        return frozenset.intersection(*by_rank) if by_rank else frozenset()

    def at(self, key: CheckpointKey) -> Checkpoint:
        """Return the checkpoint with a key of `complete`."""
        saved, prefix, format_ = key
        return Checkpoint(
            saved, tuple(self._read(rank)[key] for rank in self._ranks), prefix, format_, self._ranks.start
        )

    def _read(self, rank: int) -> dict[CheckpointKey, Path]:
        paths: dict[CheckpointKey, Path] = {}
        last = self._last_complete(rank)
        for path in self._files(rank):
            match, mark = _NAME.fullmatch(path.name), _mark(path)
            if match is None or mark is None or mark in self._ignored:
                continue
            if self._steps_by_mark.get(mark) is None:  # incomplete files are reread
                self._steps_by_mark[mark] = read_saved_step(path)
            saved = self._steps_by_mark[mark]
            if saved and (last is None or saved <= last):
                paths[saved, match["prefix"], match["format"]] = path
        return paths

    def _last_complete(self, rank: int) -> SavedStep | None:
        """Return the last complete step in `meta.json`, which MindFormers writes after each file; None if missing."""
        folder = self.folder / f"rank_{rank}"
        try:
            name = json.loads((folder / "meta.json").read_bytes())["last_ckpt_file"]
            return read_saved_step(folder / Path(name).name)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _files(self, rank: int) -> list[Path]:
        return sorted((self.folder / f"rank_{rank}").glob("*"))  # empty if the folder cannot be read


def incomplete_on(complete: Sequence[frozenset[CheckpointKey]]) -> tuple[CheckpointKey | None, list[int]]:
    """Return the newest checkpoint of any node and the ranks of nodes that lack it; None if all nodes have it."""
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
    """Link the files into a folder for `load_checkpoint`, so that later checkpoints do not delete them.

    Parallel trainings load from `rank_0`, `rank_1`, ... A single process refuses safetensors in such folders, and from
    1.9 also a single file (mindformers 1.9.0: utils/load_checkpoint_utils.py:394, checkpoint/utils.py:468). It loads
    the files of the folder itself, with step and epoch from `hyper_param.safetensors` (trainer/utils.py:373). As a
    checkpoint contains weights, step and epoch, one link with that name is enough.

    Args:
        checkpoint: the checkpoint to link.
        target: folder of the links, which is created.
        is_parallel: whether MindFormers treats the processes as one parallel training.

    Returns:
        Value of `resume_training`: the file name of rank 0, or True.

    Raises:
        OSError: if the links cannot be created.
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
