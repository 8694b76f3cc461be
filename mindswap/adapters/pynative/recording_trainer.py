"""Trainer of MindFormers 2.x that marks the phases of some steps, and records a pass of the last one.

Imported after `hyper_parallel` and MindSpore are prepared.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import mindspore as ms
from mindformers.pynative.trainer import Trainer

from mindswap.adapters.pynative.deferred_record import record_deferred
from mindswap.adapters.pynative.layers_2x import layers_of
from mindswap.adapters.pynative.measured_trainer import MeasuredTrainer
from mindswap.adapters.pynative.one_in_flight import OneInFlight
from mindswap.pynative.trace import Trace

TRACKED_STEPS, RECORDED_STEP = (2, 3), 4  # the first step makes the states of the optimizer
MARKED_STEPS = (*TRACKED_STEPS, RECORDED_STEP)


class _NameList(ms.MsDispatchMode):
    """Notes the name of every operator, and nothing else: asking for an address would wait for the launches."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __ms_dispatch__(self, func, args, kwargs=None):
        self.names.append(func.name)
        return func(*args) if not kwargs else func(*args, **kwargs)


class RecordingTrainer(MeasuredTrainer):
    """Trainer that marks the phases of some steps, and in the last one notes all operators and records a pass.

    Arguments as for `MeasuredTrainer`.

    Attributes:
        num_steps: steps so far.
        recorded: trace of a pass; None before.
        noted: names of all operators of `RECORDED_STEP`.
    """

    def __init__(self, config: dict[str, Any], train_dataset: Any):
        self.num_steps = 0
        self.recorded: Trace | None = None
        self.noted = _NameList()
        super().__init__(config, train_dataset)
        schedule: Any = vars(self)["schedule"]
        if schedule is not None:
            self.schedule = OneInFlight(schedule, self._run_stage)

    def training_step(self, step: int | None = None) -> Any:
        """Train a step."""
        return self._run_step(lambda: super(RecordingTrainer, self).training_step(step))

    def training_pp_step(self) -> Any:
        """Train a step of a pipeline stage."""
        return self._run_step(super().training_pp_step)

    def _run_step(self, run: Callable[[], Any]) -> Any:
        self.num_steps += 1
        if self.num_steps not in MARKED_STEPS:
            return run()
        with self.noted if self.num_steps == RECORDED_STEP else nullcontext():
            _mark()
            result = run()
            _mark()
        return result

    def _run_stage(self, run_forward: Callable[[], None], run_backward: Callable[[], None]) -> None:
        """Run a micro-batch of a pipeline stage."""
        if self.num_steps == RECORDED_STEP and self.recorded is None:
            (network,) = self.model

            def run() -> None:
                run_forward()
                _mark()
                run_backward()

            _mark()
            self.recorded = record_deferred(network, layers_of(network), run)
            _mark()
            return
        for run in (lambda: None, run_forward, run_backward):
            run()
            if self.num_steps in MARKED_STEPS:
                _mark()

    def compute_loss(self, model: Any, inputs: Any) -> Any:
        """Run a forward pass."""
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

            self.recorded = record_deferred(network, layers, run)
            _mark()
            return results[0]
        result = super()._forward_backward(model, inputs)
        if self.num_steps in MARKED_STEPS:
            _mark()
        return result


def _mark() -> None:
    """Run the operator `MARK`, which no network has, on a few bytes."""
    ms.mint.asinh(ms.mint.empty((1,), dtype=ms.float32, device="Ascend"))
