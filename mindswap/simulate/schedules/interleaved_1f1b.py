"""1f1b with several chunks: rounds of as many micro-batches as stages go through chunk after chunk.

Source: `InterleavedScheduler::Reorder`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/pipeline_scheduler.cc
(mindspore-ai/mindspore_test, 17110c7): `offset_` (micro-batches that make no whole round are in the first one),
`bias_` (warm-up), `SortFuncBetweenMicro` (order of forwards and of backwards). Orders as in Narayanan et al.,
"Efficient large-scale language model training on GPU clusters using Megatron-LM" (SC 2021), section 2.2.

    stage 0 of 2, 2 chunks a and b, 4 micro-batches:
    F0a F1a F0b F1b  F2a B0b F3a B1b F2b B0a F3b B1a  B2b B3b B2a B3a
"""

from mindswap.simulate.schedules.passes import Pass, Shape, warm_up_then_alternate, whole_rounds


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    forward, backward = rounds_in_order(shape)
    rest = shape.num_micro_batches % shape.num_stages
    num_warm_up = (shape.num_stages + rest) * (shape.num_chunks - 1) + (shape.num_stages - stage - 1) * 2
    return warm_up_then_alternate(forward, backward, num_warm_up)


def refusal(shape: Shape) -> str:
    if shape.num_micro_batches < shape.num_stages:
        return f"{shape.num_micro_batches} micro-batches are fewer than {shape.num_stages} stages"
    return ""


def rounds_in_order(shape: Shape) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(chunk, micro-batch) of all forwards, and of all backwards, in order."""
    num_stages, total = shape.num_stages, shape.num_micro_batches
    first = min(total, num_stages + total % num_stages)
    begins = [0, *range(first, total, num_stages)]
    rounds = [range(begin, end) for begin, end in zip(begins, [*begins[1:], total], strict=True)]
    chunks = range(shape.num_chunks)
    forward = [(chunk, micro_batch) for own in rounds for chunk in chunks for micro_batch in own]
    backward = [(chunk, micro_batch) for own in rounds for chunk in reversed(chunks) for micro_batch in own]
    return forward, backward


def short_step(shape: Shape, at_least: int) -> int:
    return whole_rounds(shape.num_micro_batches, shape.num_stages, at_least)
