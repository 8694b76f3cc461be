"""Callbacks that log while a training runs: the peak of memory, and loss and time of every step.

MindSpore's own statistics of memory come only when a training ends; MindFormers' own line of a step has six digits of
the loss, and whole milliseconds.
"""

import os
import resource
import time

import mindspore as ms
import numpy as np
from mindformers.tools.logger import logger
from mindformers.tools.register import MindFormerRegister
from mindformers.tools.register.register import MindFormerModuleType
from mindspore.train.callback import Callback

from mindswap.training.logs.scan import REPORT_MEMORY
from mindswap.training.logs.step_report import ReportedStep, format_step


class MemoryReport(Callback):
    """Logs the highest use of memory after every step in which it rose.

    On a device the figures are of MindSpore's memory pool. The CPU backend counts nothing: there it is the
    highest resident size of the process.
    """

    def __init__(self):
        super().__init__()
        self.logged = (0, 0)

    def on_train_step_end(self, run_context):
        """Log the peak if it is a new one."""
        peaks = _peaks()
        if peaks[0] > self.logged[0] or peaks[1] > self.logged[1]:
            self.logged = peaks
            logger.info("mindswap: peak memory %d bytes used, %d bytes reserved", *peaks)


def _peaks() -> tuple[int, int]:
    if ms.get_context("device_target") == "CPU":
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        return resident, resident
    return ms.runtime.max_memory_allocated(), ms.runtime.max_memory_reserved()


class StepReport(Callback):
    """Logs every step; a configuration asks for it with `callbacks: [{type: StepReport}]`."""

    def __init__(self):
        super().__init__()
        self.begin_ns = 0

    def on_train_step_begin(self, run_context):
        """Take the time."""
        self.begin_ns = time.monotonic_ns()

    def on_train_step_end(self, run_context):
        """Log the step; reading the loss waits until the device has it."""
        parameters = run_context.original_args()
        outputs = parameters.net_outputs
        loss = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        value = float(np.mean(loss.asnumpy()))
        duration_ns = time.monotonic_ns() - self.begin_ns
        logger.info("%s", format_step(ReportedStep(parameters.cur_step_num, value, duration_ns)))


def add_callbacks(config) -> None:
    """Make both known to MindFormers, and put the report of memory behind the others where an adaptive run asks."""
    for callback in (MemoryReport, StepReport):
        MindFormerRegister.register_cls(callback, MindFormerModuleType.CALLBACK)
    if os.environ.get(REPORT_MEMORY) == "1":
        config.callbacks = [*(config.get("callbacks") or []), {"type": "MemoryReport"}]
