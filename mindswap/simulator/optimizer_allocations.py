"""Allocations of the end of a step in order: scaled gradients, clipped gradients and temporaries of the optimizer.

The program of a step has one interval for all of this memory, which is enough for the peak. A memory pool without
virtual memory needs the tensors one by one, because one buffer of all of them would need a larger block.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mindswap.config.step_settings import StepSettings
from mindswap.simulator.captured_step import GradientRule
from mindswap.simulator.cost.static_memory import (
    FLOAT32_BYTES,
    Parameter,
    num_parameter_shards,
    parameter_tensors,
    state_sizes,
)
from mindswap.simulator.cost.step_terms import UNFUSED_OPTIMIZERS
from mindswap.units import ceil_div

# Allocations (+) and releases (-) of the update of a weight by AdamW, in float32 and of its shape, as a dry run records
# them (docs/internals/notes.md#end-of-a-step): gradient g and its product p with 1 - beta1; copied moments m and v;
# decayed weight d; results a and b of operators; the step s. Fused and as single operators. The factor of decay is
# computed in the update of the first weight, which is therefore decayed later.
FUSED_FIRST = "+m +a -m -a +v +b -v +d -b -g +m +v +s -m -v -d -s"
FUSED = "+m +d +a -m -a +v +b -v -b -g +m +v +s -m -v -d -s"
SINGLE = "+m +d +a -m +b -a -p -b +v +a -v +b -a -g -b +m +v +a -v +b -a +a -b +b -m -a +a -b +s -a -d -s"


class Allocation(NamedTuple):
    """An allocation or a release of a tensor at the end of a step."""

    tensor: tuple[int, str]  # position of the weight, and the name of the tensor
    size_bytes: int  # 0 for a release


class FinalGradient(NamedTuple):
    """Gradient of a weight at the end of backward, and when the optimizer reads it."""

    backward_bytes: int  # tensor that backward leaves, freed when it is scaled; 0 if it is an accumulator
    scaled_bytes: int


def persistent_tensors(parameters: Sequence[Parameter], settings: StepSettings) -> list[int]:
    """Return the sizes of the tensors of weights that stay during the step, in the order of their allocation, in bytes.

    Weights come first, then accumulated gradients, then the states of each weight, those of vectors first: MindFormers
    has a group of parameters without decay. All are allocated from the last weight to the first.

    Args:
        parameters: weights of a stage, in the order of the model.
        settings: optimizer, sharding and accumulation.
    """
    tensors = [(weight, parameter_tensors(weight, settings)) for weight in reversed(parameters)]
    vectors_first = sorted(tensors, key=lambda entry: len(entry[0].shape) > 1)
    sizes = [entry.weight_bytes for _, entry in tensors]
    sizes += [entry.accumulator_bytes for _, entry in tensors]
    sizes += [size_bytes for _, entry in vectors_first for size_bytes in entry.state_bytes]
    return [size_bytes for size_bytes in sizes if size_bytes]


def final_gradients(
    parameters: Sequence[Parameter], rule: GradientRule, settings: StepSettings
) -> tuple[FinalGradient, ...]:
    """Return the gradient of each trained weight.

    Args:
        parameters: trained weights of a stage, in the order of the model.
        rule: memory of gradients.
        settings: sharding by the parallel optimizer.
    """
    num_ranks = settings.num_optimizer_shards
    gradients = []
    for weight in parameters:
        num_shards = num_parameter_shards(weight, num_ranks)
        is_reduced = rule.is_shared and weight.num_copies != 1
        kept_bytes = rule.parts_bytes(weight.size_bytes, num_shards >= num_ranks, is_reduced)[-1]
        scaled_bytes = rule.final_bytes(weight.size_bytes, weight.num_elements, num_shards)
        gradients.append(FinalGradient(kept_bytes, scaled_bytes))
    return tuple(gradients)


def optimizer_allocations(
    parameters: Sequence[Parameter], gradients: Sequence[FinalGradient], settings: StepSettings
) -> Iterator[Allocation]:
    """List the allocations and releases from the end of backward to that of the step.

    The tensor `(i, "gradient")` is that of backward: it is released here and not allocated.

    Args:
        parameters: trained weights of a stage, in the order of the model.
        gradients: the gradient of each.
        settings: optimizer and its options.
    """
    # The group of parameters without decay, vectors, is the second one. Compilers differ in the order of scaling.
    order = sorted(range(len(parameters)), key=lambda position: len(parameters[position].shape) < 2)
    for position in reversed(order) if settings.is_fused and settings.is_accumulating else order:
        yield Allocation((position, "scaled"), gradients[position].scaled_bytes)
        yield Allocation((position, "gradient"), 0)
    last = "scaled"
    if settings.is_clipping:
        last = "clipped"
        for position in order:
            yield Allocation((position, "clipped"), gradients[position].scaled_bytes)
            yield Allocation((position, "scaled"), 0)
    sizes = [_full_bytes(weight, settings) for weight in parameters]
    for tensor in _products(settings):
        yield from (Allocation((position, tensor), sizes[position]) for position in reversed(order))
    for position in order:
        weight, size_bytes = parameters[position], sizes[position]
        if settings.is_state_offloaded:  # prefetched one after the other, and not released before the end
            states = enumerate(state_sizes(weight, settings))
            yield from (Allocation((position, f"state {number}"), state_bytes) for number, state_bytes in states)
        for step in _update_steps(weight, position == order[0], settings):
            name = last if step == "-g" else step[1:]
            yield Allocation((position, name), size_bytes if step[0] == "+" else 0)


def _full_bytes(weight: Parameter, settings: StepSettings) -> int:
    """Return the size of a temporary of the update of a weight."""
    shards = num_parameter_shards(weight, settings.num_optimizer_shards)
    return ceil_div(weight.num_elements * FLOAT32_BYTES, shards)


def _products(settings: StepSettings) -> str:
    """Return the tensors that single operators compute for all weights, the last one first, before any update."""
    if settings.is_fused or settings.optimizer not in UNFUSED_OPTIMIZERS:
        return ""
    return "pd" if settings.is_rate_constant and settings.is_decaying else "p"


def _update_steps(weight: Parameter, is_first: bool, settings: StepSettings) -> Iterator[str]:
    """Return the allocations and releases of an update.

    A weight is decayed in its update if the factor is computed in each step; otherwise it is one of the products, if it
    is decayed at all. The kernel that fuses the step assigns it to a float32 weight.
    """
    if settings.optimizer not in UNFUSED_OPTIMIZERS:
        return iter(("-g",))
    left_out = {"+d"} if settings.is_rate_constant else set()
    if settings.is_rate_constant and "d" not in _products(settings):
        left_out.add("-d")
    if settings.is_fused and weight.size_bytes == weight.num_elements * FLOAT32_BYTES:
        left_out |= {"+s", "-s"}
    steps = SINGLE if not settings.is_fused else FUSED_FIRST if is_first else FUSED
    return (step for step in steps.split() if step not in left_out)
