"""Recording of one step of the PyNative trainer of MindFormers 2.x in the dry run, the main program of a child process.

    python -m mindswap.adapters.pynative.trainer_trace REQUEST.json RESULT.json

As `trainer_dry_run`, without swap and recompute; the request has `text` as well, the configuration to store. The
operators are those of Ascend: fused attention, bfloat16, views without copies.

In `NAMED_STEP` the names of all operators are noted. That keeps some tensors for longer, so memory is that of
`TRACKED_STEPS`, in which nothing is noted and MindSpore's memory tracker writes down every block; operators `MARK`
separate the phases of these steps. The tracked step with the lowest peak counts: a loaded host may free later than a
training would. In `RECORDED_STEP` the operators are recorded with their tensors and with what autograd saves, which
holds all tensors.
"""

import sys
import traceback
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any, ClassVar

import mindspore as ms

from mindswap.adapters.pynative.trainer_dry_run import answer_request, prepare, synthetic_data
from mindswap.pynative.step_memory import MARK
from mindswap.pynative.trace import RecordedStep, dump_trace

NOTES = ("recorded with the trainer of MindFormers 2.x in MindSpore's dry run on the Ascend backend, without a card",)
NAMED_STEP, TRACKED_STEPS, RECORDED_STEP = 2, (3, 4), 5  # the first step makes the states of the optimizer
MARKED_STEPS = (NAMED_STEP, *TRACKED_STEPS)


class _NameList(ms.MsDispatchMode):
    """Notes the name of every operator, and nothing else: asking for an address would wait for the launches."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __ms_dispatch__(self, func, args, kwargs=None):
        self.names.append(func.name)
        return func(*args) if not kwargs else func(*args, **kwargs)


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
    from mindformers.pynative.trainer import Trainer

    from mindswap.adapters.graph.apply import read_tree
    from mindswap.adapters.pynative.layers_2x import layers_of
    from mindswap.adapters.pynative.measured_trainer import MeasuredTrainer
    from mindswap.adapters.pynative.record import record

    class RecordingTrainer(MeasuredTrainer):
        """Trainer that notes the operators of one step, and records those of the next."""

        num_steps = 0
        recorded: Any = None
        noted: ClassVar[_NameList] = _NameList()

        def training_step(self, step: int | None = None) -> Any:
            self.num_steps += 1
            if self.num_steps not in MARKED_STEPS:
                return super().training_step(step)
            with self.noted if self.num_steps == NAMED_STEP else nullcontext():
                _mark()
                result = super().training_step(step)
                _mark()
            return result

        def compute_loss(self, model: Any, inputs: Any) -> Any:
            if self.num_steps not in MARKED_STEPS:
                return super().compute_loss(model, inputs)
            _mark()
            loss = super().compute_loss(model, inputs)
            _mark()
            return loss

        def _forward_backward(self, model: Any, inputs: Any) -> Any:
            if self.num_steps == RECORDED_STEP and self.recorded is None:
                (network,) = self.model
                layers = layers_of(network)
                results: list[Any] = []

                def run() -> None:
                    results.append(Trainer._forward_backward(self, model, inputs))

                self.recorded = record(network, layers, run, with_values=True)
                return results[0]
            result = super()._forward_backward(model, inputs)
            if self.num_steps in MARKED_STEPS:
                _mark()
            return result

    config["training"]["steps"] = RECORDED_STEP
    count = sample["num_micro_batches"] * sample["batch_size"] * (RECORDED_STEP + 1)
    data = synthetic_data(num_samples=count, **{k: v for k, v in sample.items() if k != "num_micro_batches"})
    trainer = RecordingTrainer(config, data)
    trainer.train()
    (network,) = trainer.model
    versions = {name: version(name) for name in ("mindspore", "mindformers")}
    trees = tuple(read_tree(layer) for layer in layers_of(network))
    peaks = {step: max(trainer.steps[step - 1].peaks.values()) for step in TRACKED_STEPS}
    chosen = min(TRACKED_STEPS, key=lambda step: peaks[step])
    names = trainer.noted.names
    return {
        "trace": dump_trace(RecordedStep(trainer.recorded, trees, text, versions, NOTES)),
        "names": names,
        "num_marks_before": names.count(MARK) * (chosen - NAMED_STEP),
        "weight_bytes": trainer.weight_bytes,
        "state_bytes": trainer.state_bytes,
        "peak_bytes": peaks[chosen],
    }


def _leave_out_stacks() -> None:
    """Let the memory tracker write down one frame for each launch, instead of the whole Python stack, which is slow."""
    frame = traceback.FrameSummary(__file__, 0, "")
    traceback.extract_stack = lambda *arguments, **options: traceback.StackSummary.from_list([frame])


def _mark() -> None:
    """Run the operator `MARK`, which no network has, on a few bytes."""
    ms.mint.asinh(ms.mint.empty((1,), dtype=ms.float32, device="Ascend"))


if __name__ == "__main__":
    sys.exit(answer_request(trace, sys.argv[1:]))
