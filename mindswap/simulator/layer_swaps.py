"""A step under the swap of MindFormers 2.x: whole layers leave and come back when passes of other layers end and begin.

Source: hyper_parallel `platform/mindspore/activation_checkpoint/activation_swap.py` (public sources of mid 2026), and
`apply_swap` of mindformers/pynative/distributed/activation_checkpoint.py (2.1.0), for `default_prefetch` p:

- forward of layer i ends: its copies to the host start;
- forward of layer i + p ends: compute waits for them, and the memory is given back;
- backward of layer i + p begins: memory is taken for all of layer i, and its copies to the device start;
- backward of layer i begins: compute waits for them.

Swapped is what a layer saves for backward: its input, too, which the layer before it has made, but not what it returns.
Kept here although upstream moves it: the input of layer 0, and that of a layer behind a recomputed one.
"""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import replace

import numpy as np

from mindswap.policy.model import Layers, LayerSwap, Policy
from mindswap.simulator.layer_block import Block, BlockTensor, Role, Source
from mindswap.simulator.program import NO_OP, ONE_WAY, Intervals, MemoryKind, OpKind, Program
from mindswap.simulator.step_model import StepModel

# A distance in operators beyond any step: no operator holds a copy back, none gives memory back.
FAR = 10**9
DOUBTS = (
    "swap as MindFormers 2.x does it, by public sources: `prefetch` counts layers, and nothing was run on a device",
    "micro-batches, optimizer and cards are those of the configuration in the trace",
)


class LayerSwapModel(StepModel):
    """A step of which `layer_swap`, with one entry, acts as in MindFormers 2.x: its `prefetch` counts layers."""

    @classmethod
    def of(cls, model: StepModel) -> "LayerSwapModel":
        """The same step; of its policies only `layer_swap` and `layer_recompute` have the meaning of 2.x."""
        made = cls(model.layers.source, model.costs, model.settings)
        made.doubts = (*made.doubts, *DOUBTS)
        return made

    def program(self, policy: Policy) -> Program:
        """Operators, copies and memory of one step under a policy."""
        if not policy.layer_swap:
            return super().program(policy)
        (entry,) = policy.layer_swap
        layers = entry.layers.resolve(len(self.captured.sample.layer_map))
        makers = Layers({near for layer in layers for near in (layer - 1, layer) if near >= 0})
        far = super().program(replace(policy, layer_swap=(LayerSwap(makers, FAR),)))
        return swap_at_ends_of_layers(far, layers, entry.prefetch)

    def _cut(self, policy: Policy, layer_index: int, is_swapping: bool) -> Callable[[int], Block]:
        made = super()._cut(policy, layer_index, is_swapping)
        num_layers = len(self.captured.trees)
        return _keep_outputs({section: made(section) for section in range(-1, num_layers + 1)}, num_layers).__getitem__


def _keep_outputs(blocks: Mapping[int, Block], num_layers: int) -> Mapping[int, Block]:
    """The blocks by section, without copies of what a layer returns where no other layer saves that as its input."""
    inputs = {
        read.role
        for section, block in blocks.items()
        for read in block.reads
        if section >= 0 and read.source is Source.BEFORE and read.uses.first_backward != NO_OP
    }
    is_layer = range(num_layers)
    return {at: _without_copies(block, inputs) if at in is_layer else block for at, block in blocks.items()}


def _without_copies(block: Block, inputs: Set[Role]) -> Block:
    def stays(tensor: BlockTensor) -> bool:
        is_returned = tensor.is_forward and tensor.role is not None and not tensor.role.is_shared
        is_output = is_returned and tensor.role not in inputs and tensor.num_copies > 0
        return is_output or tensor.num_copies == ONE_WAY  # only the compiler of graphs makes such copies

    if not any(map(stays, block.tensors)):
        return block
    kept = (replace(one, num_copies=0, prefetch=0) if stays(one) else one for one in block.tensors)
    return replace(block, tensors=tuple(kept))


def swap_at_ends_of_layers(program: Program, layers: Collection[int], prefetch: int) -> Program:
    """The program with its copies where hooks of layers make them.

    Args:
        program: one in which every copy that is wanted is there, with a distance beyond its ends.
        layers: that are swapped; what other layers save stays.
        prefetch: distance in layers.
    """
    copies, intervals = program.copies, program.intervals
    if not len(copies):
        return program
    owner = program.ops.layer[copies.first_user_op].astype(np.int64)  # the layer that saves it
    stays = ~np.isin(owner, list(layers))
    forward_end, backward_begin = _ends_of_layers(program)
    # Where it stays, any layer will do: its copy goes.
    near = np.where(stays, 0, owner)
    far = np.where(stays, 0, owner + prefetch)
    turn = copies.micro_batch
    fetch_at = backward_begin[far, turn]
    moved = replace(
        copies,
        producer_op=forward_end[near, turn],
        release_op=forward_end[far, turn],
        prefetch_op=fetch_at - 1,
        first_user_op=backward_begin[near, turn],
    )
    return replace(program, copies=moved.rows(~stays), intervals=_intervals(intervals, stays, fetch_at))


def _ends_of_layers(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """Last operator of forward and first one of backward, by layer and micro-batch."""
    ops = program.ops
    is_in_layer = ops.layer >= 0
    is_forward = ops.kind == OpKind.FORWARD
    is_backward = (ops.kind == OpKind.BACKWARD) | (ops.kind == OpKind.RECOMPUTE)
    shape = (int(ops.layer.max()) + 1, int(ops.micro_batch.max()) + 1)
    forward_end, backward_begin = np.zeros(shape, np.int64), np.full(shape, len(ops), np.int64)
    for found, which, choose in ((forward_end, is_forward, np.maximum), (backward_begin, is_backward, np.minimum)):
        at = np.flatnonzero(is_in_layer & which)
        choose.at(found, (ops.layer[at], ops.micro_batch[at]), at)
    return forward_end, backward_begin


def _intervals(intervals: Intervals, stays: np.ndarray, fetch_at: np.ndarray) -> Intervals:
    """Memory without the copies that go; what comes back is taken at `fetch_at`."""
    is_back, is_out = intervals.begin < 0, intervals.end < 0
    back, out = ~np.minimum(intervals.begin, -1), ~np.minimum(intervals.end, -1)
    last_use = np.zeros(len(stays), np.int64)
    last_use[back[is_back]] = intervals.end[is_back]
    number = np.cumsum(~stays) - 1
    is_kept = is_out & stays[out]
    end = np.where(is_out, np.where(is_kept, last_use[out], ~number[out]), intervals.end)
    changed = replace(
        intervals,
        begin=np.where(is_back, fetch_at[back], intervals.begin),
        end=end,
        kind=np.where(is_kept, MemoryKind.KEPT, intervals.kind).astype(np.int8),
    )
    return changed.rows(~(is_back & stays[back]))
