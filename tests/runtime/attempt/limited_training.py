"""The package's own training entry in workers with a limit on their memory, to which something happens after a step.

After AFTER_STEP, a step of the whole training, a cache of samples grows by CACHE_BYTES. Where the limit comes first,
LIMIT_BYTES (RLIMIT_DATA of Linux), an allocation fails for real, and the worker dies of it. Without CACHE_BYTES the
worker stops there (SIGSTOP) until it is killed.
"""

import os
import resource
import signal
import sys

import numpy as np
from mindformers.tools.register import MindFormerRegister
from mindformers.tools.register.register import MindFormerModuleType
from mindspore.train.callback import Callback

from mindswap.adapters.training_entry import train

PIECE_BYTES = 10 << 20


class AfterStep(Callback):
    """MindFormers calls it behind its own: what they log and save of the step is there."""

    def __init__(self):
        super().__init__()
        self.cache = []

    def on_train_step_end(self, run_context):
        parameters = run_context.original_args()
        optimizer = parameters.optimizer or parameters.network.optimizer
        if optimizer.global_step.asnumpy().item() != int(os.environ.get("AFTER_STEP", "0")):
            return
        if "CACHE_BYTES" not in os.environ:
            os.kill(os.getpid(), signal.SIGSTOP)
        for _ in range(int(os.environ.get("CACHE_BYTES", "0")) // PIECE_BYTES):
            self.cache.append(np.ones(PIECE_BYTES, np.uint8))


MindFormerRegister.register_cls(AfterStep, MindFormerModuleType.CALLBACK)
if "LIMIT_BYTES" in os.environ and os.environ.get("MS_ROLE") != "MS_SCHED":
    limit = int(os.environ["LIMIT_BYTES"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
train(sys.argv[1:])
