"""One step in PyNative mode as it ran: operators, what autograd saved, and when it was read again. Plain data.

Recorded by `adapters.pynative.record`. A trace is made on one device, and says which: on CPU an operator copies a
strided input first, so views are storages of their own there.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from enum import Enum
from typing import Any

from mindswap.errors import DataError
from mindswap.policy.cell_tree import CellNode

HELD = "held"  # protection of a storage that other code still shows when forward is over


class EventKind(Enum):
    """Moments of a step of which an executor is told."""

    FORWARD_BEGIN = "forward begin"  # of a layer
    SAVE = "save"  # autograd keeps a tensor
    FORWARD_END = "forward end"
    BACKWARD_BEGIN = "backward begin"
    READ = "read"  # backward takes a saved tensor


BACKWARD_KINDS = (EventKind.BACKWARD_BEGIN, EventKind.READ)  # the first of them ends forward


@dataclass(frozen=True)
class Event:
    """One moment of a step."""

    kind: EventKind  # what happens
    index: int  # of the layer, or of the save, in the order of a step
    num_operators: int  # operators that had begun before, those of backward included; the clock of `backward_prefetch`


@dataclass(frozen=True)
class Value:
    """A tensor that an operator takes or gives."""

    memory: int  # number of its piece of memory, in order of first sight; tensors that share one have the same
    size_bytes: int  # of the whole piece
    shape: tuple[int, ...]  # of the tensor
    dtype: str
    weight: str = ""  # name of the parameter; "" for no weight
    copy_of: int | None = None  # memory of the view that it is a kernel's own copy of; None for what an operator made


@dataclass(frozen=True)
class Operator:
    """One operator of a step."""

    name: str  # primitive name, e.g. `MatMul`
    layer_index: int | None  # None outside the layers
    # below the layer: names of cells, then that of the primitive; its primitive name if no cell holds it
    path: tuple[str, ...]
    is_forward: bool  # forward or backward
    inputs: tuple[Value, ...] = ()  # empty where the trace was recorded to be executed only
    outputs: tuple[Value, ...] = ()
    alternative_names: tuple[
        str, ...
    ] = ()  # other names of its cell for primitives of this type: which of them ran is not known

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """All that may be its path."""
        return (self.path, *((*self.path[:-1], name) for name in self.alternative_names))


@dataclass(frozen=True)
class Save:
    """A tensor that autograd keeps, once for each operator that needs it."""

    storage: int  # index in `Trace.storages`
    layer_index: int  # layer that runs at that moment
    operator: int  # index of the operator that saves it
    shape: tuple[int, ...]  # of the tensor, which may be a part of its storage
    dtype: str


@dataclass(frozen=True)
class TracedStorage:
    """A piece of device memory that backward needs."""

    size_bytes: int  # of the whole storage
    # index of the operator that made it; None for what the caller owns, and copies that kernels make of views
    maker: int | None
    # index of the last operator of forward that may read it. Of what has a view, or goes in or out of a layer, that is
    # the last one of the layer: uses of a view cannot be told
    last_use: int
    # why it may not leave the device: "weight", "input", "output", `HELD`; "" if it may
    protection: str = ""
    memory: int | None = None  # its number in the values of operators; None where these were not recorded


@dataclass(frozen=True)
class Trace:
    """One forward and backward pass."""

    num_layers: int  # layers of the network
    operators: tuple[Operator, ...]  # in the order in which they began, forward before backward
    storages: tuple[TracedStorage, ...]  # in order of their first save
    saves: tuple[Save, ...]  # in order
    events: tuple[Event, ...]  # in order
    device: str = "CPU"  # where it was recorded, e.g. `CPU`

    def events_for_layers(self, layers: Sequence[int]) -> tuple[Event, ...]:
        """Events for an executor with hooks in some layers only: begins and ends of all layers, saves and reads of
        these."""
        chosen = frozenset(layers)
        return tuple(
            event
            for event in self.events
            if event.kind not in (EventKind.SAVE, EventKind.READ) or self.saves[event.index].layer_index in chosen
        )


# A recorded step as a file: JSON with a schema and a version, and the configuration that it is of.

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
    """True if plain data is a recorded step."""
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
    """Read what `dump_trace` has written; the name of the file is for messages.

    Raises:
        DataError: it is no trace, or one of another version.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}:{error.colno}: no JSON: {error.msg}\n{_ALLOWED}") from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of thousands of digits
        raise DataError(f"{file}: no JSON of ours: {error}\n{_ALLOWED}") from error
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
        if trace.num_layers != len(layers):
            raise ValueError(f"num_layers is {trace.num_layers!r:.60}, and there are {len(layers)} layers")
        return RecordedStep(trace, layers, data["config"], dict(data["versions"]), tuple(data["notes"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: the trace is damaged: {error!r}") from error


def _operator(row: list[Any]) -> Operator:
    name, layer_index, path, is_forward, inputs, outputs, alternative_names = row
    values = (tuple(map(_value, inputs)), tuple(map(_value, outputs)))
    return Operator(name, layer_index, tuple(path), is_forward, *values, tuple(alternative_names))


def _value(row: list[Any]) -> Value:
    memory, size_bytes, shape, dtype, weight, copy_of = row
    return Value(memory, size_bytes, tuple(shape), dtype, weight, copy_of)


def _tree(node: CellNode) -> list[Any]:
    return [node.name, node.type_name, node.is_primitive, [_tree(child) for child in node.children]]


def _layer(row: list[Any]) -> CellNode:
    name, type_name, is_primitive, children = row
    return CellNode(name, type_name, is_primitive, tuple(_layer(child) for child in children))
