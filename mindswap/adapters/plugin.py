"""Plugin inside MindFormers: hooks installed before a training script runs.

1. Loading the YAML keeps `swap_config` and `recompute_config` as written, because MindFormers' template rejects unknown
keys.

2. Building the context (command-line overrides are merged by then) checks the configuration and derives a Policy. With
swap, MindFormers' own swap and recompute are disabled; without swap, it receives both sections unchanged.

3. Building the network sets the policy on it, before any compile. In graph mode the compiler swaps, in PyNative mode
mindswap does (`adapters/pynative/`) and reports at the end.

4. With `mindswap: {cpu_stand_ins: True}`, cells without a CPU kernel are replaced (`adapters/graph/cpu_stand_ins.py`).
"""

import contextlib
import os
import resource
import time
from typing import TYPE_CHECKING

import mindformers.core
import mindformers.core.context
import mindspore as ms
import numpy as np
from mindformers.tools.logger import logger
from mindformers.tools.register import MindFormerRegister
from mindformers.tools.register.register import MindFormerModuleType
from mindformers.trainer.base_trainer import BaseTrainer
from mindspore.train.callback import Callback

from mindswap.adapters.graph.mindformers import set_policy, trees_of_network
from mindswap.adapters.graph.mindspore import enable_lazy_inline, find_lazy_inline_cell
from mindswap.adapters.graph.run_config import (
    has_swap_sections,
    install_stand_ins,
    keep_swap_sections,
    replace_swap_sections,
)
from mindswap.adapters.versions import builds_form, require_pynative
from mindswap.config.nodes import Document
from mindswap.config.render import document_from_data
from mindswap.config.step_settings import uses_pynative_mode
from mindswap.errors import LaunchError
from mindswap.policy.model import Policy
from mindswap.report.problems import format_problems
from mindswap.rules.checker import check_before_network, check_document
from mindswap.rules.refusals import TRAIN_MODES
from mindswap.runtime.logs.scan import REPORT_MEMORY
from mindswap.runtime.logs.step_report import ReportedStep, format_step

if TYPE_CHECKING:
    from mindswap.adapters.pynative.swap import Swap


def install(document: Document) -> "Session":
    """Install the hooks in this process.

    Args:
        document: the user's YAML, in which problems are located.
    """
    keep_swap_sections()
    session = Session(document)
    _replace_build_context(session)
    _replace_create_network(session)
    return session


class Session:
    """State shared by the hooks: the checked configuration of this run."""

    def __init__(self, document: Document):
        self.document = document
        self.policy = Policy()
        self.is_prepared = False
        self.device_target = ""
        self.uses: dict[str, tuple[str, ...]] = {}
        self.is_pynative = False
        self.swap: Swap | None = None
        self.output_dir = ""

    def prepare(self, config) -> None:
        """Check the final configuration and divide it between mindswap and MindFormers."""
        self.document = document_from_data(config, file="command line", base=self.document)
        self.is_prepared = True
        if config.get("run_mode") in (None, *TRAIN_MODES):
            # Operator names are checked against the real network in `apply`.
            checked = check_before_network(self.document, dict(os.environ))
            self.policy = checked.policy or Policy()
            self.uses = checked.trees.uses if checked.trees else {}
        self.device_target = config.get("context", {}).get("device_target", "Ascend")
        self.is_pynative = uses_pynative_mode(self.document)
        self.output_dir = config.get("output_dir") or "./output"
        replace_swap_sections(config, self.policy)
        install_stand_ins(config)
        add_callbacks(config)
        if self.policy.is_swap_enabled and self.device_target == "CPU" and not self.is_pynative:
            config.model.model_config.disable_lazy_inline = True

    def require_prepared(self) -> None:
        """Stop a script that builds a network before its context, because MindFormers' own swap would run instead.

        Raises:
            LaunchError: if swap is enabled in the YAML.
        """
        if not self.is_prepared and self.document.value("swap_config", "swap") is True:
            raise LaunchError(
                "the script builds a network before it calls mindformers' build_context, so mindswap never saw its "
                "configuration\n    fix: call build_context(config) first, as run_mindformer.py does"
            )

    def apply(self, network) -> None:
        """Set the policy on a network that MindFormers has just built."""
        if not self.policy.is_swap_enabled:
            return
        checked = check_document(self.document, trees=trees_of_network(network, self.uses), environ=dict(os.environ))
        checked.require_policy()
        if checked.problems and os.environ.get("RANK_ID", "0") == "0":
            logger.warning("mindswap found:\n%s", format_problems(checked.problems))
        if self.is_pynative:
            from mindswap.adapters.pynative.training import start_swap

            self.swap = start_swap(network, self.policy, logger, self._is_enabled("audit_swap"))
            return
        set_policy(network, self.policy, logger)
        if self.device_target == "CPU":
            logger.info("mindswap: the CPU backend cannot execute lazy_inline, so nothing is offloaded in this run; "
                        "`mindswap verify` shows what Ascend will do.")  # fmt: skip
        else:
            enable_lazy_inline(find_lazy_inline_cell(network))
            logger.info("mindswap: lazy_inline is on, as activation swap needs it.")

    def building(self) -> contextlib.AbstractContextManager[object]:
        """Return a context manager for building the network."""
        if not self.is_pynative:
            return contextlib.nullcontext()
        require_pynative()
        from mindswap.adapters.pynative.training import network_building

        use_stand_ins = self.device_target == "CPU" and self._is_enabled("cpu_stand_ins")
        return network_building(use_stand_ins and builds_form(False))

    def finish(self) -> None:
        """Report the swap of PyNative mode at the end of the training."""
        if self.swap is not None:
            from mindswap.adapters.pynative.training import end_swap

            end_swap(self.swap, self.output_dir, logger)
            self.swap = None

    def _is_enabled(self, key: str) -> bool:
        return self.document.value("mindswap", key) is True


def _replace_build_context(session: Session) -> None:
    original = mindformers.core.context.build_context

    def build_context(config):
        if has_swap_sections(config):  # otherwise it is no training, and MindFormers handles it
            session.prepare(config)
        return original(config)

    for module in (mindformers, mindformers.core, mindformers.core.context):
        module.build_context = build_context


def _replace_create_network(session: Session) -> None:
    original = BaseTrainer.create_network

    def create_network(self, default_args=None):
        session.require_prepared()
        with session.building():
            network = original(self, default_args)
        session.apply(network)
        return network

    BaseTrainer.create_network = create_network


# Callbacks that log peak memory, and loss and time of every step, during a training. MindSpore's own memory statistics
# appear only at its end, and MindFormers' own line of a step has six digits of the loss and whole milliseconds.


class MemoryReport(Callback):
    """Logs peak memory after every step in which it increased.

    On a device, the values are those of MindSpore's memory pool. The CPU backend has no statistics; there it is the
    maximum resident size of the process.
    """

    def __init__(self):
        super().__init__()
        self.logged = (0, 0)

    def on_train_step_end(self, run_context):
        """Log the peak if it increased."""
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
    """Logs every step; enabled by `callbacks: [{type: StepReport}]` in a configuration."""

    def __init__(self):
        super().__init__()
        self.begin_ns = 0

    def on_train_step_begin(self, run_context):
        """Record the start time."""
        self.begin_ns = time.monotonic_ns()

    def on_train_step_end(self, run_context):
        """Log the step; reading the loss waits for the device."""
        parameters = run_context.original_args()
        outputs = parameters.net_outputs
        loss = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        value = float(np.mean(loss.asnumpy()))
        duration_ns = time.monotonic_ns() - self.begin_ns
        logger.info("%s", format_step(ReportedStep(parameters.cur_step_num, value, duration_ns)))


def add_callbacks(config) -> None:
    """Register both callbacks with MindFormers, and append the memory report if an adaptive run requests it."""
    for callback in (MemoryReport, StepReport):
        MindFormerRegister.register_cls(callback, MindFormerModuleType.CALLBACK)
    if os.environ.get(REPORT_MEMORY) == "1":
        config.callbacks = [*(config.get("callbacks") or []), {"type": "MemoryReport"}]
