"""zero_bubble_v: two chunks in the shape of a V, weight gradients of some micro-batches fill the bubble.

The second chunk runs through the stages backwards, so the first stage has the embedding and the head. Where nothing
can be waited for usefully, backward is cut: what the stage before needs goes first, gradients of weights later.

Source: `ZeroBubbleV::ProcessStep1` to `ProcessStep8`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/
zero_bubble_v.cc, and `InferNeedDetachInfo`, detach_backward.cc (mindspore-ai/mindspore_test, 0581d15), with the
variable ZBV_offset not set. Idea: Qi et al., "Pipeline parallelism with controllable memory" (NeurIPS 2024), V-ZB;
the overlapped middle as in DualPipeV.

    stage 0 of 2, 4 micro-batches, chunks a and b, I and W the two halves of a backward:
    F0a F1a  F2a F0b  I0b W0b F1b  B1b F3a B0a F2b  B2b B1a F3b  B3b I2a  I3a  W2a W3a
"""

from collections.abc import Iterator

from mindswap.simulate.schedules.passes import Pass, Shape, Work

__all__ = ["order", "refusal", "round_size"]

DOWN, UP = 0, 1  # the chunks


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    """What a stage does in one step."""
    behind, num_micro_batches = shape.num_stages - stage - 1, shape.num_micro_batches
    cut = {(UP, i) for i in range(behind)}
    cut |= {(UP, num_micro_batches - 1 - i) for i in range((stage + 1) // 2)}
    cut |= {(DOWN, num_micro_batches - 1 - i) for i in range(shape.num_stages - (stage + 1) // 2)}
    passes: list[Pass] = []
    forward = {chunk: iter(range(num_micro_batches)) for chunk in (DOWN, UP)}
    backward = {chunk: iter(range(num_micro_batches)) for chunk in (DOWN, UP)}
    weights = {chunk: iter(sorted(i for own, i in cut if own == chunk)) for chunk in (DOWN, UP)}

    def go(chunk: int) -> None:
        passes.append(Pass(chunk, next(forward[chunk]), Work.FORWARD))

    def back(chunk: int) -> None:
        micro_batch = next(backward[chunk])
        work = Work.INPUT_GRADIENT if (chunk, micro_batch) in cut else Work.BACKWARD
        passes.append(Pass(chunk, micro_batch, work))

    def finish(chunk: int, which: Iterator[int]) -> None:
        passes.extend(Pass(chunk, micro_batch, Work.WEIGHT_GRADIENT) for micro_batch in which)

    def finish_one(chunk: int) -> None:
        finish(chunk, iter([next(weights[chunk])]))

    for _ in range(2 * behind):  # step 1
        go(DOWN)
    for _ in range(stage + 1):  # step 2
        go(DOWN), go(UP)
    for _ in range(behind):  # step 3
        back(UP), finish_one(UP), go(UP)
    for _ in range(num_micro_batches - 2 * shape.num_stages + stage + 1):  # step 4
        back(UP), go(DOWN), back(DOWN), go(UP)
    for _ in range(behind):  # step 5
        back(UP), back(DOWN), go(UP)
    for _ in range(stage + 1):  # step 6
        back(UP), back(DOWN)
    for _ in range(behind):  # step 7
        if stage:
            finish_one(DOWN)
        back(DOWN)
    finish(DOWN, weights[DOWN])  # step 8
    finish(UP, weights[UP])
    return tuple(passes)


def refusal(shape: Shape) -> str:
    """Why MindSpore refuses this shape; "" if it takes it."""
    if shape.num_stages < 2:
        return "it takes 2 stages or more"
    if shape.num_chunks != 2:
        return "it takes pp_interleave_num: 2 and pipeline_interleave: True"
    if shape.num_micro_batches < 2 * shape.num_stages:
        return f"it takes {2 * shape.num_stages} micro-batches or more, twice the stages, not {shape.num_micro_batches}"
    return ""


def round_size(shape: Shape) -> int:
    """Micro-batches after which a full pipeline does the same again."""
    return 1
