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

from dataclasses import dataclass

from mindswap.config.weight_sharding import WHOLE, WeightSharding
from mindswap.graph.model import TensorType
from mindswap.simulator.cost.static_memory import FLOAT32_BYTES
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
