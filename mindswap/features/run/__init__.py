"""Run a training with the plugin: `mindswap run`."""

import gc
import os
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mindswap.config.nodes import Document
from mindswap.config.step_settings import ASCEND, is_on_cpu
from mindswap.errors import LaunchError
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format
from mindswap.rules.machine.software import count_cards, has_cards, require_mindformers
from mindswap.runtime.training_command import Training, find_device_target, load_trainable, parse_training
from mindswap.system.children import hold_lifeline
from mindswap.system.collector import collector_disabled

if TYPE_CHECKING:
    from mindswap.adapters.plugin import Session
    from mindswap.features.run.pynative_2x import PynativeTraining

# Settings that a Llama needs to train on a CPU; configs/llama2_7b/cpu has the reasons.
ON_CPU = {
    ("mindswap", "cpu_stand_ins"): True,
    ("model", "model_config", "use_rope_slice"): True,
    ("model", "model_config", "fused_rms_norm"): False,
}


@dataclass(frozen=True, eq=False)
class PluggedTraining:
    """Training in this process, with the plugin installed."""

    document: Document  # the configuration
    script: Path | None  # training script; None for the entry of this package
    options: list[str]  # options of the script
    session: "Session"

    def run(self) -> None:
        """Train; exceptions of the training are not converted."""
        if self.script:
            sys.argv = [str(self.script), *self.options]
            runpy.run_path(str(self.script), run_name="__main__")
        else:
            from mindswap.adapters.training_entry import train

            train(self.options)
        self.session.finish()


def prepare_training(words: list[str]) -> "PluggedTraining | PynativeTraining":
    """Parse the arguments of a training, and install the plugin.

    Raises:
        MindswapError: if the training cannot be started.
    """
    request = read_training(words)
    if request.script:  # as `python SCRIPT` does: MindFormers may be in the folder of the script
        sys.path.insert(0, str(request.script.resolve().parent))
    document = load_trainable(request.config_path, accepts_2x=True)
    if find_format(document) is ConfigFormat.PYNATIVE:
        from mindswap.features.run.pynative_2x import prepare_training_2x

        return prepare_training_2x(document, request)
    return install_plugin(request)


def read_training(words: list[str]) -> Training:
    """Parse the arguments of a training that this process is to run, and end with the process that started it.

    Raises:
        LaunchError: if the arguments are wrong, or the run that this process belongs to has ended.
    """
    hold_lifeline(os.environ)
    training = parse_training(words)
    _refuse_true_in_options(training.options)
    return training


def install_plugin(training: Training) -> PluggedTraining:
    """Load the configuration of a training, and install the plugin in this process.

    Raises:
        MindswapError: if the configuration is wrong, or MindFormers is missing.
    """
    document = load_trainable(training.config_path)
    require_mindformers()
    _quiet_cpu(document)
    with collector_disabled():  # as in `adapters.quiet`
        from mindswap.adapters.plugin import install
    gc.freeze()  # imported objects are permanent, so the collector can skip them before each compile
    return PluggedTraining(document, training.script, training.options, install(document))


def _refuse_true_in_options(options: list[str]) -> None:
    """Refuse `--options swap_config.swap=True`, which MindFormers silently parses as False."""
    for word in options:
        key, _, value = word.partition("=")
        if key.split(".")[0] in ("swap_config", "recompute_config") and value.lower() == "true":
            raise LaunchError(f"--options {word}: MindFormers reads True as False there\n    fix: --{key} True")


def _quiet_cpu(document: Document) -> None:
    """Silence the compiler's warning for each operator that a CPU cannot offload, because mindswap logs it once."""
    if is_on_cpu(document):
        os.environ.setdefault("MS_SUBMODULE_LOG_v", "{PARALLEL:3}")


def hint_after_failure(document: Document, options: list[str]) -> str:
    """Return advice after a failed training on a CPU, or without an Ascend device; "" if neither is the cause."""
    if find_format(document) is ConfigFormat.PYNATIVE:
        is_on_device = find_device_target(document, options) != "CPU"
        has_kernels = is_on_device or document.value("mindswap", "cpu_stand_ins")
        fix = "mindswap: {cpu_stand_ins: True}, a dense model, parameters of type float32"
        return (
            cards_missing(document, options) if has_kernels else f"a CPU lacks kernels of the network\n    fix: {fix}"
        )
    if find_device_target(document, options) == "CPU":
        nodes = {path: document.get(*path) for path in ON_CPU}
        missing = [path for path, value in ON_CPU.items() if (node := nodes[path]) is None or node.value is not value]
        keys = ", ".join(f"{'.'.join(path)}: {ON_CPU[path]}" for path in missing)
        return (
            f"a CPU has no kernels for much of a network\n    fix: {keys}; as in the file of `mindswap example`"
            if keys
            else ""
        )
    return cards_missing(document, options)


def cards_missing(document: Document, options: list[str]) -> str:
    """Return a message if the training is for Ascend but the machine has no Ascend device; "" otherwise."""
    if find_device_target(document, options) != ASCEND or has_cards() or count_cards():
        return ""
    return (
        "no Ascend card was found here (no npu-smi, no /dev/davinci*), and the training is for Ascend\n"
        "    fix: train where the cards are; to try mindswap on a CPU: `mindswap example trial`, then "
        "trial/llama2_small.yaml; mindswap verify, simulate and plan need no card"
    )
