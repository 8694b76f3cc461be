"""Dry run of the trainer of MindFormers 2.x (PyNative) on MindSpore's Ascend backend, in one process."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.problem import Level, Location, Problem
from mindswap.errors import LaunchError, PolicyError
from mindswap.features.dryrun.backend import StatusCallback, ascend_backend, wait
from mindswap.features.dryrun.trainer_config import TrainerRequest
from mindswap.features.dryrun.trainer_step import StepCopies, TrainerStep, WrapperEffect, with_model_layers
from mindswap.policy.formats.mindformers2.effect import SettingsEffect
from mindswap.policy.formats.mindformers2.tables import RULE
from mindswap.pynative.by_tensor import find_distances_2x
from mindswap.pynative.own_copies import LayerCopies, find_own_copies
from mindswap.pynative.trace import load_trace
from mindswap.rules.machine.software import ANY_VERSION, TRAINER_VERSIONS, installed_version
from mindswap.runtime.logs.read import find_last_error, read_tail
from mindswap.system.children import module_command, started

PROGRAM = "mindswap.adapters.pynative.trainer_dry_run"
OWN_SWAP = "mindswap.adapters.pynative.trainer_swap"
LOG = "log.txt"
MAX_S = 7200.0
_SET_LINE = re.compile(
    r"Set (?:layer swap|select swap|full recompute|select recompute|select comm recompute) at layer \d+.*"
)


def has_mindformers_2x() -> bool:
    """Return whether this Python has MindFormers 2.x and a MindSpore on which its trainer runs."""
    mindformers, mindspore = installed_version("mindformers"), installed_version("mindspore")
    is_tried = os.environ.get(ANY_VERSION) == "1" and mindformers.startswith("2.")
    return is_tried or (mindformers, mindspore) == TRAINER_VERSIONS


def recorder_versions() -> tuple[str, str]:
    """Return MindFormers and MindSpore whose step is recorded here, or taken from the cache: the installed ones.

    A Python without MindFormers 2.x takes what one with the usual versions recorded.
    """
    if has_mindformers_2x():
        return installed_version("mindformers"), installed_version("mindspore")
    return TRAINER_VERSIONS


def require_mindformers_2x(document: Document) -> None:
    """Require that this Python has MindFormers 2.x and a MindSpore on which its trainer runs.

    Raises:
        PolicyError: with the versions, and the commands that install them.
    """
    if has_mindformers_2x():
        return
    mindformers, mindspore = installed_version("mindformers"), installed_version("mindspore")
    entry = document.entry("training")
    location = entry.location if entry is not None else Location(document.file)
    have = ", ".join(
        f"{name} {text or 'is missing'}" for name, text in (("mindformers", mindformers), ("mindspore", mindspore))
    )
    message = f"a configuration of MindFormers 2.x (PyNative), whose trainer this Python does not have: {have}"
    fix = (
        "in a checkout of mindswap: make .venv-2x/.installed (what docs/versions.md lists), then the same command of "
        f".venv-2x/bin/mindswap. To plan elsewhere: .venv-2x/bin/mindswap trace {document.file} -o step.json, and "
        "--trace step.json"
    )
    allowed = f"mindformers {' with mindspore '.join(TRAINER_VERSIONS)}; {ANY_VERSION}=1 tries another 2.x"
    raise PolicyError([Problem(location, RULE, Level.ERROR, message, allowed, fix)])


def run_program(
    program: str,
    request: Mapping[str, Any],
    folder: Path,
    report_status: StatusCallback,
    variables: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], float]:
    """Run a program of `mindswap.adapters.pynative` on the Ascend backend until it ends.

    Args:
        program: module to run.
        request: its arguments as JSON data.
        folder: folder for its files; it is created.
        report_status: called now and then, with a line on the progress.
        variables: more environment variables.

    Returns:
        The result as JSON data, and the time in seconds.

    Raises:
        LaunchError: the process failed, with its last error and the path of its log.
    """
    folder.mkdir(parents=True)
    asked, answered, log = folder / "request.json", folder / "result.json", folder / LOG
    asked.write_text(json.dumps(request), encoding="utf-8")
    begin_s = time.monotonic()
    with log.open("wb") as file, contextlib.ExitStack() as stack:
        first, environment = ascend_backend(stack)
        environment |= {"MS_SIMULATION_LEVEL": "1", "PYTHONUNBUFFERED": "1", **(variables or {})}
        command = module_command(program, str(asked.absolute()), str(answered.absolute()), first=first)
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        with started(command, environment, cwd=folder, **streams) as process:
            ended = wait(process, log, report_status, lambda: time.monotonic() - begin_s > MAX_S)
    result = _read_result(answered)
    if ended.code != 0 or result is None or "error" in result:
        raise LaunchError(_failure_message(ended.code, result, log))
    return result, time.monotonic() - begin_s


def run_trainer(request: TrainerRequest, folder: Path, report_status: StatusCallback) -> TrainerStep:
    """Run the trainer in a process of its own until it ends.

    Args:
        request: what to run.
        folder: folder for its files; it is created.
        report_status: called now and then, with a line on the progress.

    Raises:
        LaunchError: the process failed, with its last error and the path of its log.
    """
    arguments = {"config": request.config, "sample": request.sample}
    result, wall_s = run_program(PROGRAM, arguments, folder, report_status, request.variables)
    step = read_step(request.num_layers, result, folder / LOG, wall_s)
    return replace(with_model_layers(step), stage=request.stage)


def run_own_swap(
    request: TrainerRequest, effect: SettingsEffect, folder: Path, report_status: StatusCallback
) -> TrainerStep:
    """Run the trainer with mindswap's own swap, with the schedule of a step that another process records before.

    Args:
        request: what to run; its section `swap` is replaced.
        effect: settings of each layer.
        folder: folder for its files; it is created.
        report_status: called now and then, with a line on the progress.

    Raises:
        LaunchError: a process failed, with its last error and the path of its log.
    """
    config = {name: value for name, value in request.config.items() if name != "swap"}
    arguments: dict[str, Any] = {"config": config, "sample": request.sample}
    record_folder = folder.with_name(f"{folder.name}_record")
    recorded, record_s = run_program(OWN_SWAP, arguments, record_folder, report_status, request.variables)
    trace = load_trace(recorded["trace"], "the recorded step").trace
    found = find_distances_2x(trace, effect, recorded["layer_indices"])
    distances = {index: distance.count for index, distance in found.items()}
    arguments |= {"trace": recorded["trace"], "distances": distances}
    result, wall_s = run_program(OWN_SWAP, arguments, folder, report_status, request.variables)
    step = with_model_layers(read_step(request.num_layers, result, folder / LOG, record_s + wall_s))
    copies, targets = find_own_copies(trace, effect, recorded["layer_indices"])
    return replace(
        step,
        stage=request.stage,
        layer_copies=copies,
        own_targets={path: tuple(layers) for path, layers in targets.items()},
    )


def read_step(num_layers: int, result: Mapping[str, Any], log: Path, wall_s: float) -> TrainerStep:
    """Return the step of a result file, with the lines of its log on swap and recompute."""
    moved = result["moved"]
    names = (
        *("before_bytes", "kept_bytes", "gradient_bytes", "weight_bytes", "state_bytes", "trained_bytes"),
        *("reserved_bytes", "uses_stand_in", "expert_bytes", "expert_weight_bytes"),
    )
    return TrainerStep(
        num_layers=num_layers,
        phase_peaks=result["peaks"],
        added_by_layer=tuple(result["added_by_layer"]),
        added_by_cell=tuple(result["added_by_cell"]),
        wrappers=tuple(WrapperEffect(**row) for row in result["wrappers"]),
        layer_copies=tuple(LayerCopies(**row) for row in result["layer_copies"]),
        copies=StepCopies(**{name: moved[name] for name in StepCopies.__dataclass_fields__}) if moved else None,
        set_lines=tuple(_SET_LINE.findall(log.read_text("utf-8", errors="replace"))),
        own_swap=result.get("swap"),
        unit_bytes=tuple((experts, others) for experts, others in result["unit_bytes"]),
        backward_profile=tuple((peak, gradients) for peak, gradients in result["backward_profile"]),
        layer_indices=tuple(result["layer_indices"]),
        wall_s=wall_s,
        **{name: result[name] for name in names},
    )


def _read_result(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return data


def _failure_message(code: int | None, result: Mapping[str, Any] | None, log: Path) -> str:
    if result is not None and "error" in result:
        return f"dry run: {result['error']}"
    if code == -signal.SIGKILL:
        cause = "the process was killed, as the kernel does when host memory is used up; --layers N runs fewer layers"
    elif code is None:
        cause = f"given up after {MAX_S:.0f} s"
    elif code < 0:
        cause = f"the backend crashed ({signal.Signals(-code).name})"
    else:
        cause = find_last_error(read_tail(log)) or f"exit code {code}"
    return f"dry run: {cause}\n    log:     {log}"
