"""A recorded step as a file: JSON with a schema and a version, and the configuration that it is of. Pure."""

import json
from dataclasses import astuple, dataclass, field
from typing import Any

from mindswap.errors import DataError
from mindswap.policy.cell_tree import CellNode
from mindswap.pynative.trace import Event, EventKind, Operator, Save, Trace, TracedStorage, Value

SCHEMA, SCHEMA_VERSION = "mindswap-trace", 2
_ALLOWED = "    allowed: a file that `mindswap trace` wrote"


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A step and what it is of."""

    trace: Trace  # with the values of operators
    layers: tuple[CellNode, ...]  # tree of each layer
    config: str  # the configuration, as YAML
    versions: dict[str, str] = field(default_factory=dict)  # of what recorded it
    notes: tuple[str, ...] = ()  # where the step differs from the one that trains, in words


def is_trace(data: object) -> bool:
    """Whether plain data is a recorded step."""
    return isinstance(data, dict) and data.get("schema") == SCHEMA


def dump_trace(step: RecordedStep) -> str:
    """The text of the file."""
    data = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "device": step.trace.device,
        "versions": step.versions,
        "notes": list(step.notes),
        "num_layers": step.trace.num_layers,
        "operators": [astuple(operator) for operator in step.trace.operators],
        "storages": [astuple(storage) for storage in step.trace.storages],
        "saves": [astuple(save) for save in step.trace.saves],
        "events": [[event.kind.value, event.index, event.num_operators] for event in step.trace.events],
        "layers": [_tree(layer) for layer in step.layers],
        "config": step.config,
    }
    return json.dumps(data, separators=(",", ":"), default=str) + "\n"


def load_trace(text: str, file: str) -> RecordedStep:
    """What `dump_trace` has written; the name of the file is for messages.

    Raises:
        DataError: it is no trace, or one of another version.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}:{error.colno}: no JSON: {error.msg}\n{_ALLOWED}") from error
    if not is_trace(data):
        raise DataError(f"{file}: no trace of a step\n{_ALLOWED}")
    if data.get("version") != SCHEMA_VERSION:
        raise DataError(f"{file}: version {data.get('version')} of a trace\n    allowed: {SCHEMA_VERSION}\n"
                        "    fix:     record it again with `mindswap trace`")  # fmt: skip
    try:
        operators = tuple(_operator(row) for row in data["operators"])
        trace = Trace(
            data["num_layers"],
            operators,
            tuple(TracedStorage(*row) for row in data["storages"]),
            tuple(Save(storage, layer, at, tuple(shape), dtype) for storage, layer, at, shape, dtype in data["saves"]),
            tuple(Event(EventKind(kind), index, count) for kind, index, count in data["events"]),
            data["device"],
        )
        layers = tuple(_layer(tree) for tree in data["layers"])
        return RecordedStep(trace, layers, data["config"], dict(data["versions"]), tuple(data["notes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: the trace is damaged: {error!r}") from error


def _operator(row: list[Any]) -> Operator:
    name, layer_index, path, is_forward, inputs, outputs, also = row
    values = (tuple(map(_value, inputs)), tuple(map(_value, outputs)))
    return Operator(name, layer_index, tuple(path), is_forward, *values, tuple(also))


def _value(row: list[Any]) -> Value:
    memory, size_bytes, shape, dtype, weight, copy_of = row
    return Value(memory, size_bytes, tuple(shape), dtype, weight, copy_of)


def _tree(node: CellNode) -> list[Any]:
    return [node.name, node.type_name, node.is_primitive, [_tree(child) for child in node.children]]


def _layer(row: list[Any]) -> CellNode:
    name, type_name, is_primitive, children = row
    return CellNode(name, type_name, is_primitive, tuple(_layer(child) for child in children))
