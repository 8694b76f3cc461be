"""MindSpeed's adaptive memory: a setting for each layer from an additive knapsack.

Source:
    Ascend/MindSpeed, `mindspeed/core/memory/adaptive_memory/adaptive_memory_solver.py`, and the page
    "adaptive memory" of its documentation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mindswap.policy.cell_tree import SEPARATOR
from mindswap.policy.model import Layers, OpRecompute, Policy
from mindswap.simulator.program_builder import StageLayout
from mindswap.simulator.step_model import StepModel
from other_systems.layer_profile import LayerSetting, list_settings, tensors_of
from other_systems.saved import saved_tensors, swap_policy

__all__ = ["knapsack"]

# The search for the memory to reckon with ends at this part of the budget; the original ends at 1 MiB.
SEARCH_PARTS = 4096


@dataclass(frozen=True)
class _Fill:
    """Settings of the first layers of a stage; `time_ns` is None for none."""

    settings: tuple[LayerSetting, ...] = ()
    kept_bytes: int = 0
    time_ns: int | None = None


def knapsack(model: StepModel, budget_bytes: int) -> Policy:
    """Fills a knapsack for each pipeline stage, and shrinks it until the step fits.

    Kept bytes and recompute times of modules, measured on one layer, are added up over the layers, those of a
    layer as often as micro-batches are in flight. What this leaves out shows when the job runs out of memory;
    then it tries less, by halving. Here the simulated peak of the stage says whether it does.

    How it is mapped: modules are cells; swap of a module moves the tensors that its operators save, also what was
    made before it, by the layer before in the case of the first. The original waits for copies out at the end of
    the layer's forward and starts copies in at the begin of its backward; the prefetch distance of each tensor is
    the longer of these two ways, so neither comes sooner than there. Two things cannot be written: the rescue of
    tensors by the allocator when memory runs out in the middle of a step, and swap of one output of several that
    another operator reads (of LayerNorm), which MindSpore 2.9 does not move.
    """
    settings = list_settings(model)
    stages = [_layers_of(model.layout, stage) for stage in range(model.layout.num_stages)]
    low = [model.static[stage].total_bytes for stage in range(len(stages))]
    high = [budget_bytes] * len(stages)
    tried = list(high)
    best = [(settings[0],) * len(layers) for layers, _ in stages]
    is_first = True
    while is_first or any(upper - lower > budget_bytes // SEARCH_PARTS for lower, upper in zip(low, high, strict=True)):
        is_first = False
        chosen = [
            fill_knapsack(settings, in_flight, memory - model.static[stage].total_bytes)
            for stage, ((_, in_flight), memory) in enumerate(zip(stages, tried, strict=True))
        ]
        step = model.simulate(_to_policy(model, stages, chosen))
        for stage, activation_bytes in enumerate(step.activation_bytes):
            if activation_bytes + model.static[stage].total_bytes <= budget_bytes:
                low[stage], best[stage] = tried[stage], chosen[stage]
            else:
                high[stage] = tried[stage]
            tried[stage] = (low[stage] + high[stage]) // 2
    return _to_policy(model, stages, best)


def fill_knapsack(
    settings: Sequence[LayerSetting], in_flight: Sequence[int], free_bytes: int
) -> tuple[LayerSetting, ...]:
    """A setting for each layer of a stage: least time within the memory, as the original's table finds it.

    The table has a row for each setting and a column for each number of layers, and one entry each, the
    quickest that fits, not one for each amount of memory: it need not find the best. Layers for which nothing
    is found are recomputed.

    Args:
        settings: what to choose from; the first is recompute of the layer.
        in_flight: for each layer the micro-batches that it keeps activations of.
        free_bytes: memory for activations.
    """
    num_layers = len(in_flight)
    before = [0]
    for number in in_flight:
        before.append(before[-1] + number)
    row = [_Fill() for _ in range(num_layers + 1)]
    for setting in settings:
        above = row
        row = list(above)
        for end in range(num_layers + 1):
            for count in range(1, end + 1):
                start = above[end - count]
                if len(start.settings) != end - count:
                    continue
                kept = start.kept_bytes + (before[end] - before[end - count]) * setting.kept_bytes
                time_ns = (start.time_ns or 0) + count * setting.time_ns
                known_ns = row[end].time_ns
                if kept <= free_bytes and (known_ns is None or time_ns <= known_ns):
                    row[end] = _Fill((*start.settings, *(setting,) * count), kept, time_ns)
    chosen = row[num_layers].settings
    return (*chosen, *(settings[0],) * (num_layers - len(chosen)))


def _layers_of(layout: StageLayout, stage: int) -> tuple[list[int], list[int]]:
    """Layers of a stage in order of its chunks, and the micro-batches in flight of each.

    As `get_chunk_num_warmup_micro_batches` counts them.
    """
    num_stages, chunks = layout.num_stages, layout.chunks[stage]
    last_section = max(section for every in layout.chunks for chunk in every for section in chunk)
    if num_stages == 1:
        warm_ups = [1] * len(chunks)
    elif len(chunks) == 1:
        warm_ups = [num_stages - stage]
    else:
        total = (num_stages - stage - 1) * 2 + (len(chunks) - 1) * num_stages + 1
        spare = min(total, layout.num_micro_batches * len(chunks)) - num_stages * len(chunks)
        warm_ups = [num_stages] * len(chunks)
        warm_ups[0] += max(0, spare)
        warm_ups[-1] += min(0, spare)
    layers, in_flight = [], []
    for chunk, number in zip(chunks, warm_ups, strict=True):
        chunk_layers = [section - 1 for section in chunk if 0 < section < last_section]
        layers += chunk_layers
        in_flight += [number] * len(chunk_layers)
    return layers, in_flight


def _to_policy(
    model: StepModel,
    stages: Sequence[tuple[list[int], list[int]]],
    chosen: Sequence[tuple[LayerSetting, ...]],
) -> Policy:
    swaps = []
    full_layers: list[int] = []
    recomputed_layers: dict[str, list[int]] = {}
    for (layers, _), settings in zip(stages, chosen, strict=True):
        for layer_index, setting in zip(layers, settings, strict=True):
            if setting.is_whole:
                full_layers.append(layer_index)
            for module in setting.recomputed:
                recomputed_layers.setdefault(module, []).append(layer_index)
            for module in setting.swapped:
                num_forward = len(model.layer_block(Policy(), layer_index).forward)
                swaps += [
                    (tensor, max(1, tensor.first_backward, num_forward - tensor.producer_op_index))
                    for tensor in tensors_of(module, saved_tensors(model, layer_index))
                ]
    return Policy(
        is_swap_enabled=True,
        op_swap=swap_policy(swaps).op_swap,
        layer_recompute=Layers(tuple(sorted(full_layers))),
        select_recompute=tuple(
            OpRecompute(module.replace(".", SEPARATOR), Layers(tuple(sorted(layers))))
            for module, layers in recomputed_layers.items()
        ),
    )
