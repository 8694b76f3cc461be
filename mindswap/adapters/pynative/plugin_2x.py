"""Plugin inside the PyNative trainer of MindFormers 2.x, installed before a training script runs.

MindFormers' own sections act as upstream means them: its lines `Set ...` are compared with those that `mindswap
explain` shows, and sections without effect are reported. With `mindswap: {swap_engine: mindswap}` MindFormers gets no
swap, and mindswap swaps what the section names.
"""

import functools
import json
import logging
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import mindspore as ms
from mindformers.pynative.trainer import Trainer
from mindformers.tools.logger import get_logger, logger

from mindswap.adapters.pynative.copies import StreamCopies, ThreadCopies
from mindswap.adapters.pynative.layers_2x import indices_of_layers, layers_of
from mindswap.adapters.pynative.swap import PipelineSwap, Swap
from mindswap.errors import LaunchError
from mindswap.policy.formats.mindformers2.effect import SettingsEffect, log_lines
from mindswap.pynative.by_tensor import find_distances_2x
from mindswap.pynative.trace import Trace
from mindswap.report.pynative import format_swap_report

_SET_LINE = re.compile(r"Set .* at layer (\d+).*")


class Session2x(logging.Handler):
    """A training with the plugin.

    Args:
        effect: settings of each layer.
        output_dir: folder for the report of the swap.
        is_audited: fill memory with NaN before it is used again, and observe all layers.
        trace: a step that was recorded before; None to record the first pass.
    """

    def __init__(self, effect: SettingsEffect, output_dir: str, is_audited: bool, trace: Trace | None):
        super().__init__()
        self.effect = effect
        self.output_dir = output_dir
        self.is_audited = is_audited
        self.trace = trace
        self.set_lines: list[str] = []
        self.swap: Swap | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Collect the lines of MindFormers on what it sets."""
        if _SET_LINE.fullmatch(record.getMessage()):
            self.set_lines.append(record.getMessage())

    def prepare(self, config: Any) -> None:
        """Leave the swap to mindswap, if the file asks for it."""
        if self.effect.settings.is_own_engine:
            config.swap.enable = False

    def start(self, trainer: Any) -> None:
        """Compare what MindFormers set with the settings, and begin mindswap's swap; the network was built."""
        settings = self.effect.settings
        num_decoder_layers = (settings.num_layers or 0) - settings.num_mtp_layers
        is_swapped = settings.is_own_engine and settings.is_swap_enabled
        try:
            indices = [indices_of_layers(network, num_decoder_layers) for network in trainer.model]
        except LaunchError:
            if is_swapped:
                raise
            indices = [tuple(range(settings.num_layers or 0))]  # which of them are here is not known
        self._compare({index for of_network in indices for index in of_network})
        if not is_swapped:
            return
        if len(trainer.model) != 1:
            raise LaunchError("mindswap.swap_engine: several pipeline chunks in a process are not swapped")
        (network,) = trainer.model
        copies = ThreadCopies() if ms.get_context("device_target") == "CPU" else StreamCopies()
        (layer_indices,) = indices
        new_swap = PipelineSwap if trainer.schedule is not None else Swap
        self.swap = new_swap(
            network,
            layers_of(network),
            lambda trace: find_distances_2x(trace, self.effect, layer_indices),
            copies=copies,
            poison=self.is_audited,
            watch_all=self.is_audited,
            trace=self.trace,
        )

    def finish(self) -> None:
        """Log what was swapped, and write it to `OUTPUT_DIR/swap/rank_N.json`."""
        if self.swap is None:
            return
        report = self.swap.finish()
        for line in format_swap_report(report):
            logger.info("mindswap: %s", line)
        path = Path(self.output_dir) / "swap" / f"rank_{os.environ.get('RANK_ID', '0')}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")

    def _compare(self, layers: Collection[int]) -> None:
        """Compare the lines of MindFormers with those of the settings, for the layers of this process."""
        is_own = self.effect.settings.is_own_engine
        expected = [
            line
            for line in log_lines(self.effect)
            if (match := _SET_LINE.fullmatch(line)) and int(match[1]) in layers and not (is_own and "swap" in line)
        ]
        missing = [line for line in expected if line not in self.set_lines]
        if missing and not self.set_lines:
            logger.warning(
                "mindswap: swap and recompute of the file have no effect (%d lines `Set ...` are missing, the first is "
                "%r): MindFormers 2.1.0 applies both with several processes only, and ignores them silently. For swap "
                "in one process: mindswap: {swap_engine: mindswap}", len(missing), missing[0],
            )  # fmt: skip
        elif missing:
            logger.warning("mindswap: MindFormers did not log what `mindswap explain` shows: %s", "; ".join(missing))
        elif expected:
            logger.info("mindswap: swap and recompute are set as `mindswap explain` shows: %d lines", len(expected))


def install(session: Session2x) -> None:
    """Let the trainer of this process call the session; in whichever script it is made."""
    get_logger().addHandler(session)
    init_config, init, train = Trainer._init_config, Trainer.__init__, Trainer.train

    def prepared_config(config: Any) -> Any:
        loaded = init_config(config)
        session.prepare(loaded)
        return loaded

    @functools.wraps(init)
    def started(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        session.start(self)

    @functools.wraps(train)
    def finished(self: Any, *arguments: Any, **options: Any) -> Any:
        result = train(self, *arguments, **options)
        session.finish()
        return result

    Trainer._init_config = staticmethod(prepared_config)
    Trainer.__init__ = started
    Trainer.train = finished
