"""Labels and durations of the tasks of a tracked step of MindFormers 2.x, and roles of its blocks of memory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Graph
from mindswap.graph.ops import OpClass, classify
from mindswap.pynative.step_index import BlockFacts, StepIndex
from mindswap.pynative.step_memory import BACKWARD, NO_OPERATOR, OPTIMIZER, StepMemory
from mindswap.simulator.cost.cost_table import CostTable, moving_ns
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import MemoryKind

LOSS, EMBEDDING = "loss", "embedding"  # first words of labels outside the layers


@dataclass(frozen=True)
class BlockRole:
    """Role of a block in the step without a policy.

    Attributes:
        kind: purpose of its memory.
        part: part of the device memory.
        label: number of the label of the operator that makes it.
        layer: layer of that operator in the full model; -1 outside the layers.
    """

    kind: MemoryKind
    part: MemoryPart
    label: int
    layer: int


def label_tasks(index: StepIndex) -> tuple[list[int], list[str]]:
    """Return the number of the label of each task, and the labels: path of the operator, or phase and type."""
    numbers: dict[str, int] = {}
    last_layer_end = max((span.last for span in index.forward_spans.values()), default=0)
    labels = []
    for number, task in enumerate(index.memory.tasks):
        operator = index.trace.operators[task.operator] if task.operator != NO_OPERATOR else None
        if task.phase == OPTIMIZER:
            text = f"{OPTIMIZER} {task.name}"
        elif operator is not None and operator.layer_index is not None:
            text = f"{'.'.join(operator.path[:-1])} {task.name}".strip()
        else:
            text = f"{LOSS if number > last_layer_end else EMBEDDING} {task.name}"
        labels.append(numbers.setdefault(text, len(numbers)))
    return labels, list(numbers)


def task_durations_ns(index: StepIndex, graph: Graph, costs: CostTable) -> list[int]:
    """Return the duration of each task in ns.

    Args:
        index: the tracked step.
        graph: the recorded pass of one micro-batch as a graph.
        costs: durations of operators.
    """
    tasks = index.memory.tasks
    by_operator = [0] * len(index.trace.operators)
    for nodes, works in zip((graph.forward, graph.backward), measure_work(graph), strict=True):
        for node, work in zip(nodes, works, strict=True):
            match = re.match(r"[fb](\d+)", node.name)
            if match is not None:
                by_operator[int(match[1])] += costs.operator_ns(node, work)
    durations = [0] * len(tasks)
    last: dict[tuple[int, int], int] = {}  # the others are launches that the operator makes itself
    for number, task in enumerate(tasks):
        if task.operator != NO_OPERATOR:
            last[task.micro_batch, task.operator] = number
    for (_, operator), number in last.items():
        durations[number] = by_operator[operator]
    for number, size_bytes in _optimizer_bytes(index.memory).items():
        if classify(tasks[number].name) is not OpClass.NONE:
            durations[number] = moving_ns(size_bytes, costs.device) + costs.device.op_latency_ns["vector"]
    return durations


def _optimizer_bytes(memory: StepMemory) -> dict[int, int]:
    """Return the bytes that each task of the optimizer reads and writes."""
    sizes: dict[int, int] = {}
    for block in memory.blocks:
        for task in {block.begin, *block.uses}:
            if 0 <= task < len(memory.tasks) and memory.tasks[task].phase == OPTIMIZER:
                sizes[task] = sizes.get(task, 0) + block.size_bytes
    return sizes


def find_roles(
    index: StepIndex, labels: Sequence[int], texts: Sequence[str], layer_indices: Sequence[int]
) -> list[BlockRole]:
    """Return the role of each block.

    Args:
        index: the tracked step.
        labels: number of the label of each task.
        texts: the labels.
        layer_indices: index in the full model of each layer of the step.
    """
    return [_role_of(index, facts, labels, texts, layer_indices) for facts in index.blocks]


def _role_of(
    index: StepIndex, facts: BlockFacts, labels: Sequence[int], texts: Sequence[str], layer_indices: Sequence[int]
) -> BlockRole:
    block, tasks = facts.block, index.memory.tasks
    if block.begin < 0:
        return BlockRole(MemoryKind.TRANSIENT, MemoryPart.OTHER, 0, -1)
    # Allocations lag behind launches: the label is that of the operator that makes the tensor.
    producer_task = index.task_of(facts.micro_batch, facts.operator, block.begin)
    phase, label = tasks[block.begin].phase, labels[producer_task]
    layer = index.layer_of(producer_task)
    is_loss = layer is None and texts[label].startswith(LOSS)
    place = -1 if layer is None else layer_indices[layer]
    ends_in = tasks[block.end].phase if block.end < len(tasks) else OPTIMIZER
    if phase == OPTIMIZER:
        return BlockRole(MemoryKind.TRANSIENT, MemoryPart.OPTIMIZER_TEMPORARIES, label, place)
    if phase == BACKWARD:
        is_gradient = ends_in != BACKWARD or tasks[min(block.end, len(tasks) - 1)].micro_batch != facts.micro_batch
        if is_gradient:
            return BlockRole(MemoryKind.GRADIENT, MemoryPart.GRADIENTS, label, place)
        part = MemoryPart.LOSS if is_loss else MemoryPart.ACTIVATION_GRADIENTS
        return BlockRole(MemoryKind.TRANSIENT, part, label, place)
    kind = MemoryKind.KEPT if facts.is_saved else MemoryKind.TRANSIENT
    part = MemoryPart.SAVED_ACTIVATIONS if facts.is_saved else MemoryPart.TEMPORARIES
    return BlockRole(kind, MemoryPart.LOSS if is_loss else part, label, place)
