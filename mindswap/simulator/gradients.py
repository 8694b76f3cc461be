"""How long a gradient of a weight is on the device, and what of it stays until the optimizer.

MindSpore 2.9.0, `ops/_grad_experimental/grad_comm_ops.py`:

- with sums over micro-batches (`_VirtualAssignAdd`) the gradient is added to its sum at once; the sums are static;
- with the parallel optimizer (`AllGather`) a ReduceScatter takes the whole gradient and gives the part of this rank.
  Its type is that of the weight: where forward casts the part before the AllGather, backward casts the whole gradient
  before the ReduceScatter (tests/adapters/test_gathered_weights.py). Each one on its own:
  `get_enable_reduce_scatter_fusion()` is False unless `comm_fusion` is configured;
- what other ranks have, too, and is not cut goes through an AllReduce (`_MirrorOperator`), which gives a new tensor;
- else it stays as it is.

The communication of a group of ranks has a stream of its own. Memory that it reads is free again when the compute
stream has waited for that stream (runtime/device, the pool's events), and backward waits for data parallelism only if
it gathers weights again (level3): so what was sent stays until the optimizer begins, beside what came of it. Seen in
dry runs of the Ascend backend, 2.9.0: tests/adapters/test_dry_run_figures.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.config.weight_sharding import WHOLE, WeightSharding
from mindswap.graph.model import TensorType
from mindswap.simulator.cost.static_memory import FLOAT32_BYTES
from mindswap.simulator.program import OpKind
from mindswap.simulator.timeline import Timeline
from mindswap.units import ceil_div

# A weight as its gradient shows it: before (-1), in (0) or behind (1) the layers, and its shape.
GradientKey = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class GradientRule:
    """What becomes of each gradient of a step; sizes are those of a whole gradient, in the type of its weight."""

    is_summed: bool = False  # added up over micro-batches
    sharding: WeightSharding = WHOLE  # what the parallel optimizer cuts
    whole: frozenset[GradientKey] = frozenset()  # what it leaves whole by name
    is_shared: bool = False  # data parallel ranks have the same weights
    own: frozenset[GradientKey] = frozenset()  # of those that nobody else has: experts

    def is_cut(self, known: TensorType, where: int) -> bool:
        """Whether the weight of a gradient is cut: they have one shape and type. Names are not known here."""
        return (where, known.shape) not in self.whole and self.sharding.cuts("", known.shape, known.size_bytes)

    def is_sent(self, known: TensorType, where: int) -> bool:
        """Whether a gradient goes to other ranks."""
        return self.is_shared and (where, known.shape) not in self.own

    def passing_bytes(self, size_bytes: int, is_sent: bool) -> int:
        """What is there only until the next operator: the whole gradient, if something else takes its place."""
        return size_bytes if self.is_summed or (is_sent and self.sharding.is_released) else 0

    def waiting_bytes(self, size_bytes: int, is_sent: bool) -> int:
        """What communication has read, and stays until the optimizer begins: the whole gradient."""
        return size_bytes if is_sent and not self.passing_bytes(size_bytes, is_sent) else 0

    def kept_bytes(self, size_bytes: int, is_cut: bool) -> int:
        """What stays from its maker until the optimizer, which reads it."""
        if self.is_summed:
            return 0
        return self._own_bytes(size_bytes, is_cut)

    def final_bytes(self, size_bytes: int, num_elements: int, is_cut: bool) -> int:
        """What the optimizer reads in place of it.

        MindFormers' `wrapper.py` scales gradients before the optimizer: to new tensors of float32
        (`_grad_scale`), or of the type of the sums (`shard_grad_scale`).
        """
        return self._own_bytes(size_bytes if self.is_summed else num_elements * FLOAT32_BYTES, is_cut)

    def _own_bytes(self, size_bytes: int, is_cut: bool) -> int:
        return ceil_div(size_bytes, self.sharding.num_ranks) if is_cut else size_bytes


# How much of the exchange of gradients between data parallel ranks backward does not hide.
#
# With sums that are cut (`StepSettings.is_accumulator_sharded`) each micro-batch has its exchange: a ReduceScatter
# before the gradient is added (`_VirtualAssignAdd` in ops/_grad_experimental/grad_comm_ops.py with the group that
# pipeline_split_utils.cc, InsertVirtualAssignAdd, gives it; with level3 the backward of the AllGather in the cell).
# Else the last micro-batch alone exchanges the sums.


def backward_by_section_ns(timeline: Timeline, stage: int, num_sections: int) -> list[int]:
    """Compute time of backward of the last micro-batch on a stage, with what runs again, by section of the model."""
    kind, layer, micro_batch, duration_ns = _columns(timeline, stage)
    num_sequences = timeline.program.num_sequences
    last = np.max(micro_batch) // num_sequences * num_sequences  # pieces go back in reverse
    is_backward = (kind == OpKind.BACKWARD) | (kind == OpKind.RECOMPUTE)
    chosen = is_backward & (micro_batch == last) & (layer >= 0)
    durations = np.bincount(layer[chosen] + 1, duration_ns[chosen], num_sections)
    return [int(duration) for duration in durations]


def last_forward_ns(timeline: Timeline, stage: int) -> int:
    """Compute time of forward of the last micro-batch on a stage."""
    kind, _, micro_batch, duration_ns = _columns(timeline, stage)
    chosen = (kind == OpKind.FORWARD) & (micro_batch == np.max(micro_batch))
    return int(duration_ns[chosen].sum())


def _columns(timeline: Timeline, stage: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Kind, layer, micro-batch and duration of the operators of a stage."""
    ops, starts = timeline.program.ops, timeline.program.stage_starts
    own = slice(int(starts[stage]), int(starts[stage + 1]))
    return ops.kind[own], ops.layer[own], ops.micro_batch[own], ops.duration_ns[own]


def repeated_exchange_ns(
    exchange_ns: Sequence[int], backward_ns: Sequence[int], forward_ns: int, num_micro_batches: int
) -> int:
    """Time behind backward until all gradients are exchanged, if each micro-batch exchanges its own.

    What the backward of one does not hide goes on beside the forward of the next; the rest keeps its gradients waiting.

    Args:
        exchange_ns, backward_ns: as of `exposed_exchange_ns`, for each micro-batch.
        forward_ns: from the end of one backward to the begin of the next.
        num_micro_batches: of a step.
    """
    exposed_ns = 0
    for _ in range(num_micro_batches):
        exposed_ns = exposed_exchange_ns(exchange_ns, backward_ns, max(exposed_ns - forward_ns, 0))
    return exposed_ns


def exposed_exchange_ns(exchange_ns: Sequence[int], backward_ns: Sequence[int], busy_ns: int = 0) -> int:
    """Time behind backward until all gradients are exchanged.

    The gradients of a section go out when its backward has ended, one after the other on one network.

        backward    | layer 2 | layer 1 | layer 0 |
        exchange              | 2 2 |   | 1 1 1 1 1 | 0 0 |
                                                  |exposed|

    Args:
        exchange_ns: time of exchanging the gradients of each section, in order of forward.
        backward_ns: backward of the last micro-batch of each section.
        busy_ns: how long the network has something else to do when backward begins.
    """
    end = busy_ns - sum(backward_ns)
    for section in range(len(exchange_ns) - 1, -1, -1):
        if exchange_ns[section]:
            end = max(end, -sum(backward_ns[:section])) + exchange_ns[section]
    return max(end, 0)
