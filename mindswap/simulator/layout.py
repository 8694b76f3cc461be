"""Assignment of the segments of a model to pipeline stages and virtual chunks, and the order of their passes."""

from dataclasses import dataclass

from mindswap.config.pipeline_layout import SCHEDULERS, LayoutError, Pipeline
from mindswap.errors import SimulationError
from mindswap.simulator.schedules import SCHEDULES, find_schedule, order_passes
from mindswap.simulator.schedules.rounds import WITH_PIECES, Pass, PassWork, Shape

# Limit of forward passes through single layers in a simulated step, which then takes about 8 GB of memory.
MAX_LAYER_PASSES = 250_000


@dataclass(frozen=True)
class StageLayout:
    """Segments of the model on each stage and virtual chunk, and the schedule."""

    # for each stage and virtual chunk, its segments in forward order, as positions in the list of blocks (0 is before
    # the layers, the last one after them)
    chunks: tuple[tuple[tuple[int, ...], ...], ...]
    num_micro_batches: int = 1
    # for each stage, bytes of gradients and temporaries that the optimizer allocates in addition to the gradients of
    # backward; none if empty
    closing_bytes: tuple[int, ...] = ()
    scheduler: str = "1f1b"  # a name of `schedules.SCHEDULES`
    num_sequences: int = 1  # pieces that each sequence is split into
    forward_bytes: int = 0  # bytes on each stage until its last forward ends
    # for each stage, the part of `closing_bytes` that are gradients; negative if more of backward are freed than scaled
    closing_gradient_bytes: tuple[int, ...] = ()

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.chunks)

    @property
    def num_micro_steps(self) -> int:
        """Forward passes of each chunk: sequence pieces of all micro-batches."""
        return self.num_micro_batches * self.num_sequences

    @property
    def shape(self) -> Shape:
        """Numbers of stages, chunks, micro-batches and sequence pieces, as the schedules take them."""
        num_chunks = max(map(len, self.chunks))
        return Shape(self.num_stages, num_chunks, self.num_micro_batches, self.num_sequences)

    def passes(self, stage: int) -> tuple[Pass, ...]:
        """Return the passes of a stage in one step, in execution order."""
        return order_passes(self.scheduler, stage, self.shape)

    def num_ahead(self, stage: int) -> int | None:
        """Return the number of warm-up forward passes of a 1F1B stage; None if the stage runs another order."""
        order = [entry.work for entry in self.passes(stage)]
        if len(self.chunks[stage]) > 1 or self.num_sequences > 1 or PassWork.WEIGHT_GRADIENT in order:
            return None
        ahead = order.index(PassWork.BACKWARD)
        alternation = [PassWork.BACKWARD, PassWork.FORWARD] * (self.num_micro_batches - ahead)
        expected = [PassWork.FORWARD] * ahead + alternation + [PassWork.BACKWARD] * ahead
        return ahead if order == expected else None

    def stage_of(self, segment: int) -> int:
        """Return the pipeline stage of a segment."""
        return next(stage for stage, chunks in enumerate(self.chunks) if any(segment in chunk for chunk in chunks))

    def short_of(self, num_micro_batches: int) -> int:
        """Return a number of micro-batches for a shorter step with the same steady state.

        Args:
            num_micro_batches: requested number.

        Returns:
            The requested number or slightly more, as the schedule needs; at most that of the step.
        """
        return find_schedule(self.scheduler, self.shape).short_step(self.shape, num_micro_batches)

    @property
    def are_ends_together(self) -> bool:
        """Return whether the same stage has the segments before and after the layers."""
        last = max(segment for chunks in self.chunks for stage_chunks in chunks for segment in stage_chunks)
        return self.stage_of(0) == self.stage_of(last)


def build_stage_layout(
    pipeline: Pipeline, num_layers: int, num_micro_batches: int, num_sequences: int = 1
) -> StageLayout:
    """Assign the segments of a model to stages and virtual chunks.

    Args:
        pipeline: stages, chunks, offsets and schedule.
        num_layers: layers of the model.
        num_micro_batches: micro-batches of a step.
        num_sequences: pieces that each sequence is split into.

    Raises:
        SimulationError: if the layers cannot be assigned as the settings require, the schedule is unknown, or the step
            exceeds `MAX_LAYER_PASSES`.
    """
    num_passes = num_layers * num_micro_batches * num_sequences
    if num_passes > MAX_LAYER_PASSES:
        raise SimulationError(
            f"a step of {num_micro_batches} micro-batches is too long to simulate: {num_passes} passes through layers\n"
            f"    allowed: up to {MAX_LAYER_PASSES} passes, {MAX_LAYER_PASSES // (num_layers * num_sequences)} "
            "micro-batches here\n"
            "    fix: fewer micro-batches in a step (micro_batch_num, gradient_accumulation_steps)"
        )
    require_schedule(pipeline, num_micro_batches, num_sequences, accepted=tuple(SCHEDULES))
    try:
        cells = list(pipeline.layout(num_layers).cells())
    except LayoutError as error:
        raise SimulationError(f"pipeline: {error}") from None
    chunks: list[list[tuple[int, ...]]] = [[] for _ in range(pipeline.num_stages)]
    for cell in cells:
        segments = tuple(index + 1 for index in cell.layers)
        if cell is cells[0]:
            segments = (0, *segments)
        if cell is cells[-1]:
            segments = (*segments, num_layers + 1)
        chunks[cell.stage].append(segments)
    scheduler = pipeline.scheduler if pipeline.num_stages > 1 else "1f1b"
    return StageLayout(tuple(tuple(stage) for stage in chunks), num_micro_batches, (), scheduler, num_sequences)


def require_schedule(
    pipeline: Pipeline,
    num_micro_batches: int,
    num_sequences: int = 1,
    place: str = "pipeline_scheduler",
    accepted: tuple[str, ...] = SCHEDULERS,
) -> None:
    """Check that the schedule is known and accepts the step; a single stage needs no schedule.

    Args:
        pipeline: stages, chunks and schedule.
        num_micro_batches: micro-batches of a step.
        num_sequences: pieces that each sequence is split into.
        place: key that sets the schedule, for the message.
        accepted: accepted names; by default those that a configuration may have.

    Raises:
        SimulationError: if the execution order of the step is not simulated, or MindSpore refuses the step.
    """
    if pipeline.num_stages == 1:
        return
    name = pipeline.scheduler
    if name not in accepted:
        allowed = ", ".join(SCHEDULERS)
        raise SimulationError(
            f"{place}: {name!r} is not known\n    allowed: {allowed}\n    fix: pipeline_scheduler: 1f1b"
        )
    shape = Shape(pipeline.num_stages, pipeline.num_chunks, num_micro_batches, num_sequences)
    refusal = find_schedule(name, shape).refusal(shape)
    if refusal:
        raise SimulationError(
            f"{place}: MindSpore refuses {name} here: {refusal}\n    fix: change that, or pipeline_scheduler: seqpipe"
        )
    if num_sequences > 1 and pipeline.num_chunks > 1 and name not in WITH_PIECES:
        raise SimulationError(
            f"{place}: in which order {name} runs pieces of sequences (seq_split_num) is not known here\n"
            f"    allowed: {', '.join(WITH_PIECES)}\n    fix: pipeline_scheduler: seqpipe"
        )
