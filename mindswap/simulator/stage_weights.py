"""Weights of every pipeline stage, with the memory and time that depend on them and not on a policy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from mindswap.config.step_settings import StepSettings
from mindswap.graph.analysis.prediction_layers import has_prediction_layers
from mindswap.graph.constants import constant_bytes, constant_operator_bytes
from mindswap.graph.model import Graph
from mindswap.graph.sequences import cache_bytes
from mindswap.simulator.captured_step import (
    CapturedStep,
    GradientRule,
    find_parameters,
    find_tied_parameters,
    gradient_key,
)
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.cost.static_memory import (
    FLOAT32_BYTES,
    Parameter,
    StaticMemory,
    estimate_static_memory,
    num_parameter_shards,
    state_sizes,
    workspace_bytes,
)
from mindswap.simulator.cost.step_terms import (
    UNFUSED_OPTIMIZERS,
    accumulate_ns,
    clip_ns,
    move_states_ns,
    optimize_ns,
    overflow_ns,
    reduce_gradient_ns,
    scale_ns,
)
from mindswap.simulator.layout import StageLayout
from mindswap.units import ceil_div


@dataclass(frozen=True, eq=False)
class StageWeights:
    """Weights, static memory and gradient reduction; each tuple has one entry per stage."""

    rule: GradientRule
    parameters: tuple[tuple[Parameter, ...], ...]
    static: tuple[StaticMemory, ...]
    # bytes that the optimizer allocates in addition to the gradients that backward leaves
    closing_bytes: tuple[int, ...]
    closing_gradient_bytes: tuple[int, ...]  # the part of them that are gradients
    forward_bytes: int  # tensors that each virtual chunk computes from constants, live until the last forward
    reduction_ns: tuple[tuple[int, ...], ...]  # time of reducing the gradients of each segment of the model
    min_reduction_ns: int  # minimum exposed reduction time: gradients that are produced at the end of backward


def weigh_stages(
    captured: CapturedStep, plain: Graph, layout: StageLayout, settings: StepSettings, device: Device
) -> StageWeights:
    """Compute weights, static memory and gradient reduction of all stages of a layout.

    Args:
        captured: step with unsharded weights.
        plain: step as it runs without any policy.
        layout: segments of each stage.
        settings: optimizer, sharding and parallelism.
        device: networks between cards, for gradient reduction.

    Raises:
        CostError: if the optimizer is unknown.
    """
    weights = find_parameters(captured.graph, settings.sharding)
    placed = _place_parameters(weights, captured.sample.layer_map, layout)
    tied = () if layout.are_ends_together else find_tied_parameters(captured.graph, settings.sharding)
    if has_prediction_layers(captured.graph):
        # MindFormers gives a last stage that predicts more tokens an embedding of its own, which is trained
        # (docs/internals/notes.md#layers-for-multi-token-prediction).
        placed[-1][:0], tied = [(max(chain(*layout.chunks[-1])), weight) for weight in tied], ()
    parameters = tuple(tuple(parameter for _, parameter in stage) for stage in placed)
    rule = _gradient_rule(weights, settings)
    # With one micro-step, tensors computed from constants are ordinary activations.
    forward_bytes, step_bytes = constant_operator_bytes(plain) if settings.num_micro_steps > 1 else (0, 0)
    reduction_ns = tuple(_reduction_ns(stage, captured.num_layers + 2, settings, device) for stage in placed)
    trained = ([weight for weight in stage if weight.is_trained] for stage in parameters)
    closing = [_closing_memory(stage, rule, settings) for stage in trained]
    return StageWeights(
        rule=rule,
        parameters=parameters,
        static=_static_memory(
            captured=captured,
            graph=plain,
            layout=layout,
            parameters=parameters,
            tied=tied,
            settings=settings,
            device=device,
            per_step_bytes=step_bytes,
        ),
        closing_bytes=tuple(memory.total_bytes for memory in closing),
        closing_gradient_bytes=tuple(memory.gradient_bytes for memory in closing),
        forward_bytes=forward_bytes,
        reduction_ns=reduction_ns,
        min_reduction_ns=max(
            min_reduction_ns(stage_reduction_ns, chunks)
            for stage_reduction_ns, chunks in zip(reduction_ns, layout.chunks, strict=True)
        ),
    )


def min_reduction_ns(reduction_ns: Sequence[int], chunks: Iterable[Sequence[int]]) -> int:
    """Return the minimum exposed time of gradient reduction on a stage, in ns.

    No policy overlaps the reduction of the first layer of the stage and of the segment before the layers.

    Args:
        reduction_ns: time of reducing the gradients of each segment of the model.
        chunks: segments of each virtual chunk of the stage; 0 is before the layers.
    """
    return sum(reduction_ns[: max(min(chain(*chunks), default=1), 1) + 1])


def describe_training(parameters: Sequence[Sequence[Parameter]]) -> tuple[str, ...]:
    """Return a note on how many weights are trained; none where only vectors, such as a router's bias, are not.

    Args:
        parameters: weights of each stage.
    """
    weights = list(chain(*parameters))
    if all(weight.is_trained or len(weight.shape) < 2 for weight in weights):
        return ()
    return (format_trained(sum(weight.is_trained for weight in weights), len(weights)),)


def format_trained(num_trained: int, num_weights: int) -> str:
    """Return a note on how many weights are trained."""
    consequence = "only these have gradients, their communication, and optimizer states"
    return f"{num_trained} of {num_weights} weights are trained: {consequence}"


def update_terms(parameters: Sequence[Sequence[Parameter]], settings: StepSettings, device: Device) -> dict[str, int]:
    """Return the step overhead that no policy changes: name of each term -> ns on the slowest stage."""
    terms = {"gradient accumulation": accumulate_ns, "gradient scaling": scale_ns, "overflow check": overflow_ns}
    if settings.is_clipping:
        terms["gradient clipping"] = clip_ns
    terms["optimizer"] = optimize_ns
    if settings.is_state_offloaded:
        terms["optimizer states, copied"] = move_states_ns
    trained = [[weight for weight in stage if weight.is_trained] for stage in parameters]
    return {name: max(term_ns(weights, settings, device) for weights in trained) for name, term_ns in terms.items()}


def _place_parameters(
    weights: Sequence[Parameter], layer_map: Sequence[int], layout: StageLayout
) -> list[list[tuple[int, Parameter]]]:
    """Return (segment, weight) pairs of each stage; a layer has the weights of its representative layer."""
    # For each segment the source of its weights: (position of a compiled layer, is after the layers).
    sources = [(None, False), *((position, False) for position in layer_map), (None, True)]
    return [
        [
            (segment, weight)
            for segment in chain(*stage)
            for weight in weights
            if (weight.layer_index, weight.is_after_layers) == sources[segment]
        ]
        for stage in layout.chunks
    ]


def _gradient_rule(weights: Sequence[Parameter], settings: StepSettings) -> GradientRule:
    """Build the memory rule of gradients, which have no names, from the names of their weights."""
    num_ranks = settings.sharding.num_ranks
    return GradientRule(
        is_summed=settings.num_micro_steps > 1,
        sharding=settings.sharding,
        unsharded_weights=frozenset(
            gradient_key(weight) for weight in weights if num_parameter_shards(weight, num_ranks) < num_ranks
        ),
        is_shared=max(settings.data_parallel * settings.context_parallel, settings.num_optimizer_shards) > 1,
        unreplicated_weights=frozenset(gradient_key(weight) for weight in weights if weight.num_copies == 1),
    )


def _static_memory(
    captured: CapturedStep,
    graph: Graph,
    layout: StageLayout,
    parameters: Sequence[Sequence[Parameter]],
    tied: Sequence[Parameter],
    settings: StepSettings,
    device: Device,
    per_step_bytes: int,
) -> tuple[StaticMemory, ...]:
    constants = constant_bytes(graph)
    workspace = workspace_bytes((*graph.forward, *graph.backward), device)
    stages = [estimate_static_memory(stage_parameters, settings, workspace) for stage_parameters in parameters]
    if tied:
        # The last stage has a tied weight of the first stage twice, as the received tensor and as the parameter of
        # Receive, and a gradient that it sends back (pipeline_transformer.cc, InsertReceive). Its optimizer state is on
        # the first stage only.
        copies, last = estimate_static_memory(tied, settings), stages[-1]
        stages[-1] = replace(
            last,
            parameter_bytes=last.parameter_bytes + 2 * copies.parameter_bytes,
            gradient_bytes=last.gradient_bytes + copies.gradient_bytes,
        )
    shared_bytes = constants.get(None, 0) + per_step_bytes
    layer_map = captured.sample.layer_map
    layer_bytes = [constants.get(position, 0) + cache_bytes(graph, position) for position in range(max(layer_map) + 1)]
    of_layers = [
        sum(layer_bytes[layer_map[segment - 1]] for segment in chain(*chunks) if 1 <= segment <= len(layer_map))
        for chunks in layout.chunks
    ]
    # Each virtual chunk has its own constants (docs/internals/notes.md#constants-of-virtual-chunks).
    return tuple(
        replace(stage, constant_bytes=shared_bytes * len(chunks) + stage_layer_bytes)
        for stage, stage_layer_bytes, chunks in zip(stages, of_layers, layout.chunks, strict=True)
    )


class _ClosingMemory(NamedTuple):
    """Memory that the optimizer allocates in addition to the gradients that backward leaves."""

    total_bytes: int
    gradient_bytes: int  # scaled gradients, less those that are freed; may be negative


def _closing_memory(parameters: Sequence[Parameter], rule: GradientRule, settings: StepSettings) -> _ClosingMemory:
    """Compute the memory that the optimizer allocates in addition to the gradients that backward leaves.

    Inputs of gradient reductions are freed by then. An optimizer of single operators first computes, for all weights,
    the products that depend on the scaled gradients and on constants only. AdamW then updates the weights in model
    order (`_OptimizerTensors`), and each update frees the gradient and the products of its weight. Optimizer states on
    the host (`optimizer.swap`) are prefetched one after the other with their weights and stay to the end; products are
    then computed after the prefetch (docs/internals/notes.md#adamw-as-single-operators).
    """
    ranks = rule.sharding.num_ranks
    tensors = _optimizer_tensors(settings)
    closing = freed = peak_temporary_bytes = waiting = 0
    gradients = freed_gradients = freed_gradients_at_peak = 0
    for position, parameter in enumerate(parameters):
        shards = num_parameter_shards(parameter, ranks)
        scaled = rule.final_bytes(parameter.size_bytes, parameter.num_elements, shards)
        is_reduced = rule.is_shared and parameter.num_copies != 1
        _, sent_bytes, kept_bytes = rule.parts_bytes(parameter.size_bytes, shards >= ranks, is_reduced)
        gradients, waiting = gradients + max(0, scaled - kept_bytes), waiting + sent_bytes
        float32_bytes = ceil_div(parameter.num_elements * FLOAT32_BYTES, shards)
        if settings.is_state_offloaded:
            freed -= sum(state_sizes(parameter, settings))
            updating = tensors.num_with_states * float32_bytes
            products = 0
        else:
            updating = tensors.num_in_update(position) * float32_bytes
            if parameter.size_bytes < parameter.num_elements * FLOAT32_BYTES:
                updating = max(updating, tensors.num_in_last_kernel * float32_bytes - scaled)
            products = tensors.num_products * float32_bytes
        if updating - freed > peak_temporary_bytes:
            # A fused update frees the gradient before its last kernel, which has a temporary more.
            peak_temporary_bytes, freed_gradients_at_peak = (
                updating - freed,
                freed_gradients + scaled * settings.is_fused,
            )
        closing, freed, freed_gradients = closing + products, freed + scaled + products, freed_gradients + scaled
    total_bytes = max(0, gradients + closing + peak_temporary_bytes - waiting)
    return _ClosingMemory(total_bytes, gradients - waiting - freed_gradients_at_peak)


class _OptimizerTensors(NamedTuple):
    """Tensors of the optimizer in float32, of the shape of a weight, in numbers of them."""

    num_products: int  # computed for all weights before the first update
    num_updating: int  # in the update of a weight, in addition to its gradient and products
    num_updating_first: int  # likewise of the first weight
    # in the last kernel of the update of a weight that is stored in 16 bits; its gradient is freed. 0: not known
    num_in_last_kernel: int = 0

    @property
    def num_with_states(self) -> int:
        """Number of tensors in the update of a weight whose states are prefetched: the copied moment is the state."""
        return max(0, self.num_products + self.num_updating - 1)

    def num_in_update(self, position: int) -> int:
        """Return the number of tensors in the update of the weight at a position of the model."""
        return self.num_updating if position else self.num_updating_first


def _optimizer_tensors(settings: StepSettings) -> _OptimizerTensors:
    """Return the tensors of AdamW; other optimizers are one kernel per weight.

    The new first moment is the sum of the copied moment times `beta1`, which is freed by then, and the gradient times
    `1 - beta1`. The weight is decayed in between, `weight * (1 - rate * decay)`: for all weights before the first
    update if that factor is a constant other than 1, and else in the update of each weight. At jit_level O1 the
    sum is one kernel; the second moment takes as much, a copy, its product with `beta2`, and the decayed weight. Only
    the first weight is decayed later, because its factor is computed in between. The last kernel reads copies of both
    moments and the decayed weight, and writes the weight; one that is stored in 16 bits it returns in float32, and
    another kernel casts and writes it (docs/internals/notes.md#end-of-a-step).
    """
    if settings.optimizer not in UNFUSED_OPTIMIZERS:
        return _OptimizerTensors(0, 0, 0)
    num_decayed = 0 if settings.is_rate_constant else 1
    if settings.is_fused:
        return _OptimizerTensors(0, 2 + num_decayed, 2, 3 + num_decayed)
    num_products = 2 if settings.is_rate_constant and settings.is_decaying else 1
    return _OptimizerTensors(num_products, 2 + num_decayed, 2 + num_decayed)


def _reduction_ns(
    placed: Sequence[tuple[int, Parameter]], num_segments: int, settings: StepSettings, device: Device
) -> tuple[int, ...]:
    """Return the time of reducing the gradients of each segment in ns, one collective per weight."""
    durations = [0] * num_segments
    for segment, parameter in placed:
        if not parameter.is_trained:
            continue
        durations[segment] += reduce_gradient_ns(parameter, settings, device)
    return tuple(durations)
