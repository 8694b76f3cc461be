"""1f1b with several chunks: rounds of as many micro-batches as stages go through chunk after chunk.

Source: `InterleavedScheduler::Reorder`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/pipeline_scheduler.cc
(mindspore-ai/mindspore_test, 17110c7): `offset_` (micro-batches that make no whole round are in the first one),
`bias_` (warm-up), `SortFuncBetweenMicro` (order of forwards and of backwards). Orders as in Narayanan et al.,
"Efficient large-scale language model training on GPU clusters using Megatron-LM" (SC 2021), section 2.2.

    stage 0 of 2, 2 chunks a and b, 4 micro-batches:
    F0a F1a F0b F1b  F2a B0b F3a B1b F2b B0a F3b B1a  B2b B3b B2a B3a
"""

from mindswap.simulator.schedules.passes import Pass, Shape
from mindswap.simulator.schedules.seqpipe import order_rounds


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    return order_rounds(stage, shape, rounds_of(shape), 2)


def refusal(shape: Shape) -> str:
    if shape.num_micro_batches < shape.num_stages:
        return f"{shape.num_micro_batches} micro-batches are fewer than {shape.num_stages} stages"
    return ""


def rounds_of(shape: Shape) -> list[int]:
    """Micro-batches of each round: what makes no whole round is in the first one."""
    num_rounds, rest = divmod(shape.num_micro_batches, shape.num_stages)
    return [shape.num_stages + rest, *[shape.num_stages] * (num_rounds - 1)]


def short_step(shape: Shape, at_least: int) -> int:
    """A number from `at_least` on that leaves the same rest in rounds; at most the total."""
    total = shape.num_micro_batches
    return total - max(0, total - at_least) // shape.num_stages * shape.num_stages
