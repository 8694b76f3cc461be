"""Micro-batches of a virtual chunk that are laid down alike: where their passes begin, where their tensors live.

What a chunk does is made once, at positions from the begin of its passes, and laid down for every micro-batch. Here two
of them on one stage, F forward and B backward, and a tensor that F1 makes and B1 reads:

    operators   | F0 | F1 | B0 | B1 |
    begins[1]        ^         ^
    tensor            [---------]
"""

from dataclasses import dataclass, field

import numpy as np

from mindswap.simulator.program import NO_OP
from mindswap.simulator.stage_pass import WEIGHT_HALF, StagePass, shift

# Columns of the table of tensors. Positions are absolute; `NO_OP` for no use.
TENSOR_COLUMNS = (
    "size_bytes", "is_forward", "begin", "last_forward", "first_backward", "last_backward", "kind", "label", "layer",
    "micro_batch", "prefetch", "num_copies", "is_held",
)  # fmt: skip


@dataclass(eq=False)
class MicroBatchGroup:
    """Micro-batches of a virtual chunk that are laid down alike: their passes, and where they begin.

    Not frozen: what is laid down is added.
    """

    forward: StagePass
    backward: StagePass  # the whole one, also where it is cut
    halves: tuple[StagePass, StagePass] | None = None  # of backward, where it is cut
    # where the operators of the whole backward are in the halves; None where it is not cut
    places: np.ndarray | None = None
    # for each micro-batch, or piece of a sequence counted over all of them, where its forward, its backward (the first
    # half), and the half of its weight gradients begin
    begins: dict[int, list[int]] = field(default_factory=dict)

    def begins_of(self, which: int) -> np.ndarray:
        """Where forward (0), backward (1) and weight gradients (2) begin; shape (num_turns, 1)."""
        return np.array([begins[which] for begins in self.begins.values()], np.int64)[:, None]

    def placed(self, positions: np.ndarray) -> np.ndarray:
        """Positions in the whole backward, where they are in the halves if it is cut."""
        if self.places is None or not len(self.places):
            return positions
        return np.where(positions == NO_OP, NO_OP, self.places[np.minimum(positions, len(self.places) - 1)])

    def placed_uses(self, uses: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Last use in forward, first and last in backward: shape (3, num_tensors).

        Where backward is cut, the first half has the first of the uses for gradients of inputs, if there is one.

        Args:
            uses: as `TensorArrays.uses`, of some sections.
            forward, backward: where for each tensor its section begins in both passes.
        """
        last_forward = shift(uses[0], forward)
        first, last, *halves = self.placed(shift(uses[1:7], backward))
        if self.places is not None:
            first_input, last_input, first_weight, last_weight = halves
            first = np.where(first_input != NO_OP, first_input, first_weight)
            last = np.where(last_weight != NO_OP, last_weight, last_input)
        return np.array((last_forward, first, last))

    def in_backward(self, positions: np.ndarray) -> np.ndarray:
        """Absolute positions in backward of each micro-batch: shape (num_turns, num_positions)."""
        placed = shift(positions, self.begins_of(1))
        if self.halves is None:
            return placed
        return np.where(positions >= WEIGHT_HALF, positions - WEIGHT_HALF + self.begins_of(2), placed)

    def laid_down(self, tensors: dict[str, np.ndarray], last_compute: int) -> dict[str, np.ndarray]:
        """Tensors of every micro-batch, one after the other; what `is_final` stays until operator `last_compute`."""
        forward = self.begins_of(0)
        is_forward = tensors["is_forward"].astype(bool)
        last_backward = self.in_backward(tensors["last_backward"])
        if "is_final" in tensors:
            last_backward = np.where(tensors["is_final"], last_compute, last_backward)
        micro_batches = np.array(list(self.begins))[:, None]
        placed = {
            "begin": np.where(is_forward, tensors["begin"] + forward, self.in_backward(tensors["begin"])),
            "last_forward": shift(tensors["last_forward"], forward),
            "first_backward": self.in_backward(tensors["first_backward"]),
            "last_backward": last_backward,
            "micro_batch": np.broadcast_to(micro_batches, (len(micro_batches), len(is_forward))),
        }
        table = {name: np.tile(column, len(micro_batches)) for name, column in tensors.items() if name not in placed}
        return table | {name: column.ravel() for name, column in placed.items()}
