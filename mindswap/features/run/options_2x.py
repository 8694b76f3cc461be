"""Options of `mindswap run` for a configuration of MindFormers 2.x without a script."""

import os
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.step_settings import ASCEND
from mindswap.errors import LaunchError
from mindswap.runtime.training_command import find_option

KNOWN_OPTIONS = ("--config", "--device_target", "--mode", "--run_mode", "--use_parallel", "--output_dir")
BOOLEANS = ("True", "False")
TRAIN = "train"  # the run mode of MindFormers 2.x that trains; the other one is `predict`


def count_processes() -> int:
    """Return the processes of the training: `RANK_SIZE`, which msrun sets; 1 without."""
    return int(os.environ.get("RANK_SIZE") or 1)


def refuse_without_effect(document: Document, options: list[str]) -> None:
    """Refuse options, and values of options, that would not change the training.

    Args:
        document: a configuration of MindFormers 2.x.
        options: options of `mindswap run`, without a script.

    Raises:
        LaunchError: an option is unknown or has no value, its value has no effect, or the run mode is no training.
    """
    _refuse_unknown(options)
    num_processes = count_processes()
    by_script = "pass the run_mindformer.py of MindFormers 2.x as script"
    values = {
        "--device_target": ((ASCEND, "CPU"), by_script),
        "--mode": (("1",), "a configuration of MindFormers 2.x is for PyNative mode, leave it out"),
        "--run_mode": ((TRAIN,), f"`mindswap run` trains; for another run mode {by_script}"),
        "--use_parallel": (
            (str(num_processes > 1),),
            f"RANK_SIZE decides, which msrun sets (here {num_processes}), leave it out",
        ),
    }
    for name, (allowed, fix) in values.items():
        value = find_option(options, name)
        if value is not None and value not in (*allowed, *(word.lower() for word in allowed if word in BOOLEANS)):
            raise LaunchError(
                f"{name} {value}: has no effect on `mindswap run` for a configuration of MindFormers 2.x\n"
                f"    allowed: {', '.join(allowed)}\n"
                f"    fix:     {fix}"
            )
    mode = find_option(options, "--run_mode") or document.value("run_mode") or TRAIN
    if mode != TRAIN:
        raise LaunchError(
            f"{document.location_of('run_mode')}: run_mode is {mode!r}, and `mindswap run` trains\n"
            f"    allowed: {TRAIN}\n"
            f"    fix:     --run_mode {TRAIN}, or {by_script}"
        )


def _refuse_unknown(options: list[str]) -> None:
    position = 0
    while position < len(options):
        name, equals, _ = options[position].partition("=")
        if name not in KNOWN_OPTIONS:
            raise LaunchError(
                f"{name}: no option of `mindswap run` for a configuration of MindFormers 2.x\n"
                f"    allowed: {', '.join(KNOWN_OPTIONS)}\n"
                "    fix:     set it in the YAML, or pass the run_mindformer.py of MindFormers 2.x as script"
            )
        find_option(options[position : position + 2], name)  # raises if its value is missing
        position += 1 if equals else 2


def trainer_data(document: Document, options: list[str]) -> dict[str, Any]:
    """Return the configuration that the trainer gets: that of the file, changed by the options.

    Args:
        document: a configuration of MindFormers 2.x.
        options: options of `mindswap run` that `refuse_without_effect` accepts; `--output_dir` is where checkpoints
            go if the file has no `checkpoint.save_path`.
    """
    data = {name: value for name, value in document.data().items() if name != "mindswap"}
    if mode := find_option(options, "--run_mode"):
        data["run_mode"] = mode
    checkpoint = data.get("checkpoint") or {}
    folder = find_option(options, "--output_dir")
    if folder and not checkpoint.get("save_path"):
        data["checkpoint"] = {**checkpoint, "save_path": str(Path(folder, "checkpoint"))}
    return data


def set_output_folder(options: list[str]) -> None:
    """Let MindFormers write its logs below `--output_dir`; call it before MindFormers is imported."""
    if folder := find_option(options, "--output_dir"):
        os.environ["LOCAL_DEFAULT_PATH"] = folder
