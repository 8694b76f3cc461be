"""A training script for `mindswap run` that does one step for each line on standard input.

Several of them take turns, so that they meet the same load of the machine. Writes `ready` when the first step,
which compiles, is done, and the seconds of every later step, to the file descriptor in STEP_TIMES_FD.
"""

import os
import sys
import time

from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore.train.callback import Callback

from mindswap.adapters.training_entry import train


@MindFormerRegister.register(MindFormerModuleType.CALLBACK)
class OneStepPerLine(Callback):
    """Holds the training before a step until a line comes; ends it where the input ends."""

    def __init__(self):
        super().__init__()
        self.answers = os.fdopen(int(os.environ["STEP_TIMES_FD"]), "w", buffering=1)
        self.started_s = None

    def on_train_step_begin(self, run_context):
        """Wait for the turn, but for the first step."""
        if run_context.original_args().cur_step_num <= 1:
            return
        if not sys.stdin.readline():
            run_context.request_stop()
        self.started_s = time.perf_counter()

    def on_train_step_end(self, run_context):
        """Say how long the step took; reading the loss waits for its end."""
        for part in run_context.original_args().net_outputs:
            part.asnumpy()
        took = "ready" if self.started_s is None else f"{time.perf_counter() - self.started_s:.6f}"
        print(took, file=self.answers)


train(sys.argv[1:])
