"""Indices in the file of a recorded step: each has to be that of a task, an operator, a layer, a save or a storage."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mindswap.pynative.step_memory import BACKWARD, FORWARD, NO_OPERATOR, OPTIMIZER, StepMemory

if TYPE_CHECKING:
    from mindswap.pynative.trace import Trace

PHASES = (FORWARD, BACKWARD, OPTIMIZER)
# Above all sizes in bytes and all numbers of memories.
MAX_SIZE = 1 << 62
_Row = tuple[str, object, int, int]  # what it is, index, smallest one, number behind the largest one


def require_trace_indices(trace: "Trace") -> None:
    """Check the indices of a trace.

    Args:
        trace: as read from a file.

    Raises:
        ValueError: an index is wrong.
    """
    _require(_trace_rows(trace))
    saved = {save.storage for save in trace.saves}
    if len(saved) != len(trace.storages):
        raise ValueError(f"{len(trace.storages)} storages, and {len(saved)} of them are saved")


def require_memory_indices(memory: StepMemory, num_operators: int) -> None:
    """Check the indices, and the sizes, of the memory of a step.

    Args:
        memory: as read from a file.
        num_operators: operators of its trace.

    Raises:
        ValueError: an index, a size or a phase is wrong.
    """
    for number, task in enumerate(memory.tasks):
        if task.phase not in PHASES:
            raise ValueError(f"task {number}: phase {task.phase!r:.60}, allowed: {', '.join(PHASES)}")
    _require(_memory_rows(memory, num_operators))


def _require(rows: Iterable[_Row]) -> None:
    for name, index, first, end in rows:
        if type(index) is not int or not first <= index < end:
            raise ValueError(f"{name} {index!r:.60}, allowed: {first} to {end - 1}")


def _trace_rows(trace: "Trace") -> Iterator[_Row]:
    num_layers, num_operators, num_saves = trace.num_layers, len(trace.operators), len(trace.saves)
    for number, operator in enumerate(trace.operators):
        if operator.layer_index is not None:
            yield f"operator {number}: layer", operator.layer_index, 0, num_layers
        for value in (*operator.inputs, *operator.outputs):
            yield f"operator {number}: memory", value.memory, 0, MAX_SIZE
            yield f"operator {number}: bytes", value.size_bytes, 0, MAX_SIZE
    for number, storage in enumerate(trace.storages):
        if storage.producer is not None:
            yield f"storage {number}: producer", storage.producer, 0, num_operators
        yield f"storage {number}: last use", storage.last_use, -1, num_operators
    for number, save in enumerate(trace.saves):
        yield f"save {number}: storage", save.storage, 0, len(trace.storages)
        yield f"save {number}: layer", save.layer_index, 0, num_layers
        yield f"save {number}: operator", save.operator, -1, num_operators  # -1: before the first one
    for number, event in enumerate(trace.events):
        yield f"event {number}: index", event.index, 0, num_saves if event.kind.is_of_save else num_layers
        yield f"event {number}: operators before", event.num_operators, 0, num_operators + 1


def _memory_rows(memory: StepMemory, num_operators: int) -> Iterator[_Row]:
    num_tasks = len(memory.tasks)
    for number, task in enumerate(memory.tasks):
        yield f"task {number}: micro-batch", task.micro_batch, 0, num_tasks
        end = 0 if task.phase == OPTIMIZER else num_operators  # those of the optimizer are not recorded
        yield f"task {number}: operator", task.operator, NO_OPERATOR, end
    for number, block in enumerate(memory.blocks):
        yield f"block {number}: begin", block.begin, -1, num_tasks
        yield f"block {number}: end", block.end, 0, num_tasks + 1
        yield f"block {number}: bytes", block.size_bytes, 0, MAX_SIZE
        yield f"block {number}: memory", block.memory, -1, MAX_SIZE
        for use in block.uses:
            yield f"block {number}: use", use, 0, num_tasks
    for name in ("weight_bytes", "state_bytes", "peak_bytes"):
        yield name, getattr(memory, name), 0, MAX_SIZE
