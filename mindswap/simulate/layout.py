"""Pipeline settings -> which section of the model is on which stage, in which order they run. Pure."""

from mindswap.config.pipeline import SCHEDULERS, LayoutError, Pipeline
from mindswap.errors import SimulationError
from mindswap.simulate.schedules import SCHEDULES, Shape, find_schedule
from mindswap.simulate.stage_layout import StageLayout

__all__ = ["lay_out_stages", "require_schedule"]


def lay_out_stages(pipeline: Pipeline, num_layers: int, num_micro_batches: int, num_sequences: int = 1) -> StageLayout:
    """Sections of each virtual chunk of each stage, as `StageLayout` numbers them.

    Args:
        pipeline: pipeline settings of the configuration.
        num_layers: layers of the model.
        num_micro_batches: micro-batches of one step.
        num_sequences: pieces that each sequence is cut into.

    Raises:
        SimulationError: if the layers cannot be spread as the settings ask, or the schedule is not known.
    """
    require_schedule(pipeline, num_micro_batches, num_sequences, known=tuple(SCHEDULES))
    try:
        cells = list(pipeline.layout(num_layers).cells())
    except LayoutError as error:
        raise SimulationError(f"pipeline: {error}") from None
    chunks: list[list[tuple[int, ...]]] = [[] for _ in range(pipeline.num_stages)]
    for cell in cells:
        sections = tuple(index + 1 for index in cell.layers)
        if cell is cells[0]:
            sections = (0, *sections)
        if cell is cells[-1]:
            sections = (*sections, num_layers + 1)
        if not sections:
            raise SimulationError(f"pipeline: chunk {cell.chunk} of stage {cell.stage} has no layers")
        chunks[cell.stage].append(sections)
    scheduler = pipeline.scheduler if pipeline.num_stages > 1 else "1f1b"
    return StageLayout(tuple(tuple(stage) for stage in chunks), num_micro_batches, (), scheduler, num_sequences)


def require_schedule(
    pipeline: Pipeline,
    num_micro_batches: int,
    num_sequences: int = 1,
    place: str = "pipeline_scheduler",
    known: tuple[str, ...] = SCHEDULERS,
) -> None:
    """Refuses a schedule that is not known, and a step that it does not take; without a pipeline none acts.

    Args:
        pipeline: pipeline settings of the configuration.
        num_micro_batches: micro-batches of one step.
        num_sequences: pieces that each sequence is cut into.
        place: where the schedule is set, for the message.
        known: names that may be asked for; by default those that a configuration may have.

    Raises:
        SimulationError: if the step would run in an order that is not simulated, or MindSpore would not run it.
    """
    if pipeline.num_stages == 1:
        return
    name = pipeline.scheduler
    if name not in known:
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
