"""Data of every report and picture of a simulated step; every figure is simulated."""

from dataclasses import dataclass

from mindswap.simulator.program import MemoryKind
from mindswap.simulator.timeline import MemoryProfile, StallCause, StepTerm, Timeline


@dataclass(frozen=True)
class DeviceFigure:
    """A figure of the device that the simulation used."""

    name: str  # in words: `link to the host (D2H)`
    value: str  # with its unit
    source: str  # where it is from
    is_main: bool = True  # one of those that decide most


@dataclass(frozen=True)
class Moment:
    """Moment at which the memory of a stage is highest."""

    time_ns: int  # from the start of the step
    phase: str  # `forward`, `backward` or `recompute`, of the operator that runs then
    layer: int  # of that operator; -1 outside the layers
    micro_batch: int  # of that operator
    label: str  # name of that operator


@dataclass(frozen=True)
class PeakContributor:
    """Activations of one operator and kind, all layers together, that are on the device at the peak."""

    label: str  # operator that made them
    kind: MemoryKind  # what they are there for
    size_bytes: int  # all of them
    num_tensors: int  # how many pieces of memory
    layers: tuple[int, ...]  # where, rising; -1 for outside the layers


@dataclass(frozen=True)
class Cause:
    """Copies of one operator that the compute stream had to wait for."""

    label: str  # operator whose activation is copied
    cause: StallCause  # `StallCause.COPY_OUT` or `StallCause.COPY_IN`
    layers: tuple[int, ...]  # whose copies were waited for, rising
    exposed_ns: int  # time waited, all stages and micro-batches together


@dataclass(frozen=True)
class LayerRow:
    """One layer, per micro-batch; the exposed time is of the whole step."""

    layer: int  # index in the model; -1 outside the layers
    stage: int
    kept_bytes: int  # on the device from forward to backward
    swapped_bytes: int  # copied out, and in again
    recomputed_bytes: int  # made again in backward
    num_copies: int  # tensors that are swapped
    forward_ns: int  # on the compute stream
    backward_ns: int  # without recompute
    recompute_ns: int  # time of the operators that run again
    exposed_ns: int  # waited for copies of this layer, all micro-batches
    out_only_bytes: int = 0  # copied out and never read back


@dataclass(frozen=True, eq=False)
class StageReport:
    """One pipeline stage, as each of its cards sees it.

    The step is `compute_ns` and the four kinds of waiting, nothing else; `compute_ns` contains `recompute_ns`.
    """

    stage: int
    # memory that is there all the time: (name, bytes), such as parameters or workspace
    static_parts: tuple[tuple[str, int], ...]
    memory: MemoryProfile  # activations over time
    moment: Moment  # when memory is highest
    holders: tuple[PeakContributor, ...]  # what is on the device then, largest first
    compute_ns: int  # busy time of the compute stream
    recompute_ns: int  # the part of it that is recompute
    bubble_ns: int  # nothing to do: other stages had not sent yet, or were not done yet
    copy_out_ns: int  # exposed: compute waited for a copy to the host
    copy_in_ns: int  # exposed: compute waited for a copy back
    communication_ns: int  # exposed: compute waited for a collective
    swapped_bytes: int  # copied out in the step, and in again
    offload_busy_ns: int  # the link to the host is in use
    prefetch_busy_ns: int  # the link back is in use
    host_bytes: int  # most pinned host memory at a time

    @property
    def static_bytes(self) -> int:
        """Return all static memory of the stage."""
        return sum(size_bytes for _, size_bytes in self.static_parts)

    @property
    def peak_bytes(self) -> int:
        """Highest device memory, static parts included."""
        return self.static_bytes + self.memory.peak_bytes

    @property
    def exposed_copy_ns(self) -> int:
        """Return the time that compute waited for copies."""
        return self.copy_out_ns + self.copy_in_ns


@dataclass(frozen=True, eq=False)
class SimulationReport:
    """A simulated training step with everything that is said about it."""

    title: str  # what was simulated: the name of the configuration
    device_title: str  # on what
    figures: tuple[DeviceFigure, ...]  # the figures of the device that were used
    timeline: Timeline  # when everything ran
    stages: tuple[StageReport, ...]  # one per pipeline stage
    layers: tuple[LayerRow, ...]  # one per layer of the model, in order; what is outside the layers is left out
    causes: tuple[Cause, ...]  # who makes compute wait for copies, longest first
    terms: tuple[StepTerm, ...]  # what a step consists of besides the timeline; they come after it
    num_tokens: int  # of one step, all cards
    num_cards: int  # that work on it
    model_flops: int  # of one step without recompute, all cards
    peak_flops: int  # of one card, floating point operations per second
    budget_bytes: int | None  # device memory that may be used; None for no limit
    host_bytes_per_node: int  # most pinned host memory of a node
    notes: tuple[str, ...]  # what the reader must know
    outside_bytes: int = 0  # of one card, beside what MindSpore may use: buffers of HCCL
    outside: str = ""  # the same in words; "" for none
    margin_permille: int = 0  # of that memory, which plans keep free
    weight_casts: frozenset[str] = frozenset()  # labels that hold gathered weights: casts of them

    @property
    def step_time_ns(self) -> int:
        """Return the time of a step, with the work behind the passes."""
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
        """Return the stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any card."""
        return self.peak_stage.peak_bytes

    @property
    def exposed_copy_ns(self) -> int:
        """Time that compute waited for copies, on the stage that waited longest."""
        return max(stage.exposed_copy_ns for stage in self.stages)

    @property
    def fits(self) -> bool | None:
        """The peak is within the budget; None without a budget."""
        return None if self.budget_bytes is None else self.peak_bytes <= self.budget_bytes
