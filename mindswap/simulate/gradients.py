"""How long a gradient of a weight is on the device, and what of it stays until the optimizer. Pure.

MindSpore 2.9.0, `ops/_grad_experimental/grad_comm_ops.py`:

- with sums over micro-batches (`_VirtualAssignAdd`) the gradient is added to its sum at once; the sums are static;
- with the parallel optimizer (`AllGather`) a ReduceScatter takes the whole gradient and gives the part of this rank.
  Each one on its own: `get_enable_reduce_scatter_fusion()` is False unless `comm_fusion` is configured;
- else it stays as it is.
"""

from dataclasses import dataclass

__all__ = ["GradientRule"]

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class GradientRule:
    """What becomes of each gradient of a step.

    Attributes:
        is_summed: added up over micro-batches.
        num_shards: ranks over which the parallel optimizer cuts weights; 1 without it.
        threshold_bytes: smaller weights are not cut.
    """

    is_summed: bool = False
    num_shards: int = 1
    threshold_bytes: int = 0

    def passing_bytes(self, size_bytes: int, is_cast: bool) -> int:
        """What is there only until the next operator: the whole gradient, if something else takes its place.

        Args:
            size_bytes: of the gradient in the type of the weight.
            is_cast: made by a cast. The parallel optimizer gathers what was cast, so its ReduceScatter takes what
                this cast reads, and the cast is of the part.
        """
        if self.is_summed:
            return size_bytes
        return size_bytes if self._is_cut(size_bytes) and not is_cast else 0

    def kept_bytes(self, size_bytes: int) -> int:
        """What stays from its maker until the optimizer."""
        if self.is_summed:
            return 0
        return -(-size_bytes // self.num_shards) if self._is_cut(size_bytes) else size_bytes

    def final_bytes(self, size_bytes: int, num_elements: int) -> int:
        """What the optimizer reads in place of it.

        MindFormers' `wrapper.py` scales gradients before the optimizer: to new tensors of float32
        (`_grad_scale`), or of the type of the sums (`shard_grad_scale`).
        """
        shards = self.num_shards if self._is_cut(size_bytes) else 1
        return -(-(size_bytes if self.is_summed else num_elements * FLOAT32_BYTES) // shards)

    def _is_cut(self, size_bytes: int) -> bool:
        return self.num_shards > 1 and size_bytes >= self.threshold_bytes
