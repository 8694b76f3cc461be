"""Reader of kernels, steps and memory in the CSV tables of a profile. Columns are found by name, in any order.

Two spellings of kernels: `kernel_details.csv` of the profilers of MindSpore and torch_npu, and `op_summary*.csv` of
CANN's msprof, from which the first is made (mindspore/profiler/analysis/viewer/ascend_kernel_details_viewer.py).
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from mindswap.errors import CostError
from mindswap.files import csv_field_limit, package_data
from mindswap.graph.model import BYTES_PER_ELEMENT, TensorType
from mindswap.simulator.profile.profile import ProfiledKernel, Share, Transfer

# Callback for progress, called with the number of characters read since the last call.
Progress = Callable[[int], object]
CHUNK_CHARS = 2**20
# Type, engine, duration: as the profilers of frameworks and as msprof write them.
KERNEL_SPELLINGS = (("Type", "Accelerator Core", "Duration(us)"), ("OP Type", "Task Type", "Task Duration(us)"))
SHAPE_COLUMNS = ("Input Shapes", "Input Data Types", "Output Shapes", "Output Data Types")
# In older and in newer versions of CANN.
BLOCK_COLUMNS = ("Block Dim", "Block Num")
FORMAT_COLUMNS = ("Input Formats", "Output Formats")
STEP_COLUMNS = ("Computing", "Communication(Not Overlapped)", "Free")
MEMORY_COLUMNS = ("Component", "Total Allocated(MB)")
BLOCKS_COLUMN = "actual_peak_memory"
# Components of memory_record.csv that are the pool of the framework: MindSpore, torch_npu.
POOLS = ("MindSpore", "PTA")
DTYPES = {"FLOAT": "float32", "BF16": "bfloat16", "DOUBLE": "float64"}
# Tensor formats whose memory layout is given by the shape alone.
PLAIN_FORMATS = frozenset({"ND", "NCHW", "NHWC", "NCDHW", "NCL", ""})
# The shapes of an optimizer with hundreds of tensors are one field.
MAX_FIELD = 2**24
MAX_DIGITS = 10
NO_VALUE = ("", "N/A", "NA")


# Kinds of files of a profile, with the names and contents by which they are recognised.
FILES: Mapping[str, Any] = package_data("profile/files.yaml")


def recognise_table(path: Path) -> str | None:
    """Return the kind of a CSV file by its columns; None for any other file."""
    try:
        header = _header(path)
    except CostError:
        return None
    columns_by_kind = ((kind, its["columns"]) for kind, its in FILES["known"].items() if "columns" in its)
    return next((kind for kind, columns in columns_by_kind if header.issuperset(columns)), None)


def read_kernels(path: Path, progress: Progress | None = None) -> Iterator[ProfiledKernel]:
    """Yield every row of a table of kernels.

    Args:
        path: the CSV file.
        progress: called with numbers of characters that were read.

    Raises:
        CostError: if it has no shapes, or a row is invalid.
    """
    header = _header(path)
    spelling = next((names for names in KERNEL_SPELLINGS if set(names) - {names[1]} <= header), KERNEL_SPELLINGS[0])
    type_column, core_column, time_column = spelling
    missing = [column for column in SHAPE_COLUMNS if column not in header]
    if missing and {type_column, time_column} <= header:
        raise CostError(
            f"{path}: no columns {', '.join(missing)}\n    fix:     profile with profiler_level Level2: Level0 leaves "
            "out shapes, and Level1 the sizes of copies"
        )
    tensors = cache(_tensors)  # few distinct values
    columns = (core_column, *SHAPE_COLUMNS, *FORMAT_COLUMNS, *BLOCK_COLUMNS)
    for line, row in _rows(path, (type_column, time_column), columns, progress):
        inputs, outputs = (tensors(row[SHAPE_COLUMNS[i]], row[SHAPE_COLUMNS[i + 1]]) for i in (0, 2))
        is_plain = all(_is_plain(row.get(column, "")) for column in FORMAT_COLUMNS)
        duration = to_ns(f"{path}:{line}", row[time_column])
        core = row.get(core_column, "") or "AI_CORE"
        blocks = next((row[column] for column in BLOCK_COLUMNS if column in row), "")
        num_blocks = int(blocks) if blocks.isascii() and blocks.isdecimal() and len(blocks) < MAX_DIGITS else 0
        yield ProfiledKernel(
            type=row[type_column],
            duration_ns=duration,
            inputs=inputs,
            outputs=outputs,
            core=core,
            is_plain=is_plain,
            num_blocks=num_blocks,
        )


def read_steps(path: Path) -> Iterator[Share]:
    """Yield every step of a step_trace_time.csv."""
    for line, row in _rows(path, STEP_COLUMNS):
        yield Share(*(to_ns(f"{path}:{line}", row[column]) for column in STEP_COLUMNS))


def read_peak(path: Path) -> int | None:
    """Return the peak use of the memory pool in bytes, from a file of the memory tracker or of the profiler."""
    if BLOCKS_COLUMN in _header(path):
        rows = _rows(path, (BLOCKS_COLUMN,))
        return max((int(number(f"{path}:{line}", row[BLOCKS_COLUMN])) for line, row in rows), default=None)
    used = [
        number(f"{path}:{line}", row[MEMORY_COLUMNS[1]])
        for line, row in _rows(path, MEMORY_COLUMNS)
        if row["Component"] in POOLS
    ]
    return int(max(used) * 2**20) if used else None


def to_ns(place: str, text: str) -> int:
    """Convert microseconds to integer nanoseconds.

    Args:
        place: position in the file, for the message.
        text: microseconds as text.

    Raises:
        CostError: if it is no number.
    """
    return int(number(place, text) * 1000)


def number(place: str, text: str) -> Decimal:
    """Parse a finite number that is not negative.

    Raises:
        CostError: if it is none.
    """
    try:
        value = Decimal(text.strip())
        if not value.is_finite() or not 0 <= value < 10**18:
            raise InvalidOperation
    except InvalidOperation:
        raise CostError(f"{place}: {text[:40]!r} is no time or size") from None
    return value


def _tensors(shapes: str, dtypes: str) -> tuple[TensorType, ...] | None:
    """Parse `"4096,128;11008,128"` and `FLOAT16;FLOAT16` to types; None if they are invalid."""
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
        if any(dim < 0 for dim in shape):
            return None  # unknown until it runs
        tensors.append(TensorType.of(shape, dtype))
    return tuple(tensors) or None


def _is_plain(formats: str) -> bool:
    names = (name.strip().removeprefix("FORMAT_").upper() for name in formats.strip('"').split(";"))
    return all(name in PLAIN_FORMATS or name in NO_VALUE or name in ("NULL", "UNDEFINED") for name in names)


def _header(path: Path) -> set[str]:
    for row in _read(path):
        return {name.strip() for name in row}
    return set()


def _rows(
    path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = (), progress: Progress | None = None
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield rows of a CSV file with their line numbers: required columns, and optional ones if present.

    Values are stripped of the tabs that keep spreadsheets from rounding.
    """
    missing = [column for column in needed if column not in _header(path)]
    if missing:
        raise CostError(f"{path}: is no {path.name} of a profiler: no column {', '.join(missing)}")
    lines = _read(path, progress)
    names = [name.strip() for name in next(lines)]
    present_columns = [(name, names.index(name)) for name in (*needed, *optional) if name in names]
    for line, row in enumerate(lines, 2):
        if row:
            row += [""] * len(names)  # a line may end early
            yield line, {name: row[index].strip() for name, index in present_columns}


def _lines(stream: TextIO, progress: Progress | None) -> Iterator[str]:
    """Yield lines of bounded length, because a file that is no table may have no line ends."""
    num_chars = 0
    while line := stream.readline(MAX_FIELD):
        if len(line) == MAX_FIELD:
            raise csv.Error(f"a line has more than {MAX_FIELD} characters")
        num_chars += len(line)
        if progress and num_chars >= CHUNK_CHARS:
            progress(num_chars)
            num_chars = 0
        yield line
    if progress:
        progress(num_chars)


def _read(path: Path, progress: Progress | None = None) -> Iterator[list[str]]:
    try:
        with csv_field_limit(MAX_FIELD), path.open(newline="", encoding="utf-8-sig") as stream:
            yield from csv.reader(_lines(stream, progress), skipinitialspace=True)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CostError(f"{path}: cannot be read: {error}") from error


# Transfers of collectives by kind of link, from `communication.json` of a profile.
#
# The file has steps, then `p2p` and `collective`, then operators; msprof's own has the operators at the top. The links
# of one kind work in parallel, and `Transit Time` is their sum: size / time is what one link reaches. SDMA is the sum
# of HCCS, PCIE and SIO, so it is left out. Tasks that reduce while they move were not counted before CANN 8, so a
# ReduceScatter may have nothing.

LINKS = ("HCCS", "RDMA", "PCIE", "SIO")
TIMES, LINK_FIGURES = "Communication Time Info", "Communication Bandwidth Info"
MAX_BYTES = 2**28
MAX_DEPTH = 3


def read_transfers(path: Path) -> tuple[Transfer, ...]:
    """Read every collective and kind of link with transferred bytes from a communication.json.

    Raises:
        CostError: if the file is invalid, or larger than 256 MiB, because it is loaded at once.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            limit = f"at most {MAX_BYTES >> 20} are read"
            raise CostError(f"{path}: has {size >> 20} MiB, {limit}\n    fix:     profile fewer steps")
        data = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise CostError(f"{path}: is no communication.json of a profiler: {error}") from error
    return tuple(transfer for name, entry in _operators(path, data) for transfer in _transfers(path, name, entry))


def _operators(path: Path, data: Any, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(data, dict):
        raise CostError(f"{path}: is no communication.json of a profiler: no object where steps or operators stand")
    for name, entry in data.items():
        if isinstance(entry, dict) and LINK_FIGURES in entry:
            if not name.startswith("Total"):
                yield name, entry
        elif depth < MAX_DEPTH:
            yield from _operators(path, entry, depth + 1)


def _transfers(path: Path, name: str, entry: Mapping[str, Any]) -> Iterator[Transfer]:
    place = f"{path}: {name[:80]}"
    for link in LINKS:
        figures = _object(place, entry[LINK_FIGURES]).get(link)
        if figures is None:
            continue
        figures = _object(place, figures)
        size = int(number(place, str(figures.get("Transit Size(MB)", ""))) * 10**6)
        if size:
            link_ns = to_ns(place, str(figures.get("Transit Time(ms)", ""))) * 1000
            elapsed = _object(place, entry.get(TIMES, {})).get("Elapse Time(ms)", 0)
            yield Transfer(name.partition("@")[0], link, size, link_ns, to_ns(place, str(elapsed)) * 1000)


def _object(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CostError(f"{place}: no object where figures of links stand")
    return value
