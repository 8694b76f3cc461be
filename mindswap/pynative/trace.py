"""Trace of one step in PyNative mode: operators, tensors saved by autograd, and when backward read them.

`adapters.pynative.record` records it. A trace depends on its device: on CPU, operators copy strided inputs first, so
views are separate storages there.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from enum import Enum
from typing import Any

from mindswap.errors import DataError
from mindswap.policy.cell_tree import CellNode
from mindswap.pynative.step_memory import MemoryBlock, StepMemory, Task
from mindswap.pynative.trace_indices import require_memory_indices, require_trace_indices

HELD = "held"  # protection of a storage that other code still references at the end of forward


class EventKind(Enum):
    """Kinds of events that an executor observes."""

    FORWARD_BEGIN = "forward begin"  # of a layer
    SAVE = "save"  # autograd saves a tensor
    FORWARD_END = "forward end"
    BACKWARD_BEGIN = "backward begin"
    READ = "read"  # backward reads a saved tensor

    @property
    def is_of_save(self) -> bool:
        """Return whether the index of an event is that of a save."""
        return self in (EventKind.SAVE, EventKind.READ)


BACKWARD_KINDS = (EventKind.BACKWARD_BEGIN, EventKind.READ)  # the first of them ends forward


@dataclass(frozen=True)
class Event:
    """One event of a step."""

    kind: EventKind
    index: int  # index of the layer, or of the save in the trace
    num_operators: int  # operators started before, including backward; the clock of `backward_prefetch`


@dataclass(frozen=True)
class Value:
    """A tensor that an operator reads or writes."""

    memory: int  # number of its memory, in order of first use; equal for tensors that share memory
    size_bytes: int  # size of that memory
    shape: tuple[int, ...]  # shape of the tensor
    dtype: str
    weight: str = ""  # name of the parameter; "" if it is none
    copy_of: int | None = None  # memory of the view that a kernel copied; None for outputs of operators


@dataclass(frozen=True)
class Operator:
    """One operator of a step."""

    name: str  # primitive name, e.g. `MatMul`
    layer_index: int | None  # None outside the layers
    # path below the layer: names of cells and of the primitive, or its type if it is no attribute of a cell
    path: tuple[str, ...]
    is_forward: bool
    inputs: tuple[Value, ...] = ()  # empty unless the trace was recorded with values
    outputs: tuple[Value, ...] = ()
    # other attributes of its cell with primitives of this type, if the trace cannot tell which of them ran
    alternative_names: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """All possible paths of the operator."""
        return (self.path, *((*self.path[:-1], name) for name in self.alternative_names))


@dataclass(frozen=True)
class Save:
    """A tensor that autograd saves; one entry for each operator that needs it."""

    storage: int  # index in `Trace.storages`
    layer_index: int  # layer that is running
    operator: int  # index of the operator that saves it
    shape: tuple[int, ...]  # shape of the tensor, which may be a part of its storage
    dtype: str


@dataclass(frozen=True)
class TracedStorage:
    """Device memory that backward reads."""

    size_bytes: int  # size of the entire storage
    # index of the producer; None for memory of the caller and for copies that kernels make of views
    producer: int | None
    # index of the last forward operator that may read it; the last one of the layer if it has a view or is an input or
    # output of the layer, because readers of views are not recorded
    last_use: int
    # reason why it must stay on the device: "weight", "input", "output", `HELD`; "" if it may be swapped
    protection: str = ""
    memory: int | None = None  # its number in the values of operators; None if those were not recorded


@dataclass(frozen=True)
class Trace:
    """One forward and backward pass."""

    num_layers: int  # layers of the network
    operators: tuple[Operator, ...]  # in order of their start, forward before backward
    storages: tuple[TracedStorage, ...]  # in order of their first save
    saves: tuple[Save, ...]  # in order
    events: tuple[Event, ...]  # in order
    device: str = "CPU"  # device target, e.g. `CPU`

    def events_for_layers(self, layers: Sequence[int]) -> tuple[Event, ...]:
        """Return the events that an executor observes with hooks in some layers.

        These are starts and ends of all layers, and saves and reads of the given layers.
        """
        chosen = frozenset(layers)
        return tuple(
            event for event in self.events if not event.kind.is_of_save or self.saves[event.index].layer_index in chosen
        )


# File format of a recorded step: JSON with schema and version, including the configuration.

SCHEMA, SCHEMA_VERSION = "mindswap-trace", 2
_ALLOWED = "    allowed: a file that `mindswap trace` wrote"


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A recorded step and its configuration."""

    trace: Trace  # recorded with the values of operators
    layers: tuple[CellNode, ...]  # cell tree of each layer
    config: str  # configuration as YAML
    versions: dict[str, str] = field(default_factory=dict)  # versions of the recording software
    notes: tuple[str, ...] = ()  # differences between this step and a step of the training
    memory: StepMemory | None = None  # device memory of a whole step, of a dry run on Ascend; None for a CPU
    layer_indices: tuple[int, ...] = ()  # layers of a pipeline stage in the full model; empty without stages


def is_trace(data: object) -> bool:
    """Return whether plain data is a recorded step."""
    return isinstance(data, dict) and data.get("schema") == SCHEMA


def dump_trace(step: RecordedStep) -> str:
    """Return the text of the file."""
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
        **({"memory": step.memory.to_data()} if step.memory is not None else {}),
        **({"layer_indices": step.layer_indices} if step.layer_indices else {}),
    }
    return json.dumps(data, separators=(",", ":"), default=str) + "\n"


def _layer_indices(data: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the layers of a pipeline stage. Raises ValueError: there are more or fewer than it has."""
    indices = tuple(map(int, data.get("layer_indices", ())))
    if indices and len(indices) != num_layers:
        raise ValueError(f"layer_indices has {len(indices)} of {num_layers} layers")
    return indices


def load_trace(text: str, file: str) -> RecordedStep:
    """Read the output of `dump_trace`.

    Args:
        text: content of the file.
        file: its name, for error messages.

    Raises:
        DataError: if it is no trace, or has another version.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}:{error.colno}: no JSON: {error.msg}\n{_ALLOWED}") from error
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number with thousands of digits
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
        require_trace_indices(trace)
        memory = _step_memory(data["memory"], len(operators)) if "memory" in data else None
        texts = data["config"], dict(data["versions"]), tuple(data["notes"])
        return RecordedStep(trace, layers, *texts, memory, _layer_indices(data, len(layers)))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: the trace is damaged: {error!r}") from error


def _operator(row: list[Any]) -> Operator:
    name, layer_index, path, is_forward, inputs, outputs, alternative_names = row
    values = (tuple(map(_value, inputs)), tuple(map(_value, outputs)))
    return Operator(name, layer_index, tuple(path), is_forward, *values, tuple(alternative_names))


def _value(row: list[Any]) -> Value:
    memory, size_bytes, shape, dtype, weight, copy_of = row
    return Value(memory, size_bytes, tuple(shape), dtype, weight, copy_of)


def _step_memory(data: dict[str, Any], num_operators: int) -> StepMemory:
    """Return the step of `StepMemory.to_data`."""
    memory = StepMemory(
        tasks=tuple(Task(*row) for row in data["tasks"]),
        blocks=tuple(
            MemoryBlock(size, begin, end, tuple(uses), memory) for size, begin, end, uses, memory in data["blocks"]
        ),
        weight_bytes=data["weight_bytes"],
        state_bytes=data["state_bytes"],
        peak_bytes=data["peak_bytes"],
    )
    require_memory_indices(memory, num_operators)
    return memory


def _tree(node: CellNode) -> list[Any]:
    return [node.name, node.type_name, node.is_primitive, [_tree(child) for child in node.children]]


def _layer(row: list[Any]) -> CellNode:
    name, type_name, is_primitive, children = row
    return CellNode(name, type_name, is_primitive, tuple(_layer(child) for child in children))
