"""Pipeline settings -> which section of the model is on which stage. Pure."""

from mindswap.config.pipeline import LayoutError, Pipeline
from mindswap.errors import SimulationError
from mindswap.simulate.build import StageLayout

__all__ = ["lay_out_stages"]


def lay_out_stages(pipeline: Pipeline, num_layers: int, num_micro_batches: int) -> StageLayout:
    """Sections of each virtual chunk of each stage, as `StageLayout` numbers them.

    Args:
        pipeline: pipeline settings of the configuration.
        num_layers: layers of the model.
        num_micro_batches: micro-batches of one step.

    Raises:
        SimulationError: if the layers cannot be spread as the settings ask, or the schedule is not known.
    """
    if pipeline.is_zero_bubble_v:
        raise SimulationError("pipeline_scheduler zero_bubble_v is not simulated; known: 1f1b")
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
