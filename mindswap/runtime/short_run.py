"""Derive the configuration of a short, reproducible, measured run, or of a dry run, from the user's."""

import contextlib
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.pipeline_layout import read_pipeline
from mindswap.config.render import block_lines, document_from_data
from mindswap.errors import LaunchError
from mindswap.files import package_data, read_limited, write_new
from mindswap.policy.formats.mindformers1.read import NUM_LAYERS_KEYS
from mindswap.policy.formats.mindformers1.truncate import (
    truncated_layer_classes,
    truncated_offset,
    truncated_sections,
)
from mindswap.runtime.config_edit import ConfigEdit, show_value
from mindswap.runtime.input_paths import SPEED_UP, with_absolute_paths
from mindswap.simulator.cost.device_file import read_cost_settings

READER = "CausalLanguageModelDataset"  # reads columns of a MindRecord as they are


@dataclass(frozen=True)
class SyntheticData:
    """Generated MindRecord that replaces the user's data."""

    path: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class RunOptions:
    """Options of short runs."""

    num_steps: int  # number of training steps
    num_workers: int  # workers of msrun; 0 for the number of the configuration, to be replaced before `derive`
    num_layers: int | None = None  # layers of the truncated model; None for all layers
    num_micro_batches: int | None = None  # micro-batches of a pipeline without interleaved halves; None for no change
    is_profiled: bool = True  # whether to profile the last step of rank 0
    is_deterministic: bool = False  # whether to use deterministic kernels


MakeData = Callable[[Document], SyntheticData | None]


def derive(
    config: Mapping[str, Any], options: RunOptions, make_data: MakeData = lambda document: None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Derive the configuration of a short run. Swap and recompute are unchanged.

    Args:
        config: the user's configuration.
        options: options of the run.
        make_data: function that generates data for the sizes of the run, or returns None to keep the user's data.

    Returns:
        The configuration, and a line for each difference from the user's.

    Raises:
        LaunchError: if the parallel sizes do not fit the number of workers, or no data can be generated.
    """
    edit = ConfigEdit(copy.deepcopy(dict(config)))
    wants = package_data("measure/run.yaml")
    for path, value in wants["always"].items():
        if path != "seed" or edit.get(path) is None:  # without a seed the weights would differ between runs
            edit.set(path, value, only_existing=path.startswith("model."))
    # Without checkpoints and other callbacks that write or wait. TrainCallBack ends the training, because mindformers
    # 1.9.0 reads and drops `runner_config.stop_step`, which should create one (trainer/base_trainer.py:1344).
    last = {"type": "TrainCallBack", "stop_step": options.num_steps}
    edit.set("callbacks", [{"type": "MFLossMonitor", "per_print_times": 1}, {"type": "StepReport"}, last])
    if options.num_layers is not None:
        _set_layers(edit, options.num_layers)
    if options.num_micro_batches is not None:
        edit.set("parallel_config.micro_batch_num", options.num_micro_batches)
    _set_parallel(edit, options.num_workers)
    _set_data(edit, make_data(document_from_data(edit.data, "the configuration")))
    if options.is_deterministic:
        edit.set("context.deterministic", "ON")
    edit.set("profile", options.is_profiled)
    if options.is_profiled:
        # ProfileMonitor starts after step `start` and writes at the end of step `stop`. The last step is not timed.
        last_step = options.num_steps
        edit.data |= {"profile_start_step": last_step, "profile_stop_step": last_step, **wants["profiler"]}
        edit.changes.append(f"profiler: step {last_step} of rank 0, Level{wants['profiler']['profiler_level']}")
    return edit.data, tuple(edit.changes)


def switched_off(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the configuration without swap and recompute."""
    data = copy.deepcopy(dict(config))
    data["swap_config"] = {"swap": False}
    data["recompute_config"] = {"recompute": False, "select_recompute": False, "select_comm_recompute": False}
    if isinstance(data.get("mindswap"), dict):
        data["mindswap"].pop("output_recompute", None)
    return data


def format_config(config: Mapping[str, Any], comment: str) -> str:
    """Format the configuration as self-contained YAML below a comment."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([*lines, *block_lines(config, 0, 2)]) + "\n"


def run_config(
    document: Document,
    num_layers: int,
    options: RunOptions,
    kept: Sequence[int] | None,
    make_data: MakeData,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Derive a configuration as `derive`, with absolute paths and optionally with fewer layers.

    A truncated model has the same keys; only counts and indices of layers differ.

    Args:
        document: the user's configuration.
        num_layers: layers of the full model.
        options: see `derive`.
        kept: layers of the full model that the layers of the truncated one represent; None for all layers.
        make_data: see `derive`.

    Returns:
        See `derive`.

    Raises:
        LaunchError: see `derive`.
    """
    config, changes = derive(with_absolute_paths(_read_config(document), Path.cwd()), options, make_data)
    if kept is not None:
        config |= truncated_sections(document, num_layers, kept)
        model_config = config["model"]["model_config"]
        model_config |= truncated_layer_classes(model_config, kept)
        offset = truncated_offset(read_pipeline(document), num_layers, kept)
        if offset or "offset" in model_config:
            model_config["offset"] = offset
    return config, changes


def write_backend_config(
    document: Document,
    num_layers: int,
    num_ranks: int,
    kept: Sequence[int] | None,
    make_data: MakeData,
    folder: Path,
    num_micro_batches: int | None = None,
) -> Path:
    """Write the configuration of a dry run: one step, generated data, no checkpoints, optionally fewer layers.

    Args:
        document: the user's configuration.
        num_layers: layers of the full model.
        num_ranks: ranks of the parallel training; 1 without parallelism.
        kept: see `run_config`.
        make_data: see `derive`.
        folder: output folder, which is created.
        num_micro_batches: see `RunOptions`.

    Returns:
        Path of the configuration.

    Raises:
        LaunchError: see `derive`; or a file of speed-up settings is missing.
    """
    _require_speed_up(document)
    folder.mkdir(parents=True)
    options = RunOptions(1, num_ranks, None if kept is None else len(kept), num_micro_batches, is_profiled=False)
    config, changes = run_config(document, num_layers, options, kept, make_data)
    _for_ascend(config, folder)
    path = folder / "dryrun.yaml"
    write_new(path, format_config(config, "Made by mindswap dryrun; changed there:\n" + "\n".join(changes)))
    return path


def _require_speed_up(document: Document) -> None:
    """Refuse a configuration with a missing file of speed-up settings, as a training does.

    Raises:
        LaunchError: if it is missing; names the line of the configuration and the path.
    """
    node = document.get("context", "ascend_config", SPEED_UP)
    path = node.value if node is not None else None
    if node is None or not isinstance(path, str) or not path or Path(path).exists():
        return
    raise LaunchError(
        f"{node.location}: context.ascend_config.{SPEED_UP}: {Path(path).absolute()} does not exist\n"
        "    allowed: a file of parallel_speed_up settings; MindSpore looks from the working folder\n"
        f"    fix:     start in the folder that {path} belongs to, or delete the key"
    )


def _for_ascend(config: dict[str, Any], folder: Path) -> None:
    """Change the settings that differ between a dry run and a training."""
    context = config["context"] = dict(config.get("context") or {})
    context["device_target"] = "Ascend"
    # MindSpore refuses `dataset_broadcast_opt_level` without sink mode.
    context.pop("dataset_broadcast_opt_level", None)
    ascend = context.get("ascend_config")
    if isinstance(ascend, dict) and isinstance(path := ascend.get(SPEED_UP), str) and Path(path).is_file():
        with contextlib.suppress(ValueError):  # MindSpore reports the error
            settings = json.loads(read_limited(path, 1 << 20))
            settings = {key: value for key, value in settings.items() if key != "dataset_broadcast_opt_level"}
            write_new(folder / "parallel_speed_up.json", json.dumps(settings), overwrite=True)
            context["ascend_config"] = {**ascend, SPEED_UP: str(folder.absolute() / "parallel_speed_up.json")}
    config["runner_config"]["sink_mode"] = False
    config["train_dataset"]["num_parallel_workers"] = 1
    config["callbacks"] = [callback for callback in config["callbacks"] if callback["type"] != "StepReport"]
    schedule = config.get("lr_schedule")
    if isinstance(schedule, dict) and schedule.get("warmup_steps") is schedule.get("warmup_ratio") is None:
        config["lr_schedule"] = {**schedule, "warmup_steps": 0}  # MindFormers refuses a file without
    if isinstance(config.get("mindswap"), dict):
        config["mindswap"] = {key: value for key, value in config["mindswap"].items() if key != "cpu_stand_ins"}


def _set_layers(edit: ConfigEdit, num_layers: int) -> None:
    present_keys = [key for key in NUM_LAYERS_KEYS if edit.get(f"model.model_config.{key}") is not None]
    for key in present_keys or ["num_layers" if edit.get("use_legacy") is not False else "num_hidden_layers"]:
        edit.set(f"model.model_config.{key}", num_layers)
    edit.set("model.model_config.offset", 0, only_existing=True)


def _set_parallel(edit: ConfigEdit, num_workers: int) -> None:
    if num_workers == 1:
        edit.set("use_parallel", False)
        return
    num_model_ranks = 1
    for name in ("model_parallel", "context_parallel", "pipeline_stage"):
        size = edit.get(f"parallel_config.{name}")
        num_model_ranks *= size if isinstance(size, int) and size > 0 else 1
    if num_workers % num_model_ranks:
        raise LaunchError(
            f"{num_workers} workers, but model_parallel x context_parallel x pipeline_stage is {num_model_ranks}\n"
            f"    fix:     --worker-num {num_model_ranks * -(-num_workers // num_model_ranks)}"
        )
    edit.set("use_parallel", True)
    edit.set("parallel_config.data_parallel", num_workers // num_model_ranks)
    edit.set("parallel.device_num", num_workers, only_existing=True)


def _set_data(edit: ConfigEdit, synthetic: SyntheticData | None) -> None:
    if synthetic is None:
        edit.set("train_dataset.data_loader.shuffle", False, only_existing=True)
    else:
        dataset = edit.get("train_dataset")
        columns = list(synthetic.columns)
        loader = {"type": "MindDataset", "dataset_dir": synthetic.path, "shuffle": False}
        train_dataset = {
            **(dataset if isinstance(dataset, dict) else {}),
            "data_loader": loader,
            "input_columns": columns,
        }
        train_dataset |= {"drop_remainder": True, "repeat": 1}
        if len(columns) > 1:
            train_dataset["construct_args_key"] = columns
        train_dataset.pop("tokenizer", None)
        edit.data["train_dataset"] = train_dataset
        edit.changes.append(f"train_dataset: {show_value(synthetic.path)}, made for this proof")
    # Most files set this by a YAML alias, so both must be equal. Classes for questions or dialogues need a tokenizer.
    task = (edit.get("train_dataset_task") if synthetic is None else None) or {"type": READER}
    edit.data["train_dataset_task"] = {**task, "dataset_config": edit.get("train_dataset")}


def _read_config(document: Document) -> dict[str, Any]:
    """Return the user's configuration with its bases merged and an absolute path of the device file."""
    data = document.data()
    cost_settings = read_cost_settings(document)
    if cost_settings.device is not None and Path(cost_settings.device).suffix:
        key = "calibration" if cost_settings.is_calibration else "device"
        data["mindswap"] = {**data["mindswap"], key: str(Path(cost_settings.device).absolute())}
    return data
