"""What MindSpore's profiler writes on Ascend -> kernels, copies, steps. Pure data, nothing judged.

The folder is `<profile>/<host>_..._ascend_ms/ASCEND_PROFILER_OUTPUT`. Columns are those of MindSpore 2.9
(`mindspore/profiler/analysis/viewer/`) and, for copies in `trace_view.json`, of CANN's msprof
(`ascend_hardware_assembler.cpp`).
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from mindswap.cost.measured import BYTES_PER_ELEMENT
from mindswap.errors import CostError
from mindswap.graph.model import TensorType

__all__ = ["Copy", "Kernel", "Profile", "find_profile", "load_profile"]

OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"
KERNELS_FILE, TRACE_FILE, STEPS_FILE = "kernel_details.csv", "trace_view.json", "step_trace_time.csv"
MEMORY_FILE, BLOCKS_FILE = "memory_record.csv", "memory_block.csv"
# Written by MindSpore before 2.4; has no shapes.
OLD_KERNELS_PATTERN = "aicore_intermediate_*"
SHAPE_COLUMNS = ("Input Shapes", "Input Data Types", "Output Shapes", "Output Data Types")
COMMUNICATION_CORES = ("HCCL", "COMMUNICATION")
DIRECTIONS = {"device to host": True, "host to device": False}
DTYPES = {"FLOAT": "float32", "BF16": "bfloat16", "DOUBLE": "float64"}


@dataclass(frozen=True)
class Kernel:
    """One run of a kernel.

    Attributes:
        type: kernel of CANN, e.g. `MatMulV2`.
        duration_ns: on the device.
        inputs, outputs: tensors; None where the profile has none that can be read.
        is_communication: a collective.
    """

    type: str
    duration_ns: int
    inputs: tuple[TensorType, ...] | None
    outputs: tuple[TensorType, ...] | None
    is_communication: bool


@dataclass(frozen=True)
class Copy:
    """One copy between device and host."""

    start_ns: int
    duration_ns: int
    size_bytes: int
    is_out: bool


@dataclass(frozen=True)
class Profile:
    """What a profile says of one rank.

    Attributes:
        folder: where it was read.
        kernels: every run of a kernel.
        copies: copies between device and host whose size is known, in order of start.
        steps_ns: duration of each step.
        peak_memory_bytes: highest use of the memory pool; None if memory was not profiled.
        notes: what is missing, and what it would be good for.
    """

    folder: str
    kernels: tuple[Kernel, ...]
    copies: tuple[Copy, ...]
    steps_ns: tuple[int, ...]
    peak_memory_bytes: int | None
    notes: tuple[str, ...]


def find_profile(path: Path) -> Path:
    """The folder with the files, from the folder that the profiler was given, that of a rank, or itself.

    Raises:
        CostError: if there is none, or more than one.
    """
    if not path.is_dir():
        raise CostError(f"{path}: no such folder\n    fix:     name the output_path that the profiler was given")
    if (path / KERNELS_FILE).is_file():
        return path
    found = sorted({file.parent for file in path.glob(f"**/{OUTPUT_FOLDER}/{KERNELS_FILE}")})
    if len(found) == 1:
        return found[0]
    if found:
        names = "\n".join(f"    {folder.parent.name}" for folder in found)
        raise CostError(f"{path}: profiles of {len(found)} ranks; name the folder of one:\n{names}")
    if any(path.glob(f"**/{OLD_KERNELS_PATTERN}")):
        raise CostError(
            f"{path}: this profile is of a MindSpore before 2.4 and says nothing about shapes\n"
            "    fix:     profile with MindSpore 2.9 and profiler_level=ProfilerLevel.Level1"
        )
    raise CostError(
        f"{path}: no {OUTPUT_FOLDER}/{KERNELS_FILE} below it\n"
        "    fix:     name the output_path of mindspore.Profiler; a profile that was not analysed yet needs\n"
        "             mindspore.profiler.profiler.analyse(output_path)"
    )


def load_profile(path: Path) -> Profile:
    """Read the profile of one rank.

    Raises:
        CostError: if there is none, or a file is not what the profiler writes.
    """
    folder = find_profile(path)
    notes: list[str] = []
    kernels = tuple(_read_kernels(folder / KERNELS_FILE))
    copies: tuple[Copy, ...] = ()
    if (folder / TRACE_FILE).is_file():
        copies = tuple(sorted(_read_copies(folder / TRACE_FILE, notes), key=lambda copy: copy.start_ns))
    else:
        notes.append(f"no {TRACE_FILE}: the links to the host keep their figures")
    steps = tuple(_read_steps(folder / STEPS_FILE)) if (folder / STEPS_FILE).is_file() else ()
    return Profile(str(folder), kernels, copies, steps, _read_peak(folder), tuple(notes))


def _read_kernels(path: Path) -> Iterator[Kernel]:
    for line, row in _rows(path, ("Type", "Duration(us)")):
        if any(column not in row for column in SHAPE_COLUMNS):
            raise CostError(
                f"{path}: no columns {', '.join(column for column in SHAPE_COLUMNS if column not in row)}\n"
                "    fix:     profile with profiler_level=ProfilerLevel.Level1: Level0 leaves them out"
            )
        core = row.get("Accelerator Core", "")
        inputs, outputs = (_tensors(row[SHAPE_COLUMNS[i]], row[SHAPE_COLUMNS[i + 1]]) for i in (0, 2))
        is_communication = core in COMMUNICATION_CORES or row["Type"].lower().startswith("hcom")
        yield Kernel(row["Type"], _ns(path, line, row["Duration(us)"]), inputs, outputs, is_communication)


def _tensors(shapes: str, dtypes: str) -> tuple[TensorType, ...] | None:
    """`"4096,128;11008,128"` and `FLOAT16;FLOAT16` as types; None if they cannot be read."""
    shape_texts, dtype_texts = (text.strip().strip('"').split(";") for text in (shapes, dtypes))
    if len(shape_texts) != len(dtype_texts):
        return None
    tensors = []
    for shape_text, dtype_text in zip(shape_texts, dtype_texts, strict=True):
        name = dtype_text.strip().removeprefix("DT_").upper()
        dtype = DTYPES.get(name, name.lower())
        if not shape_text.strip() or dtype not in BYTES_PER_ELEMENT:
            continue  # an optional input that is not there, a scalar
        try:
            shape = tuple(int(dim) for dim in shape_text.split(","))
        except ValueError:
            return None
        tensors.append(TensorType(shape, dtype, math.prod(shape) * BYTES_PER_ELEMENT[dtype]))
    return tuple(tensors) or None


def _read_copies(path: Path, notes: list[str]) -> Iterator[Copy]:
    try:
        data = json.loads(path.read_text("utf-8"))
        events = data["traceEvents"] if isinstance(data, dict) else data
        copies = [event for event in events if event.get("ph") == "X" and event.get("name") == "MEMCPY_ASYNC"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CostError(f"{path}: is no trace of the profiler: {error}") from error
    num_unsized = 0
    for event in copies:
        args = event.get("args") or {}
        direction = DIRECTIONS.get(str(args.get("operation", "")).lower())
        if "size(B)" not in args:
            num_unsized += 1
        elif direction is not None and args["size(B)"]:
            start, duration = (_ns(path, None, str(event.get(key, ""))) for key in ("ts", "dur"))
            yield Copy(start, duration, int(args["size(B)"]), direction)
    if num_unsized:
        notes.append(f"{TRACE_FILE}: {num_unsized} copies without a size were left out")


def _read_steps(path: Path) -> Iterator[int]:
    columns = ("Computing", "Communication(Not Overlapped)", "Free")
    for line, row in _rows(path, columns):
        yield sum(_ns(path, line, row[column]) for column in columns)


def _read_peak(folder: Path) -> int | None:
    """Highest use of the memory pool, from the file of the memory tracker or that of the profiler."""
    for parent in (folder, folder.parent):
        path = parent / BLOCKS_FILE
        if path.is_file():
            column = "actual_peak_memory"
            return max((int(_number(path, line, row[column])) for line, row in _rows(path, (column,))), default=None)
    path = folder / MEMORY_FILE
    if not path.is_file():
        return None
    used = [
        _number(path, line, row["Total Allocated(MB)"])
        for line, row in _rows(path, ("Component", "Total Allocated(MB)"))
        if row["Component"] == "MindSpore"
    ]
    return int(max(used) * 2**20) if used else None


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Rows of a CSV file with their lines; values without the tabs that keep spreadsheets from rounding."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            missing = [column for column in needed if column not in (reader.fieldnames or ())]
            if missing:
                raise CostError(f"{path}: is no {path.name} of MindSpore's profiler: no column {', '.join(missing)}")
            for row in reader:
                yield (
                    reader.line_num,
                    {key: (value or "").strip() for key, value in row.items() if isinstance(key, str)},
                )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CostError(f"{path}: cannot be read: {error}") from error


def _ns(path: Path, line: int | None, text: str) -> int:
    """Microseconds as integer nanoseconds."""
    return int(_number(path, line, text) * 1000)


def _number(path: Path, line: int | None, text: str) -> Decimal:
    try:
        number = Decimal(text.strip())
        if not number.is_finite() or number < 0:
            raise InvalidOperation
    except InvalidOperation:
        where = f"{path}:{line}" if line else str(path)
        raise CostError(f"{where}: {text!r} is no time or size") from None
    return number
