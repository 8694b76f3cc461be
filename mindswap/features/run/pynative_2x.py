"""Run a training of MindFormers 2.x (PyNative) with the plugin."""

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.errors import LaunchError
from mindswap.features.dryrun import (
    record_own_swap_step,
    require_mindformers_2x,
    require_valid_2x,
)
from mindswap.features.run.options_2x import count_processes, refuse_without_effect, set_output_folder, trainer_data
from mindswap.policy.formats.mindformers2.effect import compute_effect
from mindswap.policy.formats.mindformers2.read import find_mtp_layers, find_num_layers_2x, read_pynative
from mindswap.policy.formats.mindformers2.tables import load_model
from mindswap.pynative.trace import Trace
from mindswap.runtime.training_command import Training, find_device_target, find_option


@dataclass(frozen=True, eq=False)
class PynativeTraining:
    """Training of a 2.x file in this process, with the plugin installed."""

    document: Document  # the configuration
    script: Path | None  # training script; None for the entry of this package
    options: list[str]  # options of the script
    session: Any  # `mindswap.adapters.pynative.plugin_2x.Session2x`

    def run(self) -> None:
        """Train; exceptions of the training are not converted."""
        if self.script:
            sys.argv = [str(self.script), *self.options]
            runpy.run_path(str(self.script), run_name="__main__")
            return
        from mindswap.adapters.pynative.trainer_entry import train

        train(trainer_data(self.document, self.options))


def prepare_training_2x(document: Document, training: Training) -> PynativeTraining:
    """Check a configuration of MindFormers 2.x, and install the plugin in this process.

    Args:
        document: the configuration.
        training: arguments of the training.

    Raises:
        PolicyError: the configuration has errors, or this Python has no MindFormers 2.x.
        LaunchError: an option or its value would have no effect, or HyperParallel is missing for several processes.
    """
    if training.script is None:
        refuse_without_effect(document, training.options)
    require_valid_2x(document)
    require_mindformers_2x(document)
    device = find_device_target(document, training.options)
    trace = _recorded_step(document, device)
    if training.script is None:
        set_output_folder(training.options)
    from mindswap.adapters.pynative.trainer_entry import prepare_device

    uses_stand_in = prepare_device(device, document.value("mindswap", "cpu_stand_ins") is True)
    if uses_stand_in and count_processes() > 1:
        raise LaunchError("several processes of MindFormers 2.x need HyperParallel, which this Python does not have")
    from mindswap.adapters.pynative.plugin_2x import Session2x, install

    num_mtp_layers, num_layers = find_mtp_layers(document), find_num_layers_2x(document)
    effect = compute_effect(read_pynative(document, None), load_model(document, num_layers, num_mtp_layers))
    output_dir = find_option(training.options, "--output_dir") or document.value("output_dir") or "./output"
    session = Session2x(effect, str(output_dir), document.value("mindswap", "audit_swap") is True, trace)
    install(session)
    return PynativeTraining(document, training.script, training.options, session)


def _recorded_step(document: Document, device: str) -> Trace | None:
    """Return the step that the swap follows from the first pass on; on a CPU the first pass is recorded."""
    settings = read_pynative(document, None)
    if device == "CPU" or not (settings.is_own_engine and settings.is_swap_enabled):
        return None
    return record_own_swap_step(document)
