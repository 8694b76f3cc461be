"""The configuration that is run: the user's, made short, repeatable and measured; for workers, or for a dry run."""

import contextlib
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.render import block_lines, document_from_data, inline_text, is_inline
from mindswap.errors import LaunchError
from mindswap.files import package_data, read_limited, write_new
from mindswap.policy.equivalence import policy_sections, truncated_policy
from mindswap.policy.formats.mindformers1.read import NUM_LAYERS_KEYS
from mindswap.policy.model import Policy
from mindswap.simulator.cost.device_file import read_cost_settings

SPEED_UP = "parallel_speed_up_json_path"


@dataclass(frozen=True)
class SyntheticData:
    """A MindRecord made on the spot, in place of the user's data."""

    path: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class RunOptions:
    """Options of the runs."""

    num_steps: int  # steps of training
    num_workers: int  # workers of msrun; 0: as the configuration has, which `derive` does not look up
    num_layers: int | None = None  # layers of the cut model; None leaves them
    num_micro_batches: int | None = None  # of a pipeline, without interleaved halves of a batch; None leaves them
    is_profiled: bool = True  # profile the last step of rank 0
    is_deterministic: bool = False  # kernels that give the same bits each time


MakeData = Callable[[Document], SyntheticData | None]


def derive(
    config: Mapping[str, Any], wanted: RunOptions, make_data: MakeData = lambda document: None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The configuration of the runs, and in words what differs from the user's.

    Swap and recompute stay as they are. `make_data` makes data for the sizes of the runs; None keeps the user's.

    Raises:
        LaunchError: the parallel sizes do not fit the number of workers, or no data can be made.
    """
    edit = _Edit(copy.deepcopy(dict(config)))
    wants = package_data("measure/run.yaml")
    for path, value in wants["always"].items():
        if path != "seed" or edit.get(path) is None:  # weights would differ from run to run
            edit.set(path, value, only_if_there=path.startswith("model."))
    # No checkpoints, nothing that writes or waits. TrainCallBack ends the training: `runner_config.stop_step`, which
    # should make one, is read and dropped by mindformers 1.9.0 (trainer/base_trainer.py:1344).
    last = {"type": "TrainCallBack", "stop_step": wanted.num_steps}
    edit.set("callbacks", [{"type": "MFLossMonitor", "per_print_times": 1}, {"type": "StepReport"}, last])
    if wanted.num_layers is not None:
        _set_layers(edit, wanted.num_layers)
    if wanted.num_micro_batches is not None:
        edit.set("parallel_config.micro_batch_num", wanted.num_micro_batches)
    _set_parallel(edit, wanted.num_workers)
    _set_data(edit, make_data(document_from_data(edit.data, "the configuration")))
    if wanted.is_deterministic:
        edit.set("context.deterministic", "ON")
    edit.set("profile", wanted.is_profiled)
    if wanted.is_profiled:
        # ProfileMonitor starts behind step `start`, and writes at the end of step `stop`: the last, which is not timed.
        last_step = wanted.num_steps
        edit.data |= {"profile_start_step": last_step, "profile_stop_step": last_step, **wants["profiler"]}
        edit.changes.append(f"profiler: step {last_step} of rank 0, Level{wants['profiler']['profiler_level']}")
    return edit.data, tuple(edit.changes)


def switched_off(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same with nothing swapped and nothing recomputed."""
    data = copy.deepcopy(dict(config))
    data["swap_config"] = {"swap": False}
    data["recompute_config"] = {"recompute": False, "select_recompute": False, "select_comm_recompute": False}
    if isinstance(data.get("mindswap"), dict):
        data["mindswap"].pop("output_recompute", None)
    return data


def format_config(config: Mapping[str, Any], comment: str) -> str:
    """The configuration as YAML that stands for itself, below a comment."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([*lines, *block_lines(config, 0, 2)]) + "\n"


def run_config(
    document: Document,
    policy: Policy,
    wanted: RunOptions,
    kept: Sequence[int] | None,
    make_data: MakeData,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """As `derive`, perhaps with fewer layers; its files are found from any folder.

    Args:
        document: the user's configuration.
        policy: what it asks for, in layer indices.
        wanted: as of `derive`.
        make_data: as of `derive`.
        kept: layers of the whole model that those of a short one stand for; None for all of them.

    Raises:
        LaunchError: as `derive`.
    """
    config, changes = derive(with_absolute_paths(_own_data(document), Path.cwd()), wanted, make_data)
    if kept is not None:
        # In layer indices, which need `swap: True` also where only recompute is asked for.
        cut = replace(truncated_policy(policy, tuple(kept)), is_swap_enabled=True)
        config |= policy_sections(cut, config, len(kept))
    return config, changes


def write_backend_config(
    document: Document,
    policy: Policy,
    num_ranks: int,
    kept: Sequence[int] | None,
    make_data: MakeData,
    folder: Path,
    num_micro_batches: int | None = None,
) -> Path:
    """The configuration of a dry run: one step, data made on the spot, nothing saved, perhaps fewer layers.

    Args:
        document: the user's configuration.
        policy: what it asks for, in layer indices.
        num_ranks: of the parallel training; 1 for one without.
        kept: as of `run_config`.
        make_data: as of `run_config`.
        folder: where it is written; it is made.
        num_micro_batches: as of `RunOptions`.
    """
    _require_speed_up(document)
    folder.mkdir(parents=True)
    num_layers = None if kept is None else len(kept)
    wanted = RunOptions(1, num_ranks, num_layers, num_micro_batches, is_profiled=False)
    config, changes = run_config(document, policy, wanted, kept, make_data)
    _for_ascend(config, folder)
    path = folder / "dryrun.yaml"
    write_new(path, format_config(config, "Made by mindswap dryrun; changed there:\n" + "\n".join(changes)))
    return path


def _require_speed_up(document: Document) -> None:
    """Refuse a configuration that names a file of speed-up settings that is not here: a training stops there, too.

    Raises:
        LaunchError: names the place in the configuration and where the file was looked for.
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
    """Settings that a dry run needs otherwise than a training."""
    context = config["context"] = dict(config.get("context") or {})
    context["device_target"] = "Ascend"
    # MindSpore refuses `dataset_broadcast_opt_level` without sink mode.
    context.pop("dataset_broadcast_opt_level", None)
    ascend = context.get("ascend_config")
    if isinstance(ascend, dict) and isinstance(path := ascend.get(SPEED_UP), str) and Path(path).is_file():
        with contextlib.suppress(ValueError):  # MindSpore says what is wrong with it
            settings = json.loads(read_limited(path, 1 << 20))
            settings = {key: value for key, value in settings.items() if key != "dataset_broadcast_opt_level"}
            write_new(folder / "parallel_speed_up.json", json.dumps(settings), overwrite=True)
            context["ascend_config"] = {**ascend, SPEED_UP: str(folder.absolute() / "parallel_speed_up.json")}
    config["runner_config"]["sink_mode"] = False
    config["train_dataset"]["num_parallel_workers"] = 1
    config["callbacks"] = [each for each in config["callbacks"] if each["type"] != "StepReport"]
    schedule = config.get("lr_schedule")
    if isinstance(schedule, dict) and schedule.get("warmup_steps") is schedule.get("warmup_ratio") is None:
        config["lr_schedule"] = {**schedule, "warmup_steps": 0}  # MindFormers refuses a file without
    if isinstance(config.get("mindswap"), dict):
        config["mindswap"] = {key: value for key, value in config["mindswap"].items() if key != "cpu_stand_ins"}


class _Edit:
    """A configuration that remembers what was changed in it."""

    def __init__(self, data: dict[str, Any]):
        self.data = data
        self.changes: list[str] = []

    def get(self, path: str) -> Any:
        """The value at a key path; None if it is not there."""
        node: Any = self.data
        for name in path.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def set(self, path: str, value: Any, only_if_there: bool = False) -> None:
        """Set a value; sections that are not there are made."""
        *parents, last = path.split(".")
        node = self.data
        for name in parents:
            if not isinstance(node.get(name), dict):
                if only_if_there:
                    return
                node[name] = {}
            node = node[name]
        if last not in node and only_if_there:
            return
        old = node.get(last)
        node[last] = value
        if old != value and (old or value):
            self.changes.append(f"{path}: {_show(old)} -> {_show(value)}")


def _show(value: Any) -> str:
    if value is None:
        return "not set"
    if is_inline(value):
        text = inline_text(value)
    else:
        text = ", ".join(str(item.get("type", "...") if isinstance(item, dict) else item) for item in value)
    return text if len(text) <= 60 else text[:57] + "..."


def _set_layers(edit: _Edit, num_layers: int) -> None:
    there = [key for key in NUM_LAYERS_KEYS if edit.get(f"model.model_config.{key}") is not None]
    for key in there or ["num_layers" if edit.get("use_legacy") is not False else "num_hidden_layers"]:
        edit.set(f"model.model_config.{key}", num_layers)
    edit.set("model.model_config.offset", 0, only_if_there=True)


def _set_parallel(edit: _Edit, num_workers: int) -> None:
    if num_workers == 1:
        edit.set("use_parallel", False)
        return
    others = 1
    for name in ("model_parallel", "context_parallel", "pipeline_stage"):
        size = edit.get(f"parallel_config.{name}")
        others *= size if isinstance(size, int) and size > 0 else 1
    if num_workers % others:
        raise LaunchError(
            f"{num_workers} workers, but model_parallel x context_parallel x pipeline_stage is {others}\n"
            f"    fix:     --worker-num {others * -(-num_workers // others)}"
        )
    edit.set("use_parallel", True)
    edit.set("parallel_config.data_parallel", num_workers // others)
    edit.set("parallel.device_num", num_workers, only_if_there=True)


def _set_data(edit: _Edit, synthetic: SyntheticData | None) -> None:
    if synthetic is None:
        edit.set("train_dataset.data_loader.shuffle", False, only_if_there=True)
    else:
        dataset = edit.get("train_dataset")
        columns = list(synthetic.columns)
        loader = {"type": "MindDataset", "dataset_dir": synthetic.path, "shuffle": False}
        made = {**(dataset if isinstance(dataset, dict) else {}), "data_loader": loader, "input_columns": columns}
        made |= {"drop_remainder": True, "repeat": 1}
        if len(columns) > 1:
            made["construct_args_key"] = columns
        edit.data["train_dataset"] = made
        edit.changes.append(f"train_dataset: {_show(synthetic.path)}, made for this proof")
    # Written by an alias in most files; here the two must not differ.
    edit.data["train_dataset_task"] = {
        **(edit.get("train_dataset_task") or {"type": "CausalLanguageModelDataset"}),
        "dataset_config": edit.get("train_dataset"),
    }


# The data of a proof: the user's where it is there, else a MindRecord made on the spot.

PATH_KEYS = ("dataset_dir", "dataset_files", "pretrained_model_dir", SPEED_UP)


def has_own_data(config: Mapping[str, Any]) -> bool:
    """The configuration names a MindRecord that is there, or a loader of another kind, which is left to itself."""
    loader = _loader(config)
    if loader.get("type", "MindDataset") != "MindDataset":
        return True
    names = loader.get("dataset_dir") or loader.get("dataset_files") or ""
    paths = names if isinstance(names, list) else [names]
    return all(isinstance(path, str) and path and Path(path).exists() for path in paths)


def _loader(config: Mapping[str, Any]) -> Mapping[str, Any]:
    dataset = config.get("train_dataset")
    loader = dataset.get("data_loader") if isinstance(dataset, dict) else None
    return loader if isinstance(loader, dict) else {}


def _own_data(document: Document) -> dict[str, Any]:
    """The user's configuration with its bases merged, and with a device file that is found from anywhere."""
    data = document.data()
    asked = read_cost_settings(document)
    if asked.device is not None and Path(asked.device).suffix:
        key = "calibration" if asked.is_calibration else "device"
        data["mindswap"] = {**data["mindswap"], key: str(Path(asked.device).absolute())}
    return data


def with_absolute_paths(value: Any, home: Path, is_path: bool = False) -> Any:
    """The configuration with paths of files that it reads as they are from `home`; those that are not there stay."""
    if isinstance(value, dict):
        return {key: with_absolute_paths(item, home, key in PATH_KEYS) for key, item in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(item, home, is_path) for item in value]
    is_there = is_path and isinstance(value, str) and value and (home / value).exists()
    return str(home / value) if is_there else value
