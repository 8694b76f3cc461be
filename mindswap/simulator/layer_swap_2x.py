"""Simulation of swap in MindFormers 2.x, where the start and end of layers trigger offloads and prefetches.

Source: hyper_parallel `platform/mindspore/activation_checkpoint/activation_swap.py` (public sources of mid 2026), and
`apply_swap` of mindformers/pynative/distributed/activation_checkpoint.py (2.1.0), for `default_prefetch` p:

- forward of layer i ends: its offloads start;
- forward of layer i + p ends: compute waits for these offloads, and device memory is released;
- backward of layer i + p starts: device memory for layer i is allocated, and its prefetches start;
- backward of layer i starts: compute waits for these prefetches.

All tensors that a layer saves for backward are swapped, including its input, which the previous layer produces, but not
its output. Not modelled: upstream also swaps the input of layer 0, and that of a layer after a recomputed one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from mindswap.policy.model import Layers, LayerSwap, Policy
from mindswap.simulator.layer_block import Block, BlockTensor, Role, Source
from mindswap.simulator.program import (
    NO_OP,
    ONE_WAY,
    Intervals,
    MemoryKind,
    OpKind,
    Program,
    copy_position,
    copy_reference,
)
from mindswap.simulator.step_model import StepModel

# A prefetch distance longer than any step: no operator delays a copy or releases memory.
FAR = 10**9
CAVEATS = (
    "swap as MindFormers 2.x does it, by public sources: `prefetch` counts layers, and nothing was run on a device",
    "micro-batches, optimizer and cards are those of the configuration in the trace",
)


class LayerSwapModel2x(StepModel):
    """Step model in which `layer_swap`, with one entry, acts as in MindFormers 2.x: its `prefetch` counts layers."""

    @classmethod
    def of(cls, model: StepModel, caveats: Sequence[str] = ()) -> "LayerSwapModel2x":
        """Convert a step model; of its policies only `layer_swap` and `layer_recompute` have the meaning of 2.x.

        Args:
            model: a step model without fixed policy.
            caveats: what else is not modelled, as text.
        """
        return cls(model.layers.source, model.costs, model.settings, caveats=(*CAVEATS, *caveats))

    def program(self, policy: Policy) -> Program:
        """Build operators, copies and memory intervals of one step under a policy."""
        if not policy.layer_swap:
            return super().program(policy)
        (entry,) = policy.layer_swap
        layers = entry.layers.resolve(len(self.captured.sample.layer_map))
        makers = Layers({neighbour for layer in layers for neighbour in (layer - 1, layer) if neighbour >= 0})
        all_copied = super().program(replace(policy, layer_swap=(LayerSwap(makers, FAR),)))
        return swap_at_ends_of_layers(all_copied, layers, entry.prefetch)

    def _block_builder(self, policy: Policy, layer_index: int, is_swapping: bool) -> Callable[[int], Block]:
        build = super()._block_builder(policy, layer_index, is_swapping)
        num_layers = len(self.captured.trees)
        return _keep_outputs({segment: build(segment) for segment in range(-1, num_layers + 1)}, num_layers).__getitem__


def _keep_outputs(blocks: Mapping[int, Block], num_layers: int) -> Mapping[int, Block]:
    """Return the blocks by segment, without copies of layer outputs that no other layer saves as its input."""
    inputs = {
        read.role
        for segment, block in blocks.items()
        for read in block.reads
        if segment >= 0 and read.source is Source.PREVIOUS and read.uses.first_backward != NO_OP
    }
    is_layer = range(num_layers)
    return {at: _without_copies(block, inputs) if at in is_layer else block for at, block in blocks.items()}


def _without_copies(block: Block, inputs: Set[Role]) -> Block:
    def is_kept(tensor: BlockTensor) -> bool:
        is_returned = tensor.is_forward and tensor.role is not None and not tensor.role.is_shared
        is_output = is_returned and tensor.role not in inputs and tensor.num_copies > 0
        return is_output or tensor.num_copies == ONE_WAY  # such copies exist in graph mode only

    if not any(map(is_kept, block.tensors)):
        return block
    tensors = (replace(tensor, num_copies=0, prefetch=0) if is_kept(tensor) else tensor for tensor in block.tensors)
    return replace(block, tensors=tuple(tensors))


def swap_at_ends_of_layers(program: Program, layers: Collection[int], prefetch: int) -> Program:
    """Move the copies of a program to the start and end of layers, as hooks of layers do.

    Args:
        program: a program with all required copies, at the prefetch distance `FAR`.
        layers: swapped layers; copies of other layers are removed.
        prefetch: prefetch distance in layers.
    """
    copies, intervals = program.copies, program.intervals
    if not len(copies):
        return program
    owner = program.ops.layer[copies.first_user_op].astype(np.int64)  # layer that saves the tensor
    is_removed = ~np.isin(owner, list(layers))
    forward_end, backward_begin = _ends_of_layers(program)
    # Copies of other layers are removed below, so layer 0 is a placeholder.
    swapped_layer = np.where(is_removed, 0, owner)
    trigger_layer = np.where(is_removed, 0, owner + prefetch)
    micro_step = copies.micro_batch
    fetch_at = backward_begin[trigger_layer, micro_step]
    moved = replace(
        copies,
        producer_op=forward_end[swapped_layer, micro_step],
        release_op=forward_end[trigger_layer, micro_step],
        prefetch_op=fetch_at - 1,
        first_user_op=backward_begin[swapped_layer, micro_step],
    )
    return replace(program, copies=moved.rows(~is_removed), intervals=_intervals(intervals, is_removed, fetch_at))


def _ends_of_layers(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """Return the last operator of forward and the first of backward, shape (num_layers, num_micro_steps) each."""
    ops = program.ops
    is_in_layer = ops.layer >= 0
    is_forward = ops.kind == OpKind.FORWARD
    is_backward = (ops.kind == OpKind.BACKWARD) | (ops.kind == OpKind.RECOMPUTE)
    shape = (int(ops.layer.max()) + 1, int(ops.micro_batch.max()) + 1)
    forward_end, backward_begin = np.zeros(shape, np.int64), np.full(shape, len(ops), np.int64)
    for ends, is_selected, choose in ((forward_end, is_forward, np.maximum), (backward_begin, is_backward, np.minimum)):
        at = np.flatnonzero(is_in_layer & is_selected)
        choose.at(ends, (ops.layer[at], ops.micro_batch[at]), at)
    return forward_end, backward_begin


def _intervals(intervals: Intervals, is_removed: np.ndarray, fetch_at: np.ndarray) -> Intervals:
    """Update the intervals: removed copies stay on the device, prefetches allocate at `fetch_at`."""
    is_prefetch, is_offload = intervals.begin < 0, intervals.end < 0
    prefetch_of, offload_of = copy_position(intervals.begin), copy_position(intervals.end)
    last_use = np.zeros(len(is_removed), np.int64)
    last_use[prefetch_of[is_prefetch]] = intervals.end[is_prefetch]
    number = np.cumsum(~is_removed) - 1
    is_kept = is_offload & is_removed[offload_of]
    end = np.where(
        is_offload, np.where(is_kept, last_use[offload_of], copy_reference(number[offload_of])), intervals.end
    )
    changed = replace(
        intervals,
        begin=np.where(is_prefetch, fetch_at[prefetch_of], intervals.begin),
        end=end,
        kind=np.where(is_kept, MemoryKind.KEPT, intervals.kind).astype(np.int8),
    )
    return changed.rows(~(is_prefetch & is_removed[prefetch_of]))
