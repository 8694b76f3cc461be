"""How long a gradient of a weight is on the device, and what of it stays until the optimizer. Pure.

MindSpore 2.9.0, `ops/_grad_experimental/grad_comm_ops.py`:

- with sums over micro-batches (`_VirtualAssignAdd`) the gradient is added to its sum at once; the sums are static;
- with the parallel optimizer (`AllGather`) a ReduceScatter takes the whole gradient and gives the part of this rank.
  Its type is that of the weight: where forward casts the part before the AllGather, backward casts the whole gradient
  before the ReduceScatter (tests/adapters/test_gathered_weights.py). Each one on its own:
  `get_enable_reduce_scatter_fusion()` is False unless `comm_fusion` is configured;
- else it stays as it is.
"""

from dataclasses import dataclass

from mindswap.config.weight_sharding import WHOLE, WeightSharding
from mindswap.graph.model import TensorType
from mindswap.simulator.cost.static_memory import FLOAT32_BYTES
from mindswap.units import ceil_div


@dataclass(frozen=True)
class GradientRule:
    """What becomes of each gradient of a step; sizes are those of a whole gradient, in the type of its weight."""

    is_summed: bool = False  # added up over micro-batches
    sharding: WeightSharding = WHOLE  # what the parallel optimizer cuts

    def is_cut(self, known: TensorType) -> bool:
        """Whether the weight of a gradient is cut: they have one shape and type. Names are not known here."""
        return self.sharding.cuts("", known.shape, known.size_bytes)

    def passing_bytes(self, size_bytes: int, is_cut: bool) -> int:
        """What is there only until the next operator: the whole gradient, if something else takes its place."""
        return size_bytes if self.is_summed or is_cut else 0

    def kept_bytes(self, size_bytes: int, is_cut: bool) -> int:
        """What stays from its maker until the optimizer."""
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
