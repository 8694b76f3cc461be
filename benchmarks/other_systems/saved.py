"""Tensors that the layers of a model keep for backward, as the strategies of other systems see it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mindswap.graph.model import Graph
from mindswap.graph.ops import VIEW_OPS, is_kernel
from mindswap.graph.storage import SavedStorage, classify_saved
from mindswap.policy.cell_tree import SEPARATOR
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpSwap, Policy
from mindswap.simulator.layer_block import BlockTensor, Consumers, Source
from mindswap.simulator.program import NO_OP, Program
from mindswap.simulator.step_model import StepModel

__all__ = ["SavedTensor", "Turn", "find_turns", "saved_tensors", "swap_policy"]


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that forward of a layer makes and backward reads, and that `op_swap` can name.

    Positions count operators from the begin of the layer's own forward or backward; one that the next layer
    reads is behind the end of forward, or before the begin of backward (negative).

    Attributes:
        layer_index: layer of the model.
        operators: paths below the layer; it leaves the device if `op_swap` names all of them.
        size_bytes: on the device.
        made_at, last_forward: positions in forward.
        first_backward: position in backward.
        saved_in: paths of the cells whose gradients read it, below the layer or the one behind it.
    """

    layer_index: int
    operators: tuple[str, ...]
    size_bytes: int
    producer_op_index: int
    last_forward: int
    first_backward: int
    saved_in: tuple[str, ...]


def saved_tensors(model: StepModel, layer_index: int) -> tuple[SavedTensor, ...]:
    """The tensors of a layer that leave the device if they are named, in order of production."""
    graph, names = model.captured.graph, model.names
    position = model.captured.sample.layer_map[layer_index]
    unit_bytes = model.costs.device.pool_alignment_bytes
    waiting: dict[tuple[str, int], list[SavedStorage]] = {}
    for entry in classify_saved(graph):
        if entry.storage.layer_index == position and entry.storage.producer is not None:
            label = names(graph.owner(entry.storage.producer))
            on_device_bytes = -(-entry.storage.size_bytes // unit_bytes) * unit_bytes
            waiting.setdefault((label, on_device_bytes), []).append(entry)
    swapped = model.layer_block(Policy(layer_swap=(LayerSwap(ALL_LAYERS, 1),)), layer_index)
    leaves = [tensor.num_copies > 0 and not tensor.is_resident for tensor in swapped.tensors if tensor.is_forward]
    tensors = []
    for number, tensor, last_forward, first_backward in _kept_tensors(model, layer_index):
        entries = waiting.get((tensor.label, tensor.size_bytes))
        held = entries.pop(0).holders if entries else ()
        holders = [graph.owner(node) for node in held]
        if holders and leaves[number] and all(names.can_name(node) for node in holders):
            paths = dict.fromkeys(path for node in holders for path in names(node))
            tensors.append(
                SavedTensor(
                    layer_index=layer_index,
                    operators=tuple(paths),
                    size_bytes=tensor.size_bytes,
                    producer_op_index=tensor.producer_op_index,
                    last_forward=last_forward,
                    first_backward=first_backward,
                    saved_in=_gradient_cells(graph, {node.name for node in held}),
                )
            )
    return tuple(tensors)


def _gradient_cells(graph: Graph, names: set[str]) -> tuple[str, ...]:
    """Cells of the operators of backward that read values of forward, behind other names of them."""
    backward_names = {saved.backward_name for saved in graph.saved if saved.forward_name in names}
    cells: dict[str, None] = {}
    for node in graph.backward:
        if backward_names.isdisjoint(node.inputs):
            continue
        if node.op in VIEW_OPS:
            backward_names.add(node.name)
        elif is_kernel(node.op) and node.layer_index is not None:
            cells[node.cell_path] = None
    return tuple(cells)


def _kept_tensors(model: StepModel, layer_index: int) -> Iterator[tuple[int, BlockTensor, int, int]]:
    """Tensors of a layer that backward reads, each with its number among those that forward makes and two uses.

    The uses are the last one in forward and the first one in backward. One by the next layer is before the backward of
    this one, at a negative position.
    """
    segment = layer_index + 1  # section 0 is what is before the layers
    segments = model.blocks(Policy())
    block, next_block = segments[segment], segments[segment + 1]
    is_last = any(segment == chunk[-1] for stage in model.layout.chunks for chunk in stage)
    reads = {read.role: read.uses for read in next_block.reads if read.source is Source.PREVIOUS and not is_last}
    for number, tensor in enumerate(tensor for tensor in block.tensors if tensor.is_forward):
        uses, next_uses = tensor.uses, reads.get(tensor.role, Consumers()) if tensor.role is not None else Consumers()
        if uses.first_backward == next_uses.first_backward == NO_OP:
            continue
        last = max(tensor.producer_op_index, uses.last_forward)
        if next_uses.last_forward != NO_OP:
            last = len(block.forward) + next_uses.last_forward
        has_next_use = next_uses.first_backward != NO_OP
        yield (
            number,
            tensor,
            last,
            next_uses.first_backward - len(next_block.backward) if has_next_use else uses.first_backward,
        )


@dataclass(frozen=True)
class Turn:
    """Place of a layer in a stage for one micro-batch: first operators of its forward and its backward."""

    forward: int
    backward: int


def find_turns(model: StepModel, program: Program, stage: int) -> dict[int, list[Turn]]:
    """For each layer of a stage its turns, in order of micro-batches; positions count from the first of the stage.

    What a layer does once in a step stands before its first turn.
    """
    segments = model.blocks(Policy())
    begin, end = int(program.stage_starts[stage]), int(program.stage_starts[stage + 1])
    layer, micro_batch = program.ops.layer[begin:end], program.ops.micro_batch[begin:end]
    changes = np.flatnonzero((np.diff(layer) != 0) | (np.diff(micro_batch) != 0)) + 1
    starts: dict[tuple[int, int], list[int]] = {}
    for start in (0, *changes.tolist()):
        if layer[start] >= 0:
            starts.setdefault((int(micro_batch[start]), int(layer[start])), []).append(start)
    turns: dict[int, list[Turn]] = {}
    for (_, index), (forward, backward) in sorted(starts.items()):
        num_once = 0 if index in turns else len(segments[index + 1].per_step_operators)
        turns.setdefault(index, []).append(Turn(forward + num_once, backward))
    return turns


def swap_policy(chosen: Iterable[tuple[SavedTensor, int]]) -> Policy:
    """A policy that swaps these tensors, each with its prefetch distance in operators.

    An operator that makes several tensors has one distance: the largest asked for.
    """
    distances: dict[tuple[str, int], int] = {}
    for tensor, distance in chosen:
        for path in tensor.operators:
            key = (path, tensor.layer_index)
            distances[key] = max(distances.get(key, 1), distance)
    layers: dict[tuple[str, int], list[int]] = {}
    for (path, layer_index), distance in distances.items():
        layers.setdefault((path, distance), []).append(layer_index)
    entries = [
        OpSwap(path.replace(".", SEPARATOR), Layers(tuple(sorted(indices))), distance)
        for (path, distance), indices in layers.items()
    ]
    return Policy(is_swap_enabled=True, op_swap=tuple(entries))
