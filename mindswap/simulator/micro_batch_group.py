"""Groups of micro-batches of a virtual chunk that repeat the same passes.

Only the starts of the passes differ. Here two micro-batches on one stage, F forward and B backward, and a tensor that
F1 produces and B1 reads:

    operators   | F0 | F1 | B0 | B1 |
    begins[1]        ^         ^
    tensor            [---------]
"""

from dataclasses import dataclass, field

import numpy as np

from mindswap.simulator.program import NO_OP
from mindswap.simulator.schedules.rounds import PassWork
from mindswap.simulator.stage_pass import WEIGHT_HALF, SplitBackward, StagePass, shift
from mindswap.simulator.tensor_lifetimes import PassTensors, StageTensors


@dataclass(eq=False)
class MicroBatchGroup:
    """Micro-batches of a virtual chunk with the same passes, and the start of each pass.

    Mutable: each scheduled pass is added to `begins`.
    """

    forward: StagePass
    backward: StagePass  # unsplit, also if there is a `split`
    split: SplitBackward | None = None  # backward in halves, if the schedule splits it
    # micro-step (micro-batch, or sequence piece numbered over all micro-batches) -> start of its forward, of its
    # backward (or first half), and of its weight gradient half
    begins: dict[int, list[int]] = field(default_factory=dict)

    def stage_pass(self, work: PassWork) -> StagePass:
        """Return the pass that does some work: forward, backward or one of its halves."""
        if work is PassWork.FORWARD:
            return self.forward
        if self.split is None:
            return self.backward
        return self.split.weight_half if work is PassWork.WEIGHT_GRADIENT else self.split.input_half

    def begins_of(self, work: int) -> np.ndarray:
        """Return the starts of forward (0), backward (1) or weight gradients (2): shape (num_micro_steps, 1)."""
        return np.array([begins[work] for begins in self.begins.values()], np.int64)[:, None]

    def in_halves(self, positions: np.ndarray) -> np.ndarray:
        """Translate positions in backward to positions in the halves if it is split."""
        if self.split is None or not len(self.split.positions):
            return positions
        half_positions = self.split.positions
        return np.where(positions == NO_OP, NO_OP, half_positions[np.minimum(positions, len(half_positions) - 1)])

    def uses_in_pass(self, uses: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Return last use in forward, first and last use in backward: shape (3, num_tensors).

        If backward is split and a tensor is read for input gradients, its first use is in the first half.

        Args:
            uses: rows of `Consumers`, shape (num_fields, num_tensors), positions relative to a segment.
            forward: start of the segment of each tensor in forward.
            backward: start of the segment of each tensor in backward.
        """
        last_forward = shift(uses[0], forward)
        first, last, *halves = self.in_halves(shift(uses[1:7], backward))
        if self.split is not None:
            first_input, last_input, first_weight, last_weight = halves
            first = np.where(first_input != NO_OP, first_input, first_weight)
            last = np.where(last_weight != NO_OP, last_weight, last_input)
        return np.array((last_forward, first, last))

    def in_backward(self, positions: np.ndarray) -> np.ndarray:
        """Return absolute positions in backward of each micro-step: shape (num_micro_steps, num_positions)."""
        in_pass = shift(positions, self.begins_of(1))
        if self.split is None:
            return in_pass
        return np.where(positions >= WEIGHT_HALF, positions - WEIGHT_HALF + self.begins_of(2), in_pass)

    def expand(self, tensors: PassTensors, last_compute: int) -> StageTensors:
        """Repeat tensors for every micro-step.

        Args:
            tensors: tensors of one micro-step.
            last_compute: last compute operator of the stage, until which inputs of the optimizer are live.
        """
        forward, num_micro_steps = self.begins_of(0), len(self.begins)
        micro_steps = np.array(list(self.begins))[:, None]
        begin = np.where(tensors.is_forward.astype(bool), tensors.begin + forward, self.in_backward(tensors.begin))
        begin = np.where(tensors.is_live_from_later_starts & (micro_steps > 0), forward, begin)
        last_backward = np.where(tensors.is_optimizer_input, last_compute, self.in_backward(tensors.last_backward))

        def repeat(column: np.ndarray) -> np.ndarray:
            return np.concatenate([column] * num_micro_steps)

        return StageTensors(
            size_bytes=repeat(tensors.size_bytes),
            is_forward=repeat(tensors.is_forward),
            begin=begin.ravel(),
            last_forward=shift(tensors.last_forward, forward).ravel(),
            first_backward=self.in_backward(tensors.first_backward).ravel(),
            last_backward=last_backward.ravel(),
            kind=repeat(tensors.kind),
            part=repeat(tensors.part),
            label=repeat(tensors.label),
            layer=repeat(tensors.layer),
            prefetch=repeat(tensors.prefetch),
            num_copies=repeat(tensors.num_copies),
            is_resident=repeat(tensors.is_resident),
            is_optimizer_input=repeat(tensors.is_optimizer_input),
            micro_batch=np.broadcast_to(micro_steps, (num_micro_steps, len(tensors))).ravel(),
        )
