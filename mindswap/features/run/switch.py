"""Switch mindswap on in a script that was started without `mindswap run`, for `MINDSWAP=1` (see mindswap_switch.py)."""

import atexit
import sys
from types import TracebackType

from mindswap.errors import MindswapError, PolicyError
from mindswap.features.run import PluggedTraining, hint_after_failure, install_plugin, read_training
from mindswap.report.problems import format_problems
from mindswap.system.streams import print_text


def switch_on(argv: list[str]) -> None:
    """Install the plugin in this process, whose script has just imported MindFormers.

    Args:
        argv: script and options of the training.

    Raises:
        MindswapError: if the configuration cannot be trained. The process then ends with the message and exit code 1.
    """
    ending = _Ending()
    ending.training = training = install_plugin(read_training(argv))
    print_text(f"mindswap: on (MINDSWAP), configuration {training.document.file}", is_message=True)


class _Ending:
    """End of the process: messages in place of tracebacks for errors of mindswap, and the report of the plugin."""

    def __init__(self) -> None:
        self.training: PluggedTraining | None = None
        self._print_traceback = sys.excepthook
        sys.excepthook = self._report
        atexit.register(self._finish)

    def _report(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        training, self.training = self.training, None
        if isinstance(error, MindswapError):
            print_text(_message(error), is_message=True)
            return
        self._print_traceback(kind, error, traceback)
        if training and (hint := hint_after_failure(training.document, training.options)):
            print_text(f"mindswap: {hint}", is_message=True)

    def _finish(self) -> None:
        if self.training is not None:
            self.training.session.finish()


def _message(error: MindswapError) -> str:
    return format_problems(error.problems) if isinstance(error, PolicyError) else f"mindswap: error: {error}"
