"""Recording of one step of the PyNative trainer of MindFormers 2.x in the dry run, the main program of a child process.

    python -m mindswap.adapters.pynative.trainer_trace REQUEST.json RESULT.json

As `trainer_dry_run`, without swap and recompute; the request has `text` as well, the configuration to store. The
operators are those of Ascend: fused attention, bfloat16, views without copies.

Steps are those of `recording_trainer`. Operators `MARK` separate the phases of `TRACKED_STEPS` and `RECORDED_STEP`.
Memory is that of the tracked steps, in which the memory tracker writes down every block; the one with the lowest
peak counts, as a loaded host may free later than a training would. In the recorded step the names of all operators are
noted, and one pass is recorded with its tensors and with what autograd saves, which holds all tensors. Of a pipeline
stage one micro-batch after the other runs.
"""

import sys
import traceback
from importlib.metadata import version
from typing import Any

from mindswap.adapters.pynative.trainer_dry_run import answer_request, prepare, synthetic_data
from mindswap.errors import LaunchError
from mindswap.pynative.launched_operators import MARK
from mindswap.pynative.trace import RecordedStep, dump_trace

NOTES = ("recorded with the trainer of MindFormers 2.x in MindSpore's dry run on the Ascend backend, without a card",)


def trace(config: dict[str, Any], sample: dict[str, Any], text: str) -> dict[str, Any]:
    """Record a step.

    Args:
        config: configuration of MindFormers 2.x for one process, without swap and recompute.
        sample: see `trainer_dry_run.dry_run`.
        text: the configuration to store in the trace.

    Returns:
        The trace of one micro-batch, the names of all operators of a step, and the static memory in bytes.
    """
    prepare()
    _leave_out_stacks()
    from mindswap.adapters.graph.apply import read_tree
    from mindswap.adapters.pynative.layers_2x import layers_of
    from mindswap.adapters.pynative.recording_trainer import (
        RECORDED_STEP,
        TRACKED_STEPS,
        RecordingTrainer,
    )

    config["training"]["steps"] = RECORDED_STEP
    count = sample["num_micro_batches"] * sample["batch_size"] * (RECORDED_STEP + 1)
    data = synthetic_data(num_samples=count, **{k: v for k, v in sample.items() if k != "num_micro_batches"})
    trainer = RecordingTrainer(config, data)
    trainer.train()
    (network,) = trainer.model
    if trainer.recorded is None:
        raise LaunchError("the trainer ended before the step that is recorded")
    versions = {name: version(name) for name in ("mindspore", "mindformers")}
    trees = tuple(read_tree(layer) for layer in layers_of(network))
    peaks = {step: max(trainer.steps[step - 1].peaks.values()) for step in TRACKED_STEPS}
    chosen = min(TRACKED_STEPS, key=lambda step: peaks[step])
    names = trainer.noted.names
    return {
        "trace": dump_trace(RecordedStep(trainer.recorded, trees, text, versions, NOTES)),
        "names": names,
        "num_marks_before": names.count(MARK) * (chosen - TRACKED_STEPS[0]),
        "layer_indices": trainer.layer_indices,
        "weight_bytes": trainer.weight_bytes,
        "state_bytes": trainer.state_bytes,
        "peak_bytes": peaks[chosen],
    }


def _leave_out_stacks() -> None:
    """Let the memory tracker write down one frame for each launch, instead of the whole Python stack, which is slow."""
    frame = traceback.FrameSummary(__file__, 0, "")
    traceback.extract_stack = lambda *arguments, **options: traceback.StackSummary.from_list([frame])


if __name__ == "__main__":
    sys.exit(answer_request(trace, sys.argv[1:]))
