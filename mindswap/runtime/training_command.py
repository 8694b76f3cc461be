"""Parse and check the command line of a training: script, options and configuration."""

import difflib
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mindswap.config.nodes import Document
from mindswap.config.problem import find_errors
from mindswap.config.source import load_document
from mindswap.config.step_settings import read_device_target
from mindswap.config.weight_sharding import SEMI_AUTO_MODES
from mindswap.errors import LaunchError, PolicyError
from mindswap.policy.formats.mindformers2.tables import refuse_pynative
from mindswap.rules.checker import check_before_network
from mindswap.rules.refusals import TRAIN_MODES
from mindswap.units import format_count

ADAPTIVE_FLAG = "--adaptive-memory-optimization"


@dataclass(frozen=True)
class Training:
    """Arguments of `mindswap run`."""

    script: Path | None  # training script; None for the entry of this package
    options: list[str]  # options of the script
    config_path: Path  # the YAML, resolved as the script does


def parse_training(words: list[str]) -> Training:
    """Parse `[SCRIPT.py] --config CONFIG ...`.

    Raises:
        LaunchError: if the script does not exist, or --config is missing.
    """
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
    if script and not config_path.is_absolute():  # MindFormers' script resolves it relative to its own folder
        beside = script.resolve().parent / config_path
        if beside.is_file() or not config_path.is_file():  # other scripts resolve it relative to the working directory
            config_path = beside
    return Training(script, options, config_path)


def load_trainable(path: Path, accepts_2x: bool = False) -> Document:
    """Load a configuration that `mindswap run` supports.

    Args:
        path: the YAML.
        accepts_2x: accept a configuration of MindFormers 2.x.

    Raises:
        PolicyError: if it cannot be read, or is for MindFormers 2.x.
    """
    document = load_document(str(path))
    if find_errors(document.problems):
        raise PolicyError(document.problems)
    if not accepts_2x:
        refuse_pynative(document)
    return document


def find_option(options: list[str], name: str) -> str | None:
    """Return the last value of `--name value` or `--name=value`; None if the option is missing.

    Raises:
        LaunchError: if the option has no value.
    """
    last_value = None
    for position, word in enumerate(options):
        key, equals, value = word.partition("=")
        if key != name:
            continue
        following = options[position + 1 : position + 2]
        if not equals and (not following or following[0].startswith("--")):
            raise LaunchError(f"{name}: its value is missing\n    fix:     {name} VALUE")
        last_value = value if equals else following[0]
    return last_value


def find_device_target(document: Document, options: list[str]) -> str:
    """Return the device target of a training: `--device_target`, else that of the YAML, else Ascend.

    Raises:
        LaunchError: if the option has no value.
    """
    return find_option(options, "--device_target") or read_device_target(document)


# Checks of the configuration before any worker starts.


def check_configuration(command: list[str], num_workers: int) -> None:
    """Check the YAML of a worker's command, `-m mindswap run [SCRIPT.py] OPTIONS`.

    Nothing is checked if options change the YAML; each worker checks its configuration anyway.

    Args:
        command: command of a worker.
        num_workers: workers of the job, on all machines.

    Raises:
        PolicyError: if the configuration has an error.
        LaunchError: if it is for another number of workers.
    """
    try:
        training = parse_training(command[3:])
    except LaunchError:
        return  # `mindswap run` reports the error
    if any(_changes_configuration(option) for option in training.options):
        return
    document = load_document(str(training.config_path))
    mode = find_option(training.options, "--run_mode") or document.value("run_mode")
    if mode not in (None, *TRAIN_MODES):
        return
    check_before_network(document, dict(os.environ))
    _check_workers(document, training.options, num_workers)


# Sizes whose product MindFormers compares with the number of workers (`_check_parallel` of tools/check_rules.py,
# mindformers 1.9.0). `expert_parallel` is not a factor: experts share the data, tensor and context parallel ranks.
FACTORS = ("data_parallel", "model_parallel", "context_parallel", "pipeline_stage")


def _check_workers(document: Document, options: list[str], num_workers: int) -> None:
    """Refuse a configuration with another number of ranks than workers, as each worker would fail after minutes."""
    stated = find_option(options, "--use_parallel")
    is_parallel = str(document.value("use_parallel") if stated is None else stated).lower() == "true"
    mode = document.value("parallel", "parallel_mode")
    if not is_parallel or isinstance(mode, bool) or (mode is not None and mode not in SEMI_AUTO_MODES):
        return
    counts = [document.count("parallel_config", name) for name in FACTORS]
    num_ranks = prod(counts)
    if num_ranks == num_workers:
        return
    place = document.location_of("parallel_config")
    product = " x ".join(f"{name} {count}" for name, count in zip(FACTORS, counts, strict=True) if count > 1) or "1"
    data_parallel, remainder = divmod(num_workers, num_ranks // counts[0])
    alternative = f", or data_parallel: {data_parallel}" if data_parallel and not remainder else ""
    raise LaunchError(
        f"{place}: parallel_config is for {format_count(num_ranks, 'worker')} ({product}), and WORKER_NUM is "
        f"{num_workers}\n    fix:     WORKER_NUM {num_ranks}{alternative}"
    )


def _changes_configuration(option: str) -> bool:
    name = option.split("=", 1)[0]
    return name in ("--options", "--mode", "--device_target") or (name.startswith("--") and "." in name)
