"""A configuration -> the captured step that simulations start from."""

from dataclasses import replace

from mindswap.adapters.mindformers import capture, choose_layers
from mindswap.config.weight_sharding import RankPlacement
from mindswap.graph.sequences import with_cache_gradients
from mindswap.policy.model import Policy
from mindswap.simulator.captured import CapturedStep


def capture_step(config_path: str, num_layers: int, placement: RankPlacement | None = None) -> CapturedStep:
    """Compile the network of a YAML file, of so many layers, without swap and recompute.

    With a placement tensors are cut as for a rank of it; all pipeline stages are captured, whichever it is on.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    plain = Policy(is_swap_enabled=True)
    if placement is not None and placement.num_stages > 1:
        all_layers = tuple(range(num_layers))
        placement = replace(
            placement, rank=0, num_ranks=placement.num_stage_ranks, num_stages=1, stage=0, layers=all_layers
        )
    sample = choose_layers(config_path, plain, placement)
    found = capture(config_path, plain, sample, placement=placement, with_all_tags=True)
    graph = with_cache_gradients(found.graph)
    return CapturedStep(found.sample, found.layers, graph, found.collectives, found.notes, has_all_tags=True)
