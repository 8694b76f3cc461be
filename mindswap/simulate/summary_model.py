"""What every report and picture of a simulated step is made from. Pure data; every figure is simulated."""

from dataclasses import dataclass

from mindswap.simulate.program import MemoryKind
from mindswap.simulate.timeline import MemoryProfile, StallCause, StepTerm, Timeline

__all__ = ["Cause", "DeviceFigure", "Holder", "LayerRow", "Moment", "SimulationReport", "StageReport"]


@dataclass(frozen=True)
class DeviceFigure:
    """A figure of the device that the simulation used.

    Attributes:
        name: in words: `link to the host (D2H)`.
        value: with its unit.
        source: where it is from.
        is_main: one of those that decide most; they stand in captions.
    """

    name: str
    value: str
    source: str
    is_main: bool = True


@dataclass(frozen=True)
class Moment:
    """When the memory of a stage is highest.

    Attributes:
        time_ns: from the start of the step.
        phase: `forward`, `backward` or `recompute`, of the operator that runs then.
        layer: of that operator; -1 outside the layers.
        micro_batch: of that operator.
        label: name of that operator.
    """

    time_ns: int
    phase: str
    layer: int
    micro_batch: int
    label: str


@dataclass(frozen=True)
class Holder:
    """Activations of one operator and kind, all layers together, that are on the device at the peak.

    Attributes:
        label: operator that made them.
        kind: what they are there for.
        size_bytes: all of them.
        num_tensors: how many pieces of memory.
        layers: where, rising; -1 for outside the layers.
    """

    label: str
    kind: MemoryKind
    size_bytes: int
    num_tensors: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Cause:
    """Copies of one operator that the compute stream had to wait for.

    Attributes:
        label: operator whose activation is copied.
        cause: `StallCause.COPY_OUT` or `StallCause.COPY_IN`.
        layers: whose copies were waited for, rising.
        exposed_ns: time waited, all stages and micro-batches together.
    """

    label: str
    cause: StallCause
    layers: tuple[int, ...]
    exposed_ns: int


@dataclass(frozen=True)
class LayerRow:
    """One layer, per micro-batch; the exposed time is of the whole step.

    Attributes:
        layer: index in the model; -1 outside the layers.
        stage: pipeline stage.
        kept_bytes: on the device from forward to backward.
        swapped_bytes: copied out, and in again.
        recomputed_bytes: made again in backward.
        num_copies: tensors that are swapped.
        forward_ns, backward_ns: time on the compute stream; backward without recompute.
        recompute_ns: time of the operators that run again.
        exposed_ns: waited for copies of this layer, all micro-batches.
        out_only_bytes: copied out and never read back.
    """

    layer: int
    stage: int
    kept_bytes: int
    swapped_bytes: int
    recomputed_bytes: int
    num_copies: int
    forward_ns: int
    backward_ns: int
    recompute_ns: int
    exposed_ns: int
    out_only_bytes: int = 0


@dataclass(frozen=True, eq=False)
class StageReport:
    """One pipeline stage, as each of its cards sees it.

    The step is `compute_ns` and the four kinds of waiting, nothing else; `compute_ns` contains `recompute_ns`.

    Attributes:
        stage: which.
        static_parts: memory that is there all the time: (name, bytes), such as parameters or workspace.
        memory: activations over time.
        moment: when memory is highest.
        holders: what is on the device then, largest first.
        compute_ns, recompute_ns: busy time of the compute stream, and the part of it that is recompute.
        bubble_ns: nothing to do: other stages had not sent yet, or were not done yet.
        copy_out_ns, copy_in_ns: exposed: compute waited for a copy.
        communication_ns: exposed: compute waited for a collective.
        swapped_bytes: copied out in the step, and in again.
        offload_busy_ns, prefetch_busy_ns: time that each direction of the link is in use.
        host_bytes: most pinned host memory at a time.
    """

    stage: int
    static_parts: tuple[tuple[str, int], ...]
    memory: MemoryProfile
    moment: Moment | None
    holders: tuple[Holder, ...]
    compute_ns: int
    recompute_ns: int
    bubble_ns: int
    copy_out_ns: int
    copy_in_ns: int
    communication_ns: int
    swapped_bytes: int
    offload_busy_ns: int
    prefetch_busy_ns: int
    host_bytes: int

    @property
    def static_bytes(self) -> int:
        """Memory that is taken all the time."""
        return sum(size_bytes for _, size_bytes in self.static_parts)

    @property
    def peak_bytes(self) -> int:
        """Highest device memory, static parts included."""
        return self.static_bytes + self.memory.peak_bytes

    @property
    def exposed_copy_ns(self) -> int:
        """Time that compute waited for copies in either direction."""
        return self.copy_out_ns + self.copy_in_ns


@dataclass(frozen=True, eq=False)
class SimulationReport:
    """A simulated training step with everything that is said about it.

    Attributes:
        title: what was simulated: the name of the configuration.
        device_title: on what.
        figures: the figures of the device that were used.
        timeline: when everything ran.
        stages: one per pipeline stage.
        layers: one per layer of the model, in order; what is outside the layers is left out.
        causes: who makes compute wait for copies, longest first.
        terms: what a step consists of besides the timeline; they come after it.
        num_tokens: of one step, all cards.
        num_cards: that work on it.
        model_flops: of one step without recompute, all cards.
        peak_flops: of one card, floating point operations per second.
        budget_bytes: device memory that may be used; None for no limit.
        host_bytes_per_node: most pinned host memory of a node.
        notes: what the reader must know.
        outside_bytes: of one card, beside what MindSpore may use: buffers of HCCL.
        outside: the same in words; "" for none.
    """

    title: str
    device_title: str
    figures: tuple[DeviceFigure, ...]
    timeline: Timeline
    stages: tuple[StageReport, ...]
    layers: tuple[LayerRow, ...]
    causes: tuple[Cause, ...]
    terms: tuple[StepTerm, ...]
    num_tokens: int
    num_cards: int
    model_flops: int
    peak_flops: int
    budget_bytes: int | None
    host_bytes_per_node: int
    notes: tuple[str, ...]
    outside_bytes: int = 0
    outside: str = ""

    @property
    def step_time_ns(self) -> int:
        """One training step, end to end."""
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
        """The stage that needs the most device memory."""
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
        """Whether the peak is within the budget; None without a budget."""
        return None if self.budget_bytes is None else self.peak_bytes <= self.budget_bytes
