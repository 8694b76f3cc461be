"""Parts that models of one step share: compiled layers, transfers, layout, weights, and the cache of blocks."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mindswap.config.step_settings import StepSettings
from mindswap.graph.analysis.collectives import Collective
from mindswap.policy.model import Policy
from mindswap.simulator.captured_step import CapturedStep, list_caveats
from mindswap.simulator.compiled_layers import CompiledLayers
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.transfer import copy_ns, send_ns
from mindswap.simulator.layer_block import Block
from mindswap.simulator.layout import StageLayout, build_stage_layout
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.stage_weights import StageWeights, describe_training, weigh_stages


@dataclass(eq=False)
class BlockCache:
    """Blocks by layer settings and segment, and builders of blocks by layer settings."""

    blocks: dict[tuple[Hashable, int], Block] = field(default_factory=dict)
    builders: dict[Hashable, Callable[[int], Block]] = field(
        default_factory=dict
    )  # the last `step_model.NUM_RECENT` ones


@dataclass(frozen=True, eq=False)
class SharedParts:
    """Parts shared by models of a step that differ in the number of micro-batches or in `is_swapping` only."""

    layers: CompiledLayers
    captured: CapturedStep
    caveats: tuple[str, ...]
    transfers: TransferCosts
    layout: StageLayout
    weights: StageWeights
    collectives: Mapping[str, tuple[Collective, ...]]
    has_single_micro_step: bool  # of the step as configured, whatever the number of micro-batches of a model
    cache: BlockCache = field(default_factory=BlockCache)


def make_parts(
    captured: CapturedStep, costs: CostTable, settings: StepSettings, fixed: Policy | None, caveats: tuple[str, ...]
) -> SharedParts:
    """Compute the shared parts; arguments as in `step_model.StepModel`.

    Raises:
        SimulationError: if the pipeline settings do not fit the model.
        CostError: if the optimizer is unknown.
    """
    layers = CompiledLayers(captured, settings, fixed)
    stage_cards = settings.num_cards // settings.pipeline.num_stages
    is_within_node = 2 * stage_cards <= costs.device.num_cards_per_node
    layout = build_stage_layout(
        settings.pipeline, captured.num_layers, settings.num_micro_batches, settings.num_sequences
    )
    weights = weigh_stages(captured, layers.plain.graph, layout, settings, costs.device)
    model_caveats = (*describe_training(weights.parameters), *list_caveats(captured.graph, settings))
    return SharedParts(
        layers=layers,
        captured=replace(layers.plain, notes=(*captured.notes, *model_caveats)),
        caveats=(*model_caveats, *caveats),
        transfers=TransferCosts(
            partial(copy_ns, link=costs.device.offload, device=costs.device),
            partial(copy_ns, link=costs.device.prefetch, device=costs.device),
            partial(send_ns, is_within_node=is_within_node, device=costs.device),
            costs.device.contended_permille,
        ),
        layout=replace(
            layout,
            closing_bytes=weights.closing_bytes,
            closing_gradient_bytes=weights.closing_gradient_bytes,
            forward_bytes=weights.forward_bytes,
        ),
        weights=weights,
        collectives={**captured.collectives, **layers.gathers},
        has_single_micro_step=layout.num_micro_steps == 1,
    )
