"""Writer of token samples in MindRecord, the format of MindSpore's MindDataset.

MindSpore writes in a separate process (`python -m mindswap.adapters.mindrecord PATH LENGTH COLUMN...`), because it ends
with a segmentation fault on some write errors, such as a full disk, and its output would disturb the progress bar. The
samples are sent through a pipe in frames: the size in bytes, then int32 tokens. A frame of size 0 marks the end.
"""

import contextlib
import importlib.util
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path

from mindswap.config.nodes import Document
from mindswap.config.step_settings import read_step_settings
from mindswap.errors import DataError, LaunchError
from mindswap.runtime.short_run import SyntheticData
from mindswap.runtime.text.samples import cut_columns, data_columns, vocabulary_size
from mindswap.system.children import module_command, started
from mindswap.system.environment import package_environment

INDEX_SUFFIX = ".db"
SYNTHETIC_NAME = "synthetic.mindrecord"
# Few distinct tokens, so that a model learns within a few steps that the others do not occur.
NUM_TOKENS = 64
SEED = 0
# A sample must fit in a MindRecord page of 32 MiB, with up to 5 bytes per token.
MAX_SAMPLE_LENGTH = (1 << 20) + 1
_TOKENS_PER_WRITE = 1 << 18
_FRAME_SIZE = struct.Struct("=Q")


def require_mindspore() -> None:
    """Require that MindSpore is installed, without importing it.

    Raises:
        DataError: with the command that installs it.
    """
    if importlib.util.find_spec("mindspore") is None:
        raise DataError(
            "writing a MindRecord needs MindSpore, which is not installed\n"
            "    fix:     pip install mindspore==2.9.0, or on Ascend the MindSpore that matches your CANN"
        )


class MindRecordWriter:
    """Context manager that writes one MindRecord with int32 columns.

    It writes `path` and `path` + ".db", which are complete when the context ends without an exception. Both contain the
    file name, so they can be moved but not renamed.

    Args:
        path: a new file in an existing folder.
        seq_length: sequence length of the model; a sample has one more token.
        columns: names that the model reads: one column of all tokens, or several of seq_length numbers.
    """

    def __init__(self, path: Path, seq_length: int, columns: Sequence[str]):
        self.columns = tuple(columns)
        self._path = path
        self._num_tokens = seq_length + 1
        num_written = seq_length + 1 if len(columns) == 1 else len(columns) * seq_length
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 closed in __exit__
        command = module_command(__name__, str(path), str(num_written), *self.columns)
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": self._messages}
        self._stack = contextlib.ExitStack()
        variables = {**package_environment(), "GLOG_v": "3"}  # errors only
        self._process = self._stack.enter_context(started(command, variables, **streams))

    def __enter__(self) -> "MindRecordWriter":
        return self

    def write(self, samples: "array[int]") -> None:
        """Append samples.

        Args:
            samples: tokens, type code 'i', shape (n * (seq_length + 1),).

        Raises:
            DataError: if MindSpore cannot write, for example because the disk is full.
        """
        if len(self.columns) == 1:
            self._send(samples.tobytes())
            return
        for start in range(0, len(samples), self._num_tokens):
            self._send(cut_columns(samples[start : start + self._num_tokens], len(self.columns)).tobytes())

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None:
                self._send(b"")
                if self._process.wait():
                    raise self._failure()
        finally:
            self._stack.close()
            self._messages.close()

    def _send(self, data: bytes) -> None:
        if self._process.stdin is None:
            raise AssertionError("the writer was started without a pipe")
        try:
            self._process.stdin.write(_FRAME_SIZE.pack(len(data)))
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            self._process.wait()
            raise self._failure() from error

    def _failure(self) -> DataError:
        code = self._process.returncode
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").split("\n")
        reason = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        if code < 0:
            reason = f"it was ended by {signal.Signals(-code).name}; is the disk full, or the memory?"
        free_mib = shutil.disk_usage(self._path.parent).free >> 20
        return DataError(
            f"MindSpore cannot write the MindRecord: {reason}\n    free in {self._path.parent.parent}: {free_mib} MiB"
        )


def main() -> int:
    """Run the writer process: read frames from standard input into a MindRecord."""
    path, sample_length, columns = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    try:
        return _write(path, sample_length, columns)
    except Exception as error:  # noqa: BLE001 MindSpore raises RuntimeError and classes of its own
        lines = str(error).splitlines() or [type(error).__name__]
        reason = next((line for line in lines if "[ERROR]" in line), lines[0])
        print(f"\n{reason.replace('[ERROR] ', '')}", file=sys.stderr)  # noqa: T201 a process of its own
        return 1


def _write(path: str, sample_length: int, columns: Sequence[str]) -> int:
    import numpy as np
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(path, shard_num=1, overwrite=False)
    writer.add_schema({column: {"type": "int32", "shape": [-1]} for column in columns}, "token samples")
    num_samples = 0
    step = max(1, _TOKENS_PER_WRITE // sample_length)
    while size := _FRAME_SIZE.unpack(sys.stdin.buffer.read(_FRAME_SIZE.size))[0]:
        rows = np.frombuffer(sys.stdin.buffer.read(size), dtype=np.int32)
        rows = rows.reshape(-1, len(columns), sample_length // len(columns))
        for start in range(0, len(rows), step):
            writer.write_raw_data([dict(zip(columns, row, strict=True)) for row in rows[start : start + step]])
        num_samples += len(rows)
    writer.commit()
    with contextlib.closing(sqlite3.connect(path + INDEX_SUFFIX)) as index:
        (num_written,) = index.execute("SELECT COUNT(*) FROM INDEXES").fetchone()
    if num_written != num_samples:
        raise RuntimeError(f"{num_written} of {num_samples} samples reached the file")
    return 0


def write_synthetic_data(folder: Path, document: Document, num_steps: int) -> SyntheticData:
    """Write random samples for a number of steps, equal for every call.

    Args:
        folder: of the new file.
        document: the configuration.
        num_steps: steps of the training.

    Raises:
        LaunchError: if the configuration lacks the size of the vocabulary.
        DataError: if the samples cannot be written.
    """
    settings, vocab_size = read_step_settings(document), vocabulary_size(document)
    if vocab_size < 2:
        raise LaunchError(
            "model.model_config.vocab_size: is missing, so no data can be made\n"
            "    fix:     write it, or name your data"
        )
    require_mindspore()
    numbers = random.Random(SEED)
    choices = range(min(3, vocab_size - 1), min(NUM_TOKENS, vocab_size))
    # One extra step, because the data set reads ahead.
    num_samples = (num_steps + 1) * settings.num_tokens // settings.seq_length
    path = (folder / SYNTHETIC_NAME).absolute()
    with MindRecordWriter(path, settings.seq_length, data_columns(document)) as writer:
        for _ in range(num_samples):
            writer.write(array("i", numbers.choices(choices, k=settings.seq_length + 1)))
    return SyntheticData(str(path), writer.columns)


if __name__ == "__main__":
    sys.exit(main())
