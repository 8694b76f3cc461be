"""Model of a step of MindFormers 2.x (PyNative): what planners and reports ask of it, besides `StepModel`."""

from abc import abstractmethod

from mindswap.policy.model import Policy
from mindswap.simulator.step_model import SimulatedStep, StepModel


class StepModel2x(StepModel):
    """Step model of MindFormers 2.x. In policies, distances count layers, and patterns match entire dotted paths.

    Attributes:
        file_caveats: what of the file is not modelled, as text.
        is_own_engine: whether mindswap's own executor swaps.
        layer_indices: its layers in the full model, of which a pipeline stage has a part; those for multi-token
            prediction last.
    """

    file_caveats: tuple[str, ...]
    is_own_engine: bool
    layer_indices: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        """Number of its layers."""
        return len(self.layer_indices)

    @property
    def outside_bytes(self) -> int:
        """Return 0: which communicators HyperParallel makes, and their buffers, has not been observed."""
        return 0

    @abstractmethod
    def saving_cells(self, min_permille: int) -> list[str]:
        """Return the cells that save at least a part of what their layer saves, in any layer, by dotted path."""

    @abstractmethod
    def has_cell(self, layer: int, path: str) -> bool:
        """Return whether a layer of the model has a cell at a dotted path; "" is the layer itself."""

    def actual_peaks_bytes(self, simulated: SimulatedStep, *, is_level_kept: bool = True) -> tuple[int, ...]:
        """Return the peaks; fragments of the pool are not simulated."""
        return simulated.peaks_bytes


def distance_of(policy: Policy) -> int:
    """Return the distance of the swap of a policy in layers: MindFormers 2.x has one for all entries."""
    return max(distances_of(policy), default=1)


def distances_of(policy: Policy) -> list[int]:
    """Return the distances of all swaps of a policy."""
    return [entry.prefetch for entry in policy.layer_swap] + [entry.prefetch for entry in policy.op_swap]
