"""A calibrated device as a file, and the measured durations in such a file.

The file is a device file (`device_file.load_device` reads it) with two more keys: `calibration` says where it
is from, `measured` has one entry for each operator with its types.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from mindswap.config.nodes import DocumentNode, to_data
from mindswap.config.parse import parse_file
from mindswap.errors import CostError
from mindswap.graph.model import BYTES_PER_ELEMENT
from mindswap.simulator.cost.cost_table import MeasuredKey, Measurement, Shapes
from mindswap.simulator.cost.device_file import find_device_file
from mindswap.simulator.cost.hardware import FIGURES, Device, Figure, figure_values, unit_keys

ENTRY_KEYS = ("op", "inputs", "outputs", "duration_ns", "count")


def format_device_file(
    device: Device, header: Mapping[str, object], measurements: Iterable[Measurement], comment: str = ""
) -> str:
    """Format a device file with its measured operators.

    Args:
        device: calibrated device.
        header: plain values for the key `calibration`.
        measurements: durations of operators.
        comment: first line of the file; "" for none.
    """
    lines = [f"# {comment}"] if comment else []
    lines.append(f"title: {_quote(device.title)}")
    for name, value in figure_values(device).items():
        key, number = _written(FIGURES[name], value)
        lines.append(f"{key}: {{value: {number}, source: {_quote(device.sources.get(name, ''))}}}")
    lines.append("calibration:")
    lines += [f"  {key}: {json.dumps(value)}" for key, value in header.items()]
    lines.append("measured:")
    lines += [f"- {_format_entry(measurement)}" for measurement in measurements] or ["  []"]
    return "\n".join(lines) + "\n"


def _written(figure: Figure, value: int) -> tuple[str, str]:
    """Return the key, with its unit, and the number of a figure, which are read back as the same value."""
    keys = unit_keys(figure)
    for unit in figure.kind.written:
        key = f"{figure.name}_{unit}" if unit else figure.name
        number = Decimal(value) / keys[key]
        # YAML numbers are floats, which are exact to 15 digits only.
        if int(Decimal(repr(float(number))) * keys[key]) == value:
            return key, f"{number:f}"
    raise ValueError(f"{figure.name}: {value} has too many digits")


def _format_entry(measurement: Measurement) -> str:
    key = measurement.key
    inputs, outputs = (", ".join(_format_tensors(shapes)) for shapes in (key.inputs, key.outputs))
    duration_text = f"duration_ns: {measurement.duration_ns}, count: {measurement.count}"
    return f"{{op: {_quote(key.op)}, inputs: [{inputs}], outputs: [{outputs}], {duration_text}}}"


def _format_tensors(shapes: Shapes) -> Iterator[str]:
    """Yield tensors as the reader parses them: `float16 4096x128`."""
    for shape, dtype in shapes:
        yield f"{dtype} {'x'.join(map(str, shape))}"


def _quote(text: str) -> str:
    """Return a YAML string in double quotes, which is a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def load_measured(name_or_path: str | os.PathLike[str]) -> dict[MeasuredKey, int]:
    """Load the measured durations of a device file, in ns; empty for a device without any.

    Raises:
        CostError: if entries are invalid; the text lists them.
    """
    document = parse_file(os.fspath(find_device_file(name_or_path)))
    section = document.get("measured")
    if section is None or section.is_null:
        return {}
    if section.items is None:
        raise CostError(f"{section.location}: measured: is no list")
    measured: dict[MeasuredKey, int] = {}
    wrong = []
    for node in section.items:
        try:
            key, duration_ns = _read_entry(node)
            measured[key] = duration_ns
        except ValueError as error:
            wrong.append(f"{node.location}: measured: {error}")
    if wrong:
        raise CostError("\n".join(wrong[:20]))
    return measured


def _read_entry(node: DocumentNode) -> tuple[MeasuredKey, int]:
    entry = to_data(node)
    if not isinstance(entry, dict) or set(entry) != set(ENTRY_KEYS):
        raise ValueError(f"write {{{', '.join(ENTRY_KEYS)}}}")
    op, duration_ns = entry["op"], entry["duration_ns"]
    if not isinstance(op, str) or type(duration_ns) is not int or duration_ns < 0:
        raise ValueError("op is a name, duration_ns a whole number")
    inputs, outputs = (tuple(_read_tensors(key, entry[key])) for key in ("inputs", "outputs"))
    return MeasuredKey(op, inputs, outputs), duration_ns


def _read_tensors(key: str, texts: Any) -> Iterator[tuple[tuple[int, ...], str]]:
    for text in texts if isinstance(texts, list) else ():
        dtype, _, dims = str(text).partition(" ")
        parts = dims.split("x")
        if dtype not in BYTES_PER_ELEMENT or not all(part.isdecimal() for part in parts):
            raise ValueError(f"{key}: '{text}' is no tensor such as 'float16 4096x128'")
        yield tuple(map(int, parts)), dtype
