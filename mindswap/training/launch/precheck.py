"""A configuration that is wrong by itself stops the launch, before any worker starts."""

import os

from mindswap.check.check import TRAIN_MODES, check_before_network
from mindswap.config.source import load_document
from mindswap.errors import LaunchError
from mindswap.training.launch.training import find_option, parse_training


def check_configuration(command: list[str]) -> None:
    """Check the YAML of a worker's command, `-m mindswap run [SCRIPT.py] OPTIONS`, as it stands.

    Options that change the YAML make that pointless: then each worker checks what it is given, as it
    always does.

    Raises:
        PolicyError: if the configuration has an error.
    """
    try:
        training = parse_training(command[3:])
    except LaunchError:
        return  # `mindswap run` itself says what is missing
    if any(_changes_configuration(option) for option in training.options):
        return
    document = load_document(str(training.config_path))
    mode = find_option(training.options, "--run_mode") or document.value("run_mode")
    if mode not in (None, *TRAIN_MODES):
        return
    check_before_network(document, dict(os.environ))


def _changes_configuration(option: str) -> bool:
    name = option.split("=", 1)[0]
    return name in ("--options", "--mode", "--device_target") or (name.startswith("--") and "." in name)
