"""What MindSpore does and is not in a simulated step, in words. Pure."""

from mindswap.config.step import StepSettings
from mindswap.graph.model import Graph
from mindswap.graph.ranks.gather import is_gathering
from mindswap.simulate.captured import find_tied_parameters


def list_doubts(captured: Graph, gathered: Graph, settings: StepSettings) -> tuple[str, ...]:
    """What is left out of a step: `captured` has whole weights, in `gathered` they are cut and gathered."""
    doubts = []
    if settings.pipeline.num_stages > 1:
        doubts = [
            f"{parameter.name} is read by the first and the last pipeline stage: MindSpore sends it for every "
            "micro-batch, and its gradient back; the memory of that is counted, its time is not"
            for parameter in find_tied_parameters(captured)
        ]
    elif settings.num_micro_batches == 1 and any(node.op == "Cast" and is_gathering(node) for node in gathered.forward):
        # Seen in MindSpore's frontend with lazy_inline on.
        doubts = [
            "with one micro-batch and no pipeline MindSpore 2.9 gathers these weights in float32 and casts them "
            "behind: while forward runs up to as much again as the gathered weights may be needed, which is not in the "
            "peak; "
            "param_init_type equal to compute_dtype, or gradient accumulation, avoids it"
        ]
    return tuple(doubts)
