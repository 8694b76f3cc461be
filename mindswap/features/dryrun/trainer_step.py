"""Memory of a step of MindFormers' trainer in a dry run, and what was swapped and recomputed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mindswap.pynative.own_copies import LayerCopies


@dataclass(frozen=True)
class StepCopies:
    """Copies between device and host memory in a step."""

    out_bytes: int
    back_bytes: int
    num_out: int
    num_back: int
    peak_host_bytes: int  # pinned host memory


@dataclass(frozen=True)
class WrapperEffect:
    """What a wrapper for swap or recompute did in a step.

    Attributes:
        action: `swap` or `recompute`.
        layer: index of the layer.
        path: dotted path of the cell or function in the layer; "" for the layer itself.
        out_bytes: size of the storages copied to the host that were saved within it.
        back_bytes: size of those copied back.
        num_out: copies to the host.
        num_back: copies to the device.
        num_runs: runs in forward.
        num_recomputed: runs in backward.
    """

    action: str
    layer: int
    path: str
    out_bytes: int = 0
    back_bytes: int = 0
    num_out: int = 0
    num_back: int = 0
    num_runs: int = 0
    num_recomputed: int = 0


@dataclass(frozen=True)
class TrainerStep:
    """Device memory of a step of MindFormers' trainer in bytes, without fragments and workspaces.

    Attributes:
        num_layers: layers of the model that ran, without those for multi-token prediction.
        phase_peaks: peak of `forward`, `backward` and `optimizer`.
        before_bytes: allocated before the step.
        kept_bytes: allocated by the forward pass and kept for backward; in a pipeline stage by all passes in flight.
        gradient_bytes: gradients at the end of the last backward pass.
        weight_bytes: parameters of the network.
        state_bytes: float32 weights and states of the optimizer.
        trained_bytes: parameters of the network that are trained.
        expert_bytes: parameters of experts, of the network and of the optimizer.
        expert_weight_bytes: those of the network alone.
        unit_bytes: parameters of experts, and of others, by what FSDP gathers together: before the layers, of each
            layer, after them.
        backward_profile: parts of the first backward pass, one for each layer: peak, and gradients at its begin; empty
            if extrapolated, of pipeline stages and with mindswap's own executor.
        reserved_bytes: memory that the pool took at most, with fragments, in its blocks of 1 GiB.
        added_by_layer: what the forward pass of each layer allocates beyond what it frees; in order, with the layers
            for multi-token prediction; empty if extrapolated.
        added_by_cell: the same for each cell of each layer, by name; empty if extrapolated.
        wrappers: what was done for each wrapped cell, by layer of the full model; empty if extrapolated, or mindswap's
            own executor swaps.
        layer_copies: copies of each swapped layer; empty if extrapolated.
        copies: swapped memory; None if HyperParallel itself did it.
        uses_stand_in: whether the stand-in for HyperParallel was used.
        set_lines: lines of MindFormers on recomputed and swapped layers.
        own_swap: report of mindswap's own swap, see `mindswap.pynative.ledger.SwapReport`; None without.
        own_targets: layers in which mindswap's own swap moves something, by key path of the entry of the file.
        stage: pipeline stage.
        layer_indices: layers of the stage in the full model; empty without stages.
        wall_s: time of the process in seconds.
    """

    num_layers: int
    phase_peaks: Mapping[str, int]
    before_bytes: int
    kept_bytes: int
    gradient_bytes: int
    weight_bytes: int
    state_bytes: int
    trained_bytes: int
    reserved_bytes: int
    added_by_layer: tuple[int, ...]
    copies: StepCopies | None
    uses_stand_in: bool
    added_by_cell: tuple[Mapping[str, int], ...] = ()
    wrappers: tuple[WrapperEffect, ...] = ()
    layer_copies: tuple[LayerCopies, ...] = ()
    set_lines: tuple[str, ...] = ()
    own_swap: Mapping[str, Any] | None = None
    own_targets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    expert_bytes: int = 0
    expert_weight_bytes: int = 0
    unit_bytes: tuple[tuple[int, int], ...] = ()
    backward_profile: tuple[tuple[int, int], ...] = ()
    stage: int = 0
    layer_indices: tuple[int, ...] = ()
    wall_s: float = 0.0

    @property
    def pass_peak_bytes(self) -> int:
        """Peak of forward and backward."""
        return max(self.phase_peaks["forward"], self.phase_peaks["backward"])

    @property
    def used_peak_bytes(self) -> int:
        """Peak of the step."""
        return max(self.phase_peaks.values())

    @property
    def peak_phase(self) -> str:
        """Phase with the peak of the step."""
        return max(self.phase_peaks, key=lambda phase: self.phase_peaks[phase])


def with_model_layers(step: TrainerStep) -> TrainerStep:
    """Return the step of a pipeline stage with the layers of the full model in its wrappers and copies."""
    if not step.layer_indices:
        return step
    indices = step.layer_indices

    def index_of(layer: int | None) -> int | None:
        return None if layer is None else indices[layer]

    return replace(
        step,
        wrappers=tuple(replace(wrapper, layer=indices[wrapper.layer]) for wrapper in step.wrappers),
        layer_copies=tuple(
            replace(
                copies,
                layer=indices[copies.layer],
                released_by=index_of(copies.released_by),
                fetched_by=index_of(copies.fetched_by),
            )
            for copies in step.layer_copies
        ),
    )


def join_stages(stages: Sequence[TrainerStep]) -> TrainerStep:
    """Return the step that needs most, with what was swapped and recomputed in all pipeline stages."""
    highest = max(stages, key=lambda step: step.used_peak_bytes)
    targets: dict[str, tuple[int, ...]] = {}
    for step in stages:
        for path, layers in step.own_targets.items():
            targets[path] = tuple(sorted({*targets.get(path, ()), *layers}))
    reports = [step.own_swap for step in stages if step.own_swap is not None]
    return replace(
        highest,
        wrappers=tuple(wrapper for step in stages for wrapper in step.wrappers),
        layer_copies=tuple(copies for step in stages for copies in step.layer_copies),
        set_lines=tuple(line for step in stages for line in step.set_lines),
        own_swap=min(reports, key=lambda report: bool(report["is_as_predicted"]), default=None),
        own_targets=targets,
    )
