"""Pipeline settings -> which section of the model is on which stage. Pure."""

from mindswap.config.pipeline import LayoutError, Pipeline
from mindswap.errors import SimulationError
from mindswap.simulate.build import StageLayout

__all__ = ["SIMULATED", "lay_out_stages", "require_schedule"]

# Schedules whose order is known here.
SIMULATED = ("1f1b",)


def lay_out_stages(pipeline: Pipeline, num_layers: int, num_micro_batches: int) -> StageLayout:
    """Sections of each virtual chunk of each stage, as `StageLayout` numbers them.

    Args:
        pipeline: pipeline settings of the configuration.
        num_layers: layers of the model.
        num_micro_batches: micro-batches of one step.

    Raises:
        SimulationError: if the layers cannot be spread as the settings ask, or the schedule is not known.
    """
    require_schedule(pipeline)
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
    return StageLayout(tuple(tuple(stage) for stage in chunks), num_micro_batches)


def require_schedule(pipeline: Pipeline, place: str = "pipeline_scheduler") -> None:
    """Refuses a schedule whose order is not known; without a pipeline none acts.

    Args:
        pipeline: pipeline settings of the configuration.
        place: where the schedule is set, for the message.

    Raises:
        SimulationError: if the step would run in an order that is not simulated.
    """
    if pipeline.num_stages > 1 and pipeline.scheduler not in SIMULATED:
        raise SimulationError(
            f"{place}: {pipeline.scheduler!r} is not simulated\n    allowed: {', '.join(SIMULATED)}\n"
            f"    fix: pipeline_scheduler: {SIMULATED[0]}"
        )
