"""zero_bubble_v: two chunks placed in a V; weight gradients of some micro-batches fill the bubble.

The second chunk traverses the stages in reverse, so the first stage has the embedding and the head. Backward passes
that would leave a bubble are split: input gradients, which the previous stage needs, run first, weight gradients later.

Source: `ZeroBubbleV::ProcessStep1` to `ProcessStep8`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/
zero_bubble_v.cc, and `InferNeedDetachInfo`, detach_backward.cc (mindspore-ai/mindspore_test, 0581d15), with the
variable ZBV_offset not set. Idea: Qi et al., "Pipeline parallelism with controllable memory" (NeurIPS 2024), V-ZB;
the overlapped middle as in DualPipeV.

    stage 0 of 2, 4 micro-batches, chunks a and b, I and W the two halves of a backward:
    F0a F1a  F2a F0b  I0b W0b F1b  B1b F3a B0a F2b  B2b B1a F3b  B3b I2a  I3a  W2a W3a
"""

from mindswap.simulator.schedules.rounds import Pass, PassWork, PipelineSchedule, Shape, order_gpipe

KINDS = {"F": PassWork.FORWARD, "B": PassWork.BACKWARD, "W": PassWork.WEIGHT_GRADIENT}


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    """Return the passes of a stage in one step; as gpipe with fewer micro-batches than MindSpore accepts."""
    if shape.num_micro_batches < 2 * shape.num_stages:
        return order_gpipe(stage, shape)
    behind, num_micro_batches = shape.num_stages - stage - 1, shape.num_micro_batches
    cut = split_micro_batches(stage, shape)
    steps = (  # (repetitions, passes as kind of work and chunk)
        (2 * behind, "F0"),
        (stage + 1, "F0 F1"),
        (behind, "B1 W1 F1"),
        (num_micro_batches - 2 * shape.num_stages + stage + 1, "B1 F0 B0 F1"),
        (behind, "B1 B0 F1"),
        (stage + 1, "B1 B0"),
        (behind, "W0 B0" if stage else "B0"),
        (len(cut[0]) - (behind if stage else 0), "W0"),
        (len(cut[1]) - behind, "W1"),
    )
    pending_micro_batches = {name: iter(range(num_micro_batches)) for name in ("F0", "F1", "B0", "B1")}
    pending_micro_batches |= {f"W{chunk}": iter(micro_batches) for chunk, micro_batches in enumerate(cut)}
    passes = []
    for times, names in steps:
        for name in names.split() * times:
            kind, chunk, micro_batch = KINDS[name[0]], int(name[1]), next(pending_micro_batches[name])
            is_split = kind is PassWork.BACKWARD and micro_batch in cut[chunk]
            passes.append(Pass(chunk, micro_batch, PassWork.INPUT_GRADIENT if is_split else kind))
    return tuple(passes)


def split_micro_batches(stage: int, shape: Shape) -> tuple[list[int], list[int]]:
    """Return the micro-batches of each chunk with a split backward: first of the warm-up, last of the step."""
    behind, last = shape.num_stages - stage - 1, shape.num_micro_batches - 1
    half = (stage + 1) // 2
    down = {last - i for i in range(shape.num_stages - half)}
    up = {*range(behind), *(last - i for i in range(half))}
    return sorted(down), sorted(up)


def refusal(shape: Shape) -> str:
    """Return why the schedule cannot arrange this shape; "" where it can."""
    if shape.num_stages < 2:
        return "it takes 2 stages or more"
    if shape.num_chunks != 2:
        return "it takes pp_interleave_num: 2 and pipeline_interleave: True"
    if shape.num_micro_batches < 2 * shape.num_stages:
        return f"it takes {2 * shape.num_stages} micro-batches or more, twice the stages, not {shape.num_micro_batches}"
    return ""


ZERO_BUBBLE_V = PipelineSchedule(
    order, lambda shape, minimum: min(shape.num_micro_batches, max(minimum, 2 * shape.num_stages)), refusal
)
