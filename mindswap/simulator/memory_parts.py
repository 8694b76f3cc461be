"""Parts of the device memory: the one list for the simulated memory and for the memory pool of a dry run.

The role of a tensor's producer in the step decides its part (`TensorRole`), unless backward saves the tensor or a
prefetch brings it back (`live_part`). Both sides only find out these facts, each from its own graph.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, auto


class MemoryPart(IntEnum):
    """Part of the device memory, in the order of all reports."""

    WEIGHTS = 0  # as stored, the shard of this rank
    MASTER_WEIGHTS = 1  # copies of the weights in float32 for the optimizer
    OPTIMIZER_STATES = 2
    ACCUMULATED_GRADIENTS = 3  # sums over micro-batches
    GRADIENTS = 4  # of weights: as produced, reduced, or scaled for the optimizer
    GATHERED_WEIGHTS = 5  # all-gathered over ranks, or cast to the compute dtype
    SAVED_ACTIVATIONS = 6  # produced in forward and read by backward
    RECOMPUTED_ACTIVATIONS = 7
    PREFETCHED_COPIES = 8  # back from the host
    ACTIVATION_GRADIENTS = 9  # tensors of backward that are neither recomputed nor gradients of weights
    TEMPORARIES = 10  # live within forward
    COMMUNICATION = 11  # results of collectives and transfers that backward does not read
    LOSS = 12  # of the segment after the layers, in forward and in backward: norm, head and loss
    OPTIMIZER_TEMPORARIES = 13
    CONSTANTS = 14  # constants, inputs, and tensors computed from constants alone
    WORKSPACE = 15
    OTHER = 16

    @property
    def title(self) -> str:
        """Name in reports."""
        return self.name.lower().replace("_", " ")


# Parts that are live during the entire step.
STATIC_PARTS = (
    MemoryPart.WEIGHTS,
    MemoryPart.MASTER_WEIGHTS,
    MemoryPart.OPTIMIZER_STATES,
    MemoryPart.ACCUMULATED_GRADIENTS,
    MemoryPart.CONSTANTS,
    MemoryPart.WORKSPACE,
)


class Phase(Enum):
    """Phase of a step in which an operator runs."""

    FORWARD = auto()
    BACKWARD = auto()
    OPTIMIZER = auto()  # after backward: scaling, clipping and the update of the weights


class Origin(Enum):
    """What a tensor is computed from."""

    ACTIVATIONS = auto()  # from the inputs of the step, among others
    WEIGHTS = auto()  # from weights alone
    CONSTANTS = auto()  # from constants alone


@dataclass(frozen=True)
class TensorRole:
    """Role of a tensor in the step, by its producer."""

    phase: Phase
    origin: Origin = Origin.ACTIVATIONS
    is_recomputed: bool = False
    is_weight_gradient: bool = False
    is_after_layers: bool = False  # its producer is in the segment after the layers
    is_communication: bool = False  # its producer is a collective or a transfer

    @property
    def part(self) -> MemoryPart:
        """Part of the memory, if backward does not save the tensor and no prefetch produced it."""
        is_of_backward = self.phase is Phase.BACKWARD and not self.is_recomputed
        rules = (
            (self.is_weight_gradient, MemoryPart.GRADIENTS),
            (self.phase is Phase.OPTIMIZER, MemoryPart.OPTIMIZER_TEMPORARIES),
            (self.origin is Origin.WEIGHTS, MemoryPart.GATHERED_WEIGHTS),
            (self.origin is Origin.CONSTANTS and not is_of_backward, MemoryPart.CONSTANTS),
            (self.is_after_layers, MemoryPart.LOSS),
            (self.is_recomputed, MemoryPart.RECOMPUTED_ACTIVATIONS),
            (self.is_communication, MemoryPart.COMMUNICATION),
            (is_of_backward, MemoryPart.ACTIVATION_GRADIENTS),
        )
        return next((part for holds, part in rules if holds), MemoryPart.TEMPORARIES)


# Parts of tensors that are saved activations if backward reads them, or if they wait for their offload.
SAVED_FROM = (MemoryPart.TEMPORARIES, MemoryPart.COMMUNICATION)


def live_part(part: MemoryPart, is_saved: bool, is_prefetched: bool = False) -> MemoryPart:
    """Return the part of a tensor.

    Args:
        part: part by its role.
        is_saved: whether it is produced in forward, and backward reads it or a copy of it.
        is_prefetched: whether it is the result of a prefetch.
    """
    if is_prefetched:
        return MemoryPart.PREFETCHED_COPIES
    return MemoryPart.SAVED_ACTIVATIONS if is_saved and part in SAVED_FROM else part
