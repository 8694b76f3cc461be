"""Which weights and gradients are sent together, and how much of that the passes do not hide. Pure.

MindFormers 1.9.0 gives each weight the id of a group: `LayerSetting.set_communication_fusion` in
parallel_core/training_graph/transformer/utils.py for layers, models/llama/llama.py for the embedding and the last
norm. MindSpore puts it on the AllGather and the ReduceScatter or AllReduce of the weight (AddAllGatherAttrs of
step_parallel_utils.cc, AddCommOpFusionType for gradients), and its backend makes one of those with the same id
(AllGatherFusion, ReduceScatterFusion, AllReduceFusion in GEBackendOptimizeACL).

A group goes out when its last gradient is there, and must have arrived when its first weight is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mindswap.cost.static_memory import Parameter

__all__ = ["CommGroup", "exposed_exchange_ns", "exposed_gather_ns", "group_parameters"]

# Sections of a step: before the layers, each layer, behind them.
BEFORE = 0
PIPELINE_GROUP, DEFAULT_GROUP = 2, 1
# Outside the layers these weights have the last id, the head has the default.
WITH_LAST_GROUP = ("embedding", "norm_out", "final_layernorm")


@dataclass(frozen=True)
class CommGroup:
    """Weights that are sent together.

    Attributes:
        first_section: the first section in forward that reads one of them, the last in backward that makes a gradient.
        parameters: all of them.
    """

    first_section: int
    parameters: tuple[Parameter, ...]


def group_parameters(
    placed: Sequence[tuple[int, Parameter]], num_layers: int, num_groups: int, is_pipeline: bool
) -> tuple[CommGroup, ...]:
    """The groups of one stage, by their first section.

    Args:
        placed: weights with their section: 0 before the layers, i + 1 in layer i, num_layers + 1 behind them.
        num_layers: of the whole model.
        num_groups: `gradient_aggregation_group`.
        is_pipeline: there are several stages; all layers are one group then.
    """
    layers_per_group = max((num_layers + 1) // num_groups, 1)
    members: dict[int, list[tuple[int, Parameter]]] = {}
    for section, parameter in placed:
        if BEFORE < section <= num_layers:
            group = PIPELINE_GROUP if is_pipeline else (section - 1) // layers_per_group + 1
        elif any(part in parameter.name for part in WITH_LAST_GROUP):
            group = PIPELINE_GROUP if is_pipeline else num_groups
        else:
            group = DEFAULT_GROUP
        members.setdefault(group, []).append((section, parameter))
    groups = (
        CommGroup(min(section for section, _ in own), tuple(parameter for _, parameter in own))
        for own in members.values()
    )
    return tuple(sorted(groups, key=lambda group: group.first_section))


def exposed_exchange_ns(groups: Sequence[tuple[int, int]], backward_ns: Sequence[int]) -> int:
    """Time behind backward until all gradients are exchanged.

    Args:
        groups: first section and duration of each, by first section.
        backward_ns: backward of the last micro-batch, by section.
    """
    end = -sum(backward_ns)
    for first_section, duration_ns in reversed(groups):
        end = max(end, -sum(backward_ns[:first_section])) + duration_ns
    return max(end, 0) if groups else 0


def exposed_gather_ns(groups: Sequence[tuple[int, int]], forward_ns: Sequence[int]) -> int:
    """Time that forward of the first micro-batch waits for its weights.

    Args:
        groups: first section and duration of each, by first section.
        forward_ns: forward of the first micro-batch, by section.
    """
    arrived = waited = 0
    for first_section, duration_ns in groups:
        arrived += duration_ns
        waited = max(waited, arrived - sum(forward_ns[:first_section]))
    return waited
