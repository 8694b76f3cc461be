"""Run a training of MindFormers 2.x (PyNative) with the plugin."""

import importlib.util
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.errors import LaunchError
from mindswap.features.dryrun import (
    PARALLEL_KEYS,
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
    _require_hyper_parallel(document, device)
    trace = recorded_step(document, device)
    if training.script is None:
        set_output_folder(training.options)
    from mindswap.adapters.pynative.trainer_entry import prepare_device

    prepare_device(device, document.value("mindswap", "cpu_stand_ins") is True)
    from mindswap.adapters.pynative.plugin_2x import Session2x, install

    num_mtp_layers, num_layers = find_mtp_layers(document), find_num_layers_2x(document)
    effect = compute_effect(read_pynative(document, None), load_model(document, num_layers, num_mtp_layers))
    output_dir = find_option(training.options, "--output_dir") or document.value("output_dir") or "./output"
    session = Session2x(effect, str(output_dir), document.value("mindswap", "audit_swap") is True, trace)
    install(session)
    return PynativeTraining(document, training.script, training.options, session)


def _require_hyper_parallel(document: Document, device: str) -> None:
    """Require HyperParallel if there are several processes; mindswap's stand-in has pipeline stages on a CPU only."""
    num_processes = count_processes()
    if device == "CPU" and num_processes == document.count("parallelism", "pipeline_parallel"):
        return
    if num_processes > 1 and importlib.util.find_spec("hyper_parallel") is None:
        raise LaunchError(
            f"RANK_SIZE is {num_processes}: several processes of MindFormers 2.x need HyperParallel, which this Python "
            "does not have\n"
            "    allowed: 1; with --device_target CPU also a process for each stage of parallelism.pipeline_parallel\n"
            "    fix:     build release 1.0.0 of github.com/mindspore-ai/hyper-parallel (PyPI does not have it)"
        )


def recorded_step(document: Document, device: str) -> Trace | None:
    """Record the step that the swap follows from the first pass on, in a dry run.

    Args:
        document: a configuration of MindFormers 2.x.
        device: device target.

    Returns:
        The step; None if there is no swap of mindswap, or the training records its own first pass: on a CPU, and where
        several ranks share a network, because the dry run is one rank with all of it.
    """
    settings = read_pynative(document, None)
    if device == "CPU" or not (settings.is_own_engine and settings.is_swap_enabled):
        return None
    if count_processes() > 1 or any(document.count("parallelism", key) > 1 for key in PARALLEL_KEYS):
        return None
    return record_own_swap_step(document)
