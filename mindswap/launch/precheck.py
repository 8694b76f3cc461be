"""A configuration that is wrong by itself stops the launch, before any worker starts."""

import os

from mindswap.commands.run import parse_training
from mindswap.errors import LaunchError, PolicyError
from mindswap.policy.check import check_document
from mindswap.policy.yaml_source import load_document

__all__ = ["check_configuration"]

TRAIN_MODES = ("train", "finetune")


def check_configuration(command: list[str]) -> None:
    """Check the YAML of a worker's command as it stands.

    Options that change the YAML make that pointless: then each worker checks what it is given, as it
    always does.

    Args:
        command: `-m mindswap run [SCRIPT.py] OPTIONS`.

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
    mode = document.get("run_mode")
    if "--run_mode" not in training.options and mode is not None and mode.value not in TRAIN_MODES:
        return
    checked = check_document(document, environ=dict(os.environ))
    if checked.errors:
        raise PolicyError(checked.problems)


def _changes_configuration(option: str) -> bool:
    name = option.split("=", 1)[0]
    return name in ("--options", "--mode", "--device_target") or (name.startswith("--") and "." in name)
