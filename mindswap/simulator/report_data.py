"""Data of all reports and plots of a simulated step."""

from collections.abc import Mapping
from dataclasses import dataclass

from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import MemoryKind
from mindswap.simulator.timeline import MemoryProfile, StallCause, StepTerm, Timeline


@dataclass(frozen=True)
class DeviceFigure:
    """A device parameter that the simulation used."""

    name: str  # as text: `link to the host (D2H)`
    value: str  # with its unit
    source: str  # origin of the value
    is_main: bool = True  # it is one of the most influential ones


@dataclass(frozen=True)
class Moment:
    """Time of the peak memory of a stage, and the operator that runs then."""

    time_ns: int  # from the start of the step
    phase: str  # `forward`, `backward` or `recompute`, of the operator that runs then
    layer: int  # of that operator; -1 outside the layers
    micro_batch: int  # of that operator
    label: str  # name of that operator


@dataclass(frozen=True)
class PeakContributor:
    """Activations of one operator and memory kind over all layers that are on the device at the peak."""

    label: str  # operator that produces them
    kind: MemoryKind  # purpose of the memory over time
    part: MemoryPart  # part of the memory
    size_bytes: int  # sum of all of them
    num_tensors: int  # number of memory intervals
    layers: tuple[int, ...]  # ascending; -1 for outside the layers


@dataclass(frozen=True)
class Cause:
    """Copies of one operator's activation that the compute stream waited for."""

    label: str  # operator whose activation is copied
    cause: StallCause  # `StallCause.COPY_OUT` or `StallCause.COPY_IN`
    layers: tuple[int, ...]  # layers of these copies, ascending
    exposed_ns: int  # exposed copy time, summed over stages and micro-batches


@dataclass(frozen=True)
class LayerRow:
    """Memory and time of one layer for one micro-batch; the exposed time is that of the full step."""

    layer: int  # index in the model; -1 outside the layers
    stage: int
    kept_bytes: int  # on the device from forward to backward
    swapped_bytes: int  # offloaded and prefetched
    recomputed_bytes: int  # recomputed in backward
    num_copies: int  # copies of swapped tensors
    forward_ns: int  # on the compute stream
    backward_ns: int  # without recompute
    recompute_ns: int  # time of recomputed operators
    exposed_ns: int  # exposed copy time of this layer, all micro-batches
    out_only_bytes: int = 0  # offloaded and never prefetched


@dataclass(frozen=True, eq=False)
class StageReport:
    """Time and memory of one card of a pipeline stage.

    `compute_ns`, `bubble_ns`, `copy_out_ns`, `copy_in_ns` and `communication_ns` add up to the time of the passes;
    `compute_ns` contains `recompute_ns`.
    """

    stage: int
    static_parts: Mapping[MemoryPart, int]  # bytes of static memory, such as weights or workspace
    parts: Mapping[MemoryPart, int]  # bytes at the peak, static memory included; all parts, in their order
    memory: MemoryProfile  # activation memory over time
    moment: Moment  # time of the peak
    holders: tuple[PeakContributor, ...]  # activations on the device at the peak, largest first
    compute_ns: int  # busy time of the compute stream
    recompute_ns: int  # recompute time, included in `compute_ns`
    bubble_ns: int  # pipeline bubble: idle because of other stages
    copy_out_ns: int  # exposed time of offloads
    copy_in_ns: int  # exposed time of prefetches
    communication_ns: int  # exposed time of collectives
    swapped_bytes: int  # bytes that are offloaded in the step
    offload_busy_ns: int  # busy time of the D2H link
    prefetch_busy_ns: int  # busy time of the H2D link
    host_bytes: int  # peak pinned host memory

    @property
    def static_bytes(self) -> int:
        """Static memory of the stage in bytes."""
        return sum(self.static_parts.values())

    @property
    def peak_bytes(self) -> int:
        """Peak device memory in bytes, static memory included."""
        return self.static_bytes + self.memory.peak_bytes

    @property
    def exposed_copy_ns(self) -> int:
        """Exposed time of offloads and prefetches in ns."""
        return self.copy_out_ns + self.copy_in_ns


@dataclass(frozen=True, eq=False)
class SimulationReport:
    """A simulated training step, as all reports show it."""

    title: str  # name of the simulated configuration
    device_title: str  # name of the device
    figures: tuple[DeviceFigure, ...]  # device parameters that were used
    timeline: Timeline  # times of all operators and copies
    stages: tuple[StageReport, ...]  # one per pipeline stage
    layers: tuple[LayerRow, ...]  # one per layer of the model, in order, without the operators outside the layers
    causes: tuple[Cause, ...]  # copies that compute waited for, longest first
    terms: tuple[StepTerm, ...]  # step overhead after the timeline
    num_tokens: int  # tokens of one step, all cards
    num_cards: int  # cards of the job
    model_flops: int  # floating point operations of one step without recompute, all cards
    peak_flops: int  # floating point operations per second of one card
    actual_peaks_bytes: tuple[int, ...]  # peak of each stage with the fragments of the memory pool
    budget_bytes: int | None  # memory budget of one card; None for no limit
    host_bytes_per_node: int  # peak pinned host memory of a node
    notes: tuple[str, ...]  # caveats
    outside_bytes: int = 0  # HCCL buffers of one card, outside MindSpore's pool
    outside: str = ""  # the same as text; "" for none
    margin_permille: int = 0  # thousandths of the budget that plans keep free

    @property
    def step_time_ns(self) -> int:
        """Step time in ns, with the overhead after the passes."""
        return self.timeline.step_time_ns + sum(term.duration_ns for term in self.terms)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and card."""
        return self.num_tokens * 1e9 / (self.step_time_ns * self.num_cards) if self.step_time_ns else 0.0

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, 0 to 1."""
        available = self.peak_flops * self.num_cards * self.step_time_ns
        return self.model_flops * 1e9 / available if available else 0.0

    @property
    def peak_stage(self) -> StageReport:
        """Stage with the highest peak memory."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Peak device memory of the card that needs most, in bytes."""
        return self.peak_stage.peak_bytes

    @property
    def actual_peak_bytes(self) -> int:
        """Peak device memory with fragments of the card that needs most, in bytes."""
        return max(self.actual_peaks_bytes)

    @property
    def exposed_copy_ns(self) -> int:
        """Exposed copy time of the stage that waits longest, in ns."""
        return max(stage.exposed_copy_ns for stage in self.stages)

    @property
    def fits(self) -> bool | None:
        """Return whether the peak with fragments is within the budget; None without a budget."""
        return None if self.budget_bytes is None else self.actual_peak_bytes <= self.budget_bytes
