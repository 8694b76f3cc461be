"""Rule for settings of a run at which MindFormers stops: steps, checkpoints, callbacks, data."""

import re
from collections.abc import Iterator
from typing import Any

from mindswap.config.findings import Finding, rule
from mindswap.config.problem import Level
from mindswap.rules.context import Context
from mindswap.rules.parts import Part
from mindswap.rules.refusals import (
    RUN_MODES,
    Refusal,
    find_refusals,
    is_bool,
    is_number,
    is_positive,
    of_elements,
    of_parts,
    typed,
)
from mindswap.rules.values import Values

LOADER = "train_dataset.data_loader"
MEGATRON, HF = "BlendedMegatronDatasetDataLoader", ("HFDataLoader", "CommonDataLoader")
NUMBER = re.compile("[.0-9]+")
SINK, FORMATS = "runner_config.sink_size", ("ckpt", "safetensors")
MONITOR_FORMATS = ("tensorboard", "log")
FORMAT_KEYS = (
    "local_norm_format", "local_loss_format", "device_local_norm_format", "device_local_loss_format",
    "optimizer_state_format", "weight_state_format", "max_attention_logit_format",
)  # fmt: skip


def _monitors(v: Values) -> bool:
    """Return whether MindFormers monitors the training."""
    return v("monitor_config.monitor_on") is True


def _is_checkpoint_monitor(callback: dict[str, Any]) -> bool:
    return callback.get("type") == "CheckpointMonitor"


def _is_new_format(v: Values) -> bool:
    """Return whether checkpoints have the newer format, which the section `checkpoint` switches on."""
    return v("use_legacy_format") is False or bool(v("checkpoint"))


def _packs(v: Values) -> bool:
    return any(handler.get("type") == "PackingHandler" for handler in v(f"{LOADER}.handler", []))


def _needs_slices(v: Values) -> bool:
    """Return whether the dataset makes labels, which a legacy model takes with `input_sliced_sig` only."""
    kind = v(f"{LOADER}.type")
    return kind == MEGATRON or (kind in HF and _packs(v))


def _monitored(name: str, key: str, is_right: Any, allowed: str, fix: str = "delete it") -> Refusal:
    """Return the refusal of a value of `monitor_config`, which MindFormers reads while it monitors."""
    path = f"monitor_config.{key}"
    return Refusal(
        f"monitor-{name}",
        path,
        lambda v: _monitors(v) and v(path) is not None and not is_right(v(path)),
        f"it is not {allowed}",
        allowed,
        fix,
    )


def _saved(key: str) -> Refusal:
    """Return the refusal of a count in the section of checkpoints that is below 1."""
    path = f"checkpoint.{key}"
    return Refusal(
        f"checkpoint-{key}", path, lambda v: v(path) < 1, "MindFormers takes 1 or more", "1 or more", "{key}: 1"
    )


def _monitor_format(key: str) -> Refusal:
    """Return the refusal of a place that TrainingStateMonitor does not write to."""
    path = f"monitor_config.{key}"

    def parts(v: Values) -> list[Part]:
        value = v(path)
        if not _monitors(v) or not isinstance(value, str | list):
            return []
        if isinstance(value, str):
            return [] if value in MONITOR_FORMATS else [Part(())]
        return [Part((index,)) for index, place in enumerate(value) if place not in MONITOR_FORMATS]

    return of_parts(
        f"monitor-{key}", path, parts, "TrainingStateMonitor does not write there", "tensorboard, log", "log"
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


REFUSALS = (
    Refusal(
        "run-mode",
        "run_mode",
        # In a training a command line option may override it, and MindFormers checks the result.
        lambda v: not v.is_training_start and v.is_written("run_mode") and v("run_mode", "train") not in RUN_MODES,
        "MindFormers knows no such mode",
        ", ".join(RUN_MODES),
        "{key}: train",
    ),
    typed(
        "runner_config.gradient_accumulation_steps", is_positive, "an integer, 1 or more", "{key}: 1", takes_null=True
    ),
    typed("micro_batch_interleave_num", is_positive, "an integer, 1 or more", "{key}: 1"),
    typed(
        "resume_training",
        lambda value: isinstance(value, bool | str),
        "True, False, or the name of a checkpoint",
        "{key}: False",
        takes_null=True,
    ),
    typed("auto_trans_ckpt", is_bool, "True or False", "{key}: False", takes_null=True),
    typed("train_precision_sync", is_bool, "True or False", "delete it", takes_null=True),
    typed("infer_precision_sync", is_bool, "True or False", "delete it", takes_null=True),
    typed("seed", lambda value: value is not None, "an integer", "{key}: 42"),
    Refusal(
        "sink-size",
        SINK,
        lambda v: bool(v("runner_config.sink_mode", True)) and v(SINK) != -1 and v(SINK) <= 0,
        "MindFormers takes -1 or more than 0",
        "1 or more, or -1",
        "{key}: 1",
    ),
    Refusal(
        "broadcast-sink",
        "runner_config.sink_mode",
        lambda v: v("runner_config.sink_mode") is False and v("context.dataset_broadcast_opt_level") > 0,
        "context.dataset_broadcast_opt_level needs it to be True",
        "True",
        "{key}: True",
    ),
    Refusal(
        "sliced-inputs",
        ("model.input_sliced_sig", f"{LOADER}.type"),
        lambda v: v.document.is_legacy and v.is_complete and _needs_slices(v) and not v("model.input_sliced_sig"),
        "a legacy model takes this dataset with input_sliced_sig: True in model_config only",
        "True",
        "input_sliced_sig: True",
    ),
    Refusal(
        "compressed-dynamic-batch",
        "train_dataset.dynamic_batch",
        lambda v: (
            bool(v("train_dataset.dynamic_batch"))
            and bool(v(f"{LOADER}.config.create_compressed_eod_mask") or v(f"{LOADER}.create_compressed_eod_mask"))
        ),
        "MindFormers refuses it with create_compressed_eod_mask",
        "False",
        "{key}: False",
    ),
    Refusal(
        "dataset-class",
        f"{LOADER}.datasets_type",
        lambda v: v(f"{LOADER}.type") == MEGATRON and v(f"{LOADER}.datasets_type") not in ("GPTDataset", None),
        "MindFormers has GPTDataset only",
        "GPTDataset",
        "{key}: GPTDataset",
    ),
    Refusal(
        "dataset-length",
        f"{LOADER}.config.seq_length",
        lambda v: (
            v(f"{LOADER}.type") == MEGATRON
            and v.is_written(f"{LOADER}.config.seq_length")
            and not is_positive(v(f"{LOADER}.config.seq_length"))
        ),
        "the dataset takes a positive integer",
        "an integer, 1 or more",
        lambda v: f"{{key}}: {v('model.seq_length', 4096)}",
    ),
    Refusal(
        "dataset-split",
        f"{LOADER}.config.split",
        lambda v: v(f"{LOADER}.type") == MEGATRON and len(NUMBER.findall(v(f"{LOADER}.config.split"))) > 3,
        "the dataset is split in three: training, validation, test",
        "three numbers at most",
        "{key}: '1, 0, 0'",
    ),
    Refusal(
        "dataset-split-missing",
        f"{LOADER}.config.data_path",
        lambda v: (
            v(f"{LOADER}.type") == MEGATRON
            and bool(v(f"{LOADER}.config.data_path"))
            and v(f"{LOADER}.config.split") is None
        ),
        "the dataset needs its split into training, validation and test",
        fix="split: '1, 0, 0'",
    ),
    Refusal(
        "hf-load",
        f"{LOADER}.type",
        lambda v: (
            v(f"{LOADER}.type") == "HFDataLoader" and v(f"{LOADER}.load_func") is None and v(f"{LOADER}.load") is None
        ),
        "HFDataLoader needs a mapping, load",
        fix="load: {type: load_dataset, path: FOLDER}",
    ),
    Refusal(
        "hf-streaming",
        f"{LOADER}.streaming",
        lambda v: (
            v(f"{LOADER}.type") == "HFDataLoader"
            and bool(v(f"{LOADER}.streaming"))
            and (v(f"{LOADER}.size") is None or v(f"{LOADER}.dataset_state_dir") is None)
        ),
        "it needs size and dataset_state_dir",
        "False; True with size and dataset_state_dir",
        "{key}: False",
    ),
    of_elements(
        "hf-process",
        f"{LOADER}.process",
        lambda step: "type" not in step,
        "a step needs its type",
        "a list of mappings with type",
        "type: take",
        where=lambda v: v(f"{LOADER}.type") == "HFDataLoader",
    ),
    Refusal(
        "mock-columns",
        f"{LOADER}.mock_columns",
        lambda v: len({len(v(f"{LOADER}.mock_{part}")) for part in ("columns", "shapes", "dtypes")}) > 1,
        "mock_columns, mock_shapes and mock_dtypes are of different lengths",
        fix="one entry for each column in all three",
    ),
    Refusal(
        "tuned-profile",
        "train_dataset.profile",
        lambda v: bool(v("train_dataset.profile")) and bool(v("train_dataset.auto_tune")),
        "MindFormers refuses it with auto_tune",
        "False",
        "{key}: False",
    ),
    Refusal(
        "callbacks-form",
        "callbacks",
        lambda v: v.is_written("callbacks") and v("callbacks") is not None and not isinstance(v("callbacks"), list),
        "MindFormers takes a list",
        "a list of mappings with type",
        "- type: MFLossMonitor",
    ),
    of_elements(
        name="checkpoint-prefix",
        at="callbacks",
        is_wrong=lambda callback: _is_checkpoint_monitor(callback) and "rank" in callback["prefix"],
        message="the prefix of a CheckpointMonitor must not contain 'rank'",
        allowed="a name without 'rank'",
        fix="{key}: checkpoint",
        key="prefix",
    ),
    of_elements(
        name="checkpoint-redundancy",
        at="callbacks",
        is_wrong=lambda callback: (
            _is_checkpoint_monitor(callback)
            and callback.get("remove_redundancy")
            and callback.get("checkpoint_format", "ckpt") == "ckpt"
        ),
        message="CheckpointMonitor removes redundancy in safetensors only",
        allowed="False",
        fix="checkpoint_format: safetensors, or {key}: False",
        key="remove_redundancy",
        where=lambda v: v.document.is_legacy,
    ),
    Refusal(
        "checkpoint-format",
        "load_ckpt_format",
        lambda v: v("load_ckpt_format", "ckpt") not in FORMATS and bool(v("load_checkpoint")),
        "MindFormers knows no such format",
        ", ".join(FORMATS),
        "{key}: safetensors",
    ),
    Refusal(
        "resume-name",
        "resume_training",
        lambda v: _is_new_format(v) and isinstance(v("resume_training"), str),
        "with checkpoints of the newer format MindFormers takes a bool",
        "True or False",
        "{key}: True",
    ),
    Refusal(
        "strategy-only",
        "only_save_strategy",
        lambda v: _is_new_format(v) and bool(v("only_save_strategy")),
        "MindFormers refuses it with checkpoints of the newer format",
        "False",
        "{key}: False",
    ),
    _saved("save_max"),
    _saved("save_interleaved_steps"),
    _saved("reshard_worker_num"),
    _monitored("interval", "step_interval", is_positive, "an integer, 1 or more"),
    _monitored("rank-interval", "stable_rank_config.step_interval", is_positive, "an integer, 1 or more"),
    _monitored("iterations", "stable_rank_config.power_iteration_num", is_positive, "an integer, 1 or more"),
    _monitored("spikes", "global_norm_spike_count_threshold", is_positive, "an integer, 1 or more"),
    _monitored("target", "target", _are_names, "a list of strings", "{key}: ['.*']"),
    _monitored("invert", "invert", is_bool, "True or False", "{key}: False"),
    _monitored("struct", "print_struct", is_bool, "True or False", "{key}: False"),
    _monitored("throughput", "throughput_baseline", lambda value: is_number(value) and value > 0, "a number above 0"),
    *(
        _monitored(
            f"{key}-type",
            key,
            lambda value: not value or isinstance(value, str | list),
            "tensorboard, log, or a list of both",
            "{key}: log",
        )
        for key in FORMAT_KEYS
    ),
    *map(_monitor_format, FORMAT_KEYS),
    Refusal(
        "monitor-aggregation",
        "monitor_config.stable_rank_config.do_aggregation",
        lambda v: (
            _monitors(v)
            and bool(v("monitor_config.stable_rank_config.do_aggregation"))
            and bool(v("monitor_config.stable_rank_config.format"))
            and v.is_split
            and v.stages > 1
        ),
        "MindFormers refuses it with several pipeline stages",
        "False",
        "{key}: False",
    ),
    Refusal(
        "monitor-skip",
        "monitor_config.check_for_global_norm",
        lambda v: (
            _monitors(v) and bool(v("monitor_config.check_for_global_norm")) and bool(v("use_skip_data_by_global_norm"))
        ),
        "MindFormers refuses it with use_skip_data_by_global_norm",
        "False",
        "{key}: False",
    ),
)


@rule(Level.ERROR)
def run_refused(context: Context) -> Iterator[Finding]:
    """Settings of steps, checkpoints, callbacks, monitoring and data at which MindFormers stops.

    All conditions are in docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: runner_config: {sink_mode: True, sink_size: 1}
    FAIL: runner_config: {sink_mode: True, sink_size: 0}
    """
    yield from find_refusals(context, REFUSALS)
