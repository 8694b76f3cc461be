"""Micro-batches of a virtual chunk that are laid down alike: where their passes begin, where their tensors live. Pure.

What a chunk does is made once, at positions from the begin of its passes, and laid down for every micro-batch. Here two
of them on one stage, F forward and B backward, and a tensor that F1 makes and B1 reads:

    operators   | F0 | F1 | B0 | B1 |
    begins[1]        ^         ^
    tensor            [---------]
"""

from dataclasses import dataclass, field

import numpy as np

from mindswap.simulate.program import NO_OP
from mindswap.simulate.stage_pass import NONE, WEIGHT_HALF, StagePass, shift

__all__ = ["TENSOR_COLUMNS", "Turns", "in_halves"]

# Columns of the table of tensors. Positions are absolute; `NO_OP` for no use.
TENSOR_COLUMNS = (
    "size_bytes", "is_forward", "begin", "last_forward", "first_backward", "last_backward", "kind", "label", "layer",
    "micro_batch", "prefetch", "num_copies", "is_held",
)  # fmt: skip


@dataclass(eq=False)
class Turns:
    """Micro-batches of a virtual chunk that are laid down alike: their passes, their tensors, and where they begin.

    Not frozen: what is laid down is added.

    Attributes:
        forward, backward: the passes; `backward` is the whole one, also where it is cut.
        halves: of backward, where it is cut.
        places: where the operators of the whole backward are in the halves; None where it is not cut.
        own: tensors that only one block reads.
        others: what blocks hand on and share.
        begins: for each micro-batch, or piece of a sequence counted over all of them, where its forward,
            its backward (the first half), and the half of its weight gradients begin.
    """

    forward: StagePass
    backward: StagePass
    halves: tuple[StagePass, StagePass] | None
    places: np.ndarray | None
    own: dict[str, np.ndarray] = field(default_factory=dict)
    others: dict[str, np.ndarray] = field(default_factory=dict)
    begins: dict[int, list[int]] = field(default_factory=dict)

    def begins_of(self, which: int) -> np.ndarray:
        """Where forward (0), backward (1) and weight gradients (2) begin; shape (num_turns, 1)."""
        return np.array([begins[which] for begins in self.begins.values()], np.int64)[:, None]

    def in_backward(self, positions: np.ndarray) -> np.ndarray:
        """Absolute positions in backward of each micro-batch: shape (num_turns, num_positions)."""
        placed = shift(positions, self.begins_of(1))
        if self.halves is None:
            return placed
        return np.where(positions >= WEIGHT_HALF, positions - WEIGHT_HALF + self.begins_of(2), placed)

    def laid_down(self, tensors: dict[str, np.ndarray], last_compute: int) -> dict[str, np.ndarray]:
        """The tensors of every micro-batch, one after the other, at the positions of its passes.

        Args:
            tensors: `own` or `others`.
            last_compute: operator up to which gradients stay that are there until the optimizer.
        """
        num = len(self.begins)
        if not num:
            return {name: tensors[name][:0] if name in tensors else np.empty(0, np.int64) for name in TENSOR_COLUMNS}
        forward = self.begins_of(0)
        is_forward = tensors["is_forward"].astype(bool)
        is_final = tensors.get("is_final", np.zeros_like(is_forward))
        micro_batches = np.array(list(self.begins))
        placed = {
            "begin": np.where(is_forward, tensors["begin"] + forward, self.in_backward(tensors["begin"])),
            "last_forward": shift(tensors["last_forward"], forward),
            "first_backward": self.in_backward(tensors["first_backward"]),
            "last_backward": np.where(is_final, last_compute, self.in_backward(tensors["last_backward"])),
            "micro_batch": np.broadcast_to(micro_batches[:, None], (num, len(is_forward))),
        }
        table = {name: np.tile(column, num) for name, column in tensors.items() if name not in placed}
        return table | {name: column.ravel() for name, column in placed.items()}

    def extreme_uses(self, starts: np.ndarray, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last use in backward, by any micro-batch, of what is made once; `NO_OP` where there is none.

        Args:
            starts: for each tensor where its section begins in backward.
            first, last: for each tensor its uses in the section.
        """
        found = []
        for positions, choose in ((first, np.min), (last, np.max)):
            relative = shift(positions, starts, NO_OP, NONE)
            if self.places is not None and len(self.places):
                relative = np.where(relative < 0, relative, self.places[np.maximum(relative, 0)])
            found.append(choose(self.in_backward(relative), axis=0))
        return found[0], found[1]


def in_halves(
    places: np.ndarray,
    first_input: np.ndarray,
    last_input: np.ndarray,
    first_weight: np.ndarray,
    last_weight: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """First and last use where backward is cut, from those in the whole backward by operators of each half."""

    def place(positions: np.ndarray) -> np.ndarray:
        return np.where(positions == NONE, NONE, places[np.maximum(positions, 0)]) if len(places) else positions

    first = np.where(first_input != NONE, place(first_input), place(first_weight))
    last = np.where(last_weight != NONE, place(last_weight), place(last_input))
    return first, last
