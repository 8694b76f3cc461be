"""Memory in use under every policy, operator by operator, and the layers whose backward is pending then.

Proof: the operators of the step without any policy run in the same order under every policy; recomputed operators run
in between. A product that gives the gradient of a weight runs before the one that gives the gradient of the input, and
behind it if it reads a recomputed tensor, which is as large as the gradient of the input.
So an output is alive until its last reader ends. A tensor saved for backward is alive until its last reader
in forward, and from its first to its last reader in backward, whether it is kept, swapped or recomputed.

    tensor saved for backward   | produced ... last in forward |          | first ... last in backward |
    alive under every policy    [------------------------------]          [----------------------------]
    alive if it is kept                                        [----------]
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from mindswap.graph.analysis.prediction_layers import prediction_layer
from mindswap.graph.analysis.saved_tensors import Label, Names
from mindswap.graph.analysis.weight_copies import find_weight_copies
from mindswap.policy.model import ALL_LAYERS, Policy
from mindswap.simulator.layer_block import CopySetting
from mindswap.simulator.memory import find_waiters
from mindswap.simulator.program import NO_OP, MemoryKind, OpKind, Program, copy_position
from mindswap.simulator.program_builder import build_program
from mindswap.simulator.step_model import StepModel

NEVER = 2**62  # after every operator
NUM_SHARES = 65  # of waiting tensors that are kept: for each of them the point with the highest memory is found


@dataclass(frozen=True, eq=False)
class LivenessPoint:
    """Memory of a stage while one operator runs."""

    fixed_bytes: int  # live under every policy, static memory included
    # class of equal layers -> number of micro-batches between forward and backward. The minimum over the layers of the
    # class: only the sum of what they keep is known, and all of it may be in the layer with the fewest micro-batches
    waiting: Mapping[Hashable, int]
    is_past_forward: bool = False  # forward of all layers has ended


@dataclass(frozen=True, eq=False)
class Liveness:
    """Live memory of a step while each operator runs."""

    program: Program  # the step with everything swapped that can be; never simulated
    fixed_bytes: np.ndarray  # int64, shape (num_ops,): live under every policy
    waiting_bytes: np.ndarray  # int64, same shape: in addition live if everything is kept, of layers in `pairs`
    # (layer, micro-batch) -> operators after which, and before which, all of its swappable tensors wait for backward
    pairs: Mapping[tuple[int, int], tuple[int, int]]

    def liveness_points(
        self, stage: int, static_bytes: int, layer_classes: Mapping[int, Hashable]
    ) -> tuple[LivenessPoint, ...]:
        """Return the points of a stage at which the memory may be highest, whatever share of waiting tensors is kept.

        Args:
            stage: index of the stage.
            static_bytes: static memory of the stage.
            layer_classes: layer of the stage -> class of equal layers.
        """
        begin, end = self.program.stage_starts[stage : stage + 2].tolist()
        kind, is_layer = self.program.ops.kind[begin:end], self.program.ops.layer[begin:end] >= 0
        last_forward = int(np.flatnonzero((kind == OpKind.FORWARD) & is_layer).max(initial=-1))
        points = []
        for position in highest_points(self.waiting_bytes[begin:end], self.fixed_bytes[begin:end]):
            op = begin + position
            num_pending = Counter(layer for (layer, _), (first, last) in self.pairs.items() if first < op < last)
            min_pending: dict[Hashable, int] = {}
            for layer, layer_class in layer_classes.items():
                min_pending[layer_class] = min(min_pending.get(layer_class, num_pending[layer]), num_pending[layer])
            points.append(LivenessPoint(int(self.fixed_bytes[op]) + static_bytes, min_pending, position > last_forward))
        return tuple(points)


def compute_liveness(model: StepModel, num_micro_batches: int) -> Liveness:
    """Compute the live memory of a step with the given number of micro-batches."""
    unmoved = _unmoved(model)
    program = _all_swapped(model, num_micro_batches, unmoved)
    ops, copies = program.ops, program.copies
    begin, end = _certain(program, model.layers.gradient_pairs is not None)
    fixed = _fixed_bytes(begin, end, program, unmoved)
    names, pair_of = np.unique(np.stack([copies.layer, copies.micro_batch]), axis=1, return_inverse=True)
    first, last = np.full(names.shape[1], NO_OP), np.full(names.shape[1], NEVER)
    np.maximum.at(first, pair_of, copies.producer_op)
    np.minimum.at(last, pair_of, copies.first_user_op)
    sizes_bytes = np.zeros(names.shape[1], np.int64)
    np.add.at(sizes_bytes, pair_of, copies.size_bytes)
    waits = first < last
    waiting = alive_bytes(first[waits] + 1, last[waits] - 1, sizes_bytes[waits], len(ops))
    between = zip(first.tolist(), last.tolist(), strict=True)
    pairs = dict(zip(zip(*names.tolist(), strict=True), between, strict=True))
    return Liveness(program, fixed, waiting, pairs)


def alive_bytes(first: np.ndarray, last: np.ndarray, sizes_bytes: np.ndarray, num_ops: int) -> np.ndarray:
    """Return the live bytes while each operator runs: int64, shape (num_ops,).

    Args:
        first: first operator of the lifetime of each tensor.
        last: last operator of the lifetime of each tensor.
        sizes_bytes: size of each tensor.
        num_ops: number of operators.
    """
    change = np.zeros(num_ops + 1, np.int64)
    np.add.at(change, first, sizes_bytes)
    np.subtract.at(change, last + 1, sizes_bytes)
    return np.cumsum(change)[:-1]


def _all_swapped(model: StepModel, num_micro_batches: int, unmoved: Set[Label]) -> Program:
    """Build the step with all movable tensors of layers swapped: its copies tell producers and first users."""
    copied = CopySetting(prefetch=0, num_copies=1, is_resident=False)
    prologue, *layers, epilogue = model.blocks(Policy())
    swapped = {
        id(block): block.with_copies({label: copied for label in block.arrays.labels if label not in unmoved})
        for block in dict.fromkeys(layers)
    }
    layout = replace(model.layout, num_micro_batches=num_micro_batches)
    return build_program([prologue, *(swapped[id(block)] for block in layers), epilogue], model.transfers, layout)


def _certain(program: Program, has_moved_products: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last compute operator at which each interval is live under every policy.

    Args:
        program: the step.
        has_moved_products: whether products of weight gradients run at another place if they read a recomputed tensor.
    """
    ops, intervals, copies = program.ops, program.intervals, program.copies
    is_prefetched, is_offloaded = intervals.begin < 0, intervals.end < 0
    begin, end = intervals.begin.copy(), intervals.end.copy()
    begin[is_prefetched] = copies.first_user_op[copy_position(begin[is_prefetched])]
    end[is_offloaded] = copies.producer_op[copy_position(end[is_offloaded])]
    # An output of communication is live when an operator has waited for it, an input until communication begins.
    is_communication, position = ops.kind >= OpKind.COLLECTIVE, np.arange(len(ops))
    first_waits = np.full(len(ops), NEVER)
    waits = (ops.wait_op != NO_OP) & ~is_communication
    np.minimum.at(first_waits, ops.wait_op[waits], position[waits])
    begin = np.where(is_communication[begin], first_waits[begin], begin)
    waited = np.where(is_communication[end], ops.wait_op[end], end)
    waited = np.where(is_communication[waited], NO_OP, waited)
    # A sent tensor, and the output of SEND, are live until an operator waits for a later RECEIVE.
    waiter, compute = find_waiters(program)[end], np.where(is_communication, NO_OP, position)
    is_sent = (ops.kind[end] == OpKind.SEND) & (waiter < len(ops))
    following = np.minimum.accumulate(np.where(is_communication, NEVER, position)[::-1])[::-1]
    is_output = ops.kind[intervals.begin] == OpKind.SEND
    begin = np.where(is_output & ~is_prefetched, following[intervals.begin], begin)
    waited = np.where(is_sent, np.maximum(waited, np.maximum.accumulate(compute)[waiter - 1]), waited)
    # A gradient that is live until the next operator only: that may be a recomputed one.
    num_compute = np.cumsum(~is_communication)
    is_passing = (intervals.kind == MemoryKind.GRADIENT) & (num_compute[end] - num_compute[intervals.begin] < 2)
    passing_end = begin - 1 if has_moved_products else np.minimum(begin, waited)  # before its begin: nowhere
    return begin, np.where(is_passing, passing_end, waited)


def _unmoved(model: StepModel) -> frozenset[Label]:
    """Return the tensors that layers save under every policy: no holder has a name, nor does recompute free them."""
    if model.layers.reads_caches:
        return frozenset()  # full recompute of a layer is impossible
    unmoved: set[Label] = set()
    for layer_class in range(len(model.captured.trees)):
        layer_index = model.captured.sample.layer_map.index(layer_class)
        plain, recomputed = (
            {
                tensor.label
                for tensor in model.layer_block(policy, layer_index).tensors
                if tensor.is_forward and tensor.role is None and tensor.uses.first_backward != NO_OP
            }
            for policy in (Policy(), Policy(True, layer_recompute=ALL_LAYERS))
        )
        unmoved |= (plain & recomputed) - set(model.holder_names(Policy(), layer_index))
    # A policy may avoid copies of weights one by one.
    copies = find_weight_copies(model.captured.graph)
    return frozenset(
        unmoved.difference(model.names(node) for node in model.captured.graph.forward if node.name in copies)
    )


def _fixed_bytes(begin: np.ndarray, end: np.ndarray, program: Program, unmoved: Set[Label] = frozenset()) -> np.ndarray:
    """Return the bytes that are live under every policy while each operator runs: int64, shape (num_ops,).

    Outputs of merged operators of a layer are excluded, because some policies do not merge them.
    """
    intervals = program.intervals
    is_unmoved = np.array([label in unmoved for label in program.labels], bool)[intervals.label]
    # Layers for multi-token prediction are recomputed with the last layer of the model.
    is_prediction = np.array([bool(prediction_layer(str(label))) for label in program.labels], bool)[intervals.label]
    is_movable = (intervals.kind == MemoryKind.KEPT) & ((intervals.layer >= 0) | is_prediction) & ~is_unmoved
    is_merged = np.array([isinstance(label, Names) and len(label) > 1 for label in program.labels])
    counts = (intervals.kind != MemoryKind.RECOMPUTED) & ~is_movable & (begin <= end)
    counts &= ~(is_merged[intervals.label] & (intervals.layer >= 0))
    return alive_bytes(begin[counts], end[counts], intervals.size_bytes[counts], len(program.ops))


def highest_points(xs: np.ndarray, ys: np.ndarray) -> list[int]:
    """Return the positions of points that maximize `share * x + y` for some of many shares from 0 to 1."""
    shares = np.linspace(1, 0, NUM_SHARES)
    return list(dict.fromkeys(int(np.argmax(share * xs + ys)) for share in shares))
