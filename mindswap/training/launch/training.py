"""The command line of one training: a script or the package's own entry, its options, its configuration."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from mindswap.check.check import TRAIN_MODES, check_before_network
from mindswap.config.nodes import Document
from mindswap.config.problem import find_errors
from mindswap.config.source import load_document
from mindswap.errors import LaunchError, PolicyError
from mindswap.policy.mindformers_2x.tables import refuse_pynative

ADAPTIVE_FLAG = "--adaptive-memory-optimization"


@dataclass(frozen=True)
class Training:
    """Words behind `mindswap run`."""

    script: Path | None  # the training script; None for the package's own entry
    options: list[str]  # its options
    config_path: Path  # the YAML, where the script will look for it


def parse_training(words: list[str]) -> Training:
    """Read `[SCRIPT.py] --config CONFIG ...`. Raises LaunchError if there is no such script, or no --config."""
    script = Path(words[0]) if words and words[0].endswith(".py") else None
    options = words[1:] if script else words
    if script and not script.is_file():
        raise LaunchError(f"no such script: {script}\n    without a script: mindswap run --config ...")
    if near := difflib.get_close_matches(ADAPTIVE_FLAG, [word for word in options if word != ADAPTIVE_FLAG], 1, 0.9):
        raise LaunchError(f"{near[0]}: no such option\n    fix: {ADAPTIVE_FLAG}")
    config = find_option(options, "--config")
    if config is None:
        raise LaunchError("--config is missing\n    fix: mindswap run --config CONFIG.yaml --run_mode train")
    config_path = Path(config)
    if script and not config_path.is_absolute():  # upstream's script reads it beside itself
        config_path = script.resolve().parent / config_path
    return Training(script, options, config_path)


def load_trainable(path: Path) -> Document:
    """A configuration of a form that `mindswap run` takes, read.

    Raises:
        PolicyError: it cannot be read, or is for MindFormers 2.x.
    """
    document = load_document(str(path))
    if find_errors(document.problems):
        raise PolicyError(document.problems)
    refuse_pynative(document)
    return document


def find_option(options: list[str], name: str) -> str | None:
    """Value of `--name value` or `--name=value` among options, the last one; None if it is not there.

    Raises:
        LaunchError: it is there without a value.
    """
    found = None
    for position, word in enumerate(options):
        key, equals, value = word.partition("=")
        if key != name:
            continue
        following = options[position + 1 : position + 2]
        if not equals and (not following or following[0].startswith("--")):
            raise LaunchError(f"{name}: its value is missing\n    fix:     {name} VALUE")
        found = value if equals else following[0]
    return found


# A configuration that is wrong by itself stops the launch, before any worker starts.


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
