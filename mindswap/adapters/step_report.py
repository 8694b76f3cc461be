"""Loss and time of every step in the log: MindFormers' own line has six digits of the one, and whole milliseconds."""

import time

import numpy as np
from mindformers.tools.logger import logger
from mindformers.tools.register import MindFormerRegister
from mindformers.tools.register.register import MindFormerModuleType
from mindspore.train.callback import Callback

from mindswap.logs.step_report import ReportedStep, format_step

__all__ = ["StepReport", "register_step_report"]


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


def register_step_report() -> None:
    """Make the callback known to MindFormers."""
    MindFormerRegister.register_cls(StepReport, MindFormerModuleType.CALLBACK)
