"""The compiled network as it is with the parallel optimizer: shared by the commands that show it."""

from dataclasses import replace
from typing import TYPE_CHECKING

from mindswap.config.weight_sharding import read_weight_sharding
from mindswap.document.source import load_document
from mindswap.graph.ranks.gather import gather_weights
from mindswap.units import format_bytes

if TYPE_CHECKING:
    from mindswap.adapters.mindformers import Capture

__all__ = ["with_gathered_weights"]


def with_gathered_weights(compiled: "Capture", config_path: str) -> "Capture":
    """A compiled network with the AllGathers of weights, which the frontend inserts for Ascend only.

    Args:
        compiled: the network; weights are whole.
        config_path: MindFormers YAML: whether and how the parallel optimizer cuts weights.
    """
    sharding = read_weight_sharding(load_document(config_path))
    if not compiled.graph.has_lazy_inline:
        return compiled
    gathered = gather_weights(compiled.graph, sharding)
    if not gathered.collectives:
        return compiled
    until = "is gathered again for backward" if sharding.is_released else "stays until backward has read it"
    sizes = {entry.size_bytes for entries in gathered.collectives.values() for entry in entries}
    note = (
        f"the parallel optimizer cuts weights over {sharding.num_ranks} ranks: the output of each AllGather, up to "
        f"{format_bytes(max(sizes))}, {until}; added by the rules of MindSpore's step_parallel.cc, which does not run "
        "for the CPU"
    )
    return replace(compiled, graph=gathered.graph, notes=(*compiled.notes, note))
