"""Peak memory in the log while a training runs: MindSpore's own statistics come only when it ends."""

import os
import resource

import mindspore as ms
from mindformers.tools.logger import logger
from mindformers.tools.register import MindFormerRegister
from mindformers.tools.register.register import MindFormerModuleType
from mindspore.train.callback import Callback

from mindswap.logs.scan import REPORT_MEMORY

__all__ = ["MemoryReport", "add_memory_report"]


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


def add_memory_report(config) -> None:
    """Put the report behind the callbacks of a configuration, where an adaptive run asks for it."""
    if os.environ.get(REPORT_MEMORY) != "1":
        return
    MindFormerRegister.register_cls(MemoryReport, MindFormerModuleType.CALLBACK)
    config.callbacks = [*(config.get("callbacks") or []), {"type": "MemoryReport"}]
