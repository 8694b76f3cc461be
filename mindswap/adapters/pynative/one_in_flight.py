"""Schedule of a pipeline stage that runs one micro-batch after the other, to record a stage. Imported as `pipeline`."""

from collections.abc import Callable
from typing import Any

from mindswap.adapters.pynative.hyper_parallel_stand_in.pipeline import Schedule1F1B

RunPass = Callable[[Callable[[], None], Callable[[], None]], None]


class OneInFlight(Schedule1F1B):
    """Forward and backward of a micro-batch, then those of the next one.

    Other stages would wait for each other like this; in a dry run no stage waits.

    Args:
        schedule: the schedule that it replaces.
        run_pass: calls forward and backward of a micro-batch.
    """

    def __init__(self, schedule: Schedule1F1B, run_pass: RunPass):
        super().__init__(schedule.stage, schedule.micro_batch_num)
        self._run_pass = run_pass

    def run(self, **columns: Any) -> list[Any]:
        """Run a step; see `Schedule1F1B.run`."""
        losses: list[Any] = []
        for index in range(self.micro_batch_num):
            self._run_micro_batch(index, self._micro_batch(columns, index), losses)
        return losses

    def _run_micro_batch(self, index: int, micro_batch: dict[str, Any], losses: list[Any]) -> None:
        def run_forward() -> None:
            output = self.stage.forward_one_chunk(index, micro_batch)
            if self.stage.is_last_stage:
                losses.append(output if isinstance(output, tuple) else (output,))

        self._run_pass(run_forward, lambda: self.stage.backward_one_chunk(index))
