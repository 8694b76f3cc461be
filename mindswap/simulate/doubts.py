"""What MindSpore does and is not in a simulated step, in words. Pure."""

from mindswap.config.step import StepSettings
from mindswap.graph.model import Graph
from mindswap.graph.ranks.gather import is_gathering
from mindswap.simulate.captured import find_tied_parameters

__all__ = ["list_doubts"]


def list_doubts(captured: Graph, gathered: Graph, settings: StepSettings) -> tuple[str, ...]:
    """What is left out of a step.

    Args:
        captured: the step with whole weights.
        gathered: the same with weights cut and gathered.
        settings: of the step.
    """
    return (*_describe_tied(captured, settings), *_describe_gathers(gathered, settings))


def _describe_tied(graph: Graph, settings: StepSettings) -> tuple[str, ...]:
    """What is left out where a weight is on the first and on the last pipeline stage."""
    if settings.pipeline.num_stages == 1:
        return ()
    return tuple(
        f"{parameter.name} is read by the first and the last pipeline stage: MindSpore sends it for every micro-batch, "
        "and its gradient back; the memory of that is counted, its time is not"
        for parameter in find_tied_parameters(graph)
    )


def _describe_gathers(graph: Graph, settings: StepSettings) -> tuple[str, ...]:
    """Where MindSpore gathers weights in another type than is simulated: seen in its frontend with lazy_inline on."""
    if settings.num_micro_batches > 1 or settings.pipeline.num_stages > 1:
        return ()
    if not any(node.op == "Cast" for node in graph.forward if is_gathering(node)):
        return ()
    return (
        "with one micro-batch and no pipeline MindSpore 2.9 gathers these weights in float32 and casts them behind: "
        "while forward runs up to as much again as the gathered weights may be needed, which is not in the peak; "
        "param_init_type equal to compute_dtype, or gradient accumulation, avoids it",
    )
