"""Configuration of MindFormers 2.x for a dry run of its trainer in one process."""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mindswap.config.nodes import Document, DocumentNode
from mindswap.config.problem import Location, find_errors
from mindswap.errors import GraphError, LaunchError, PolicyError
from mindswap.policy.formats.mindformers2.read import MTP_KEYS, NUM_LAYERS_KEYS, find_mtp_layers, find_num_layers_2x
from mindswap.policy.formats.mindformers2.settings import OWN_ENGINE, SWAP_ENGINE, indices_of, parse_spec
from mindswap.rules.checker import check_pynative
from mindswap.rules.machine.software import installed_version
from mindswap.units import format_count

# Micro-batches that run: in the second one the gradients of the first are there, and the others are like it.
MAX_MICRO_BATCHES = 2
MAX_COUNT = 1 << 30
COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")
PARALLEL_KEYS = ("tensor_parallel", "context_parallel", "pipeline_parallel")
ONE_PROCESS = {
    "data_parallel_shard": -1,
    "tensor_parallel": 1,
    "context_parallel": 1,
    "pipeline_parallel": 1,
    "expert_parallel": 1,
    "sequence_parallel": False,
}
STAGE_KEYS = ("pipeline_parallel", "pipeline_parallel_layers_per_stage", "pipeline_parallel_schedule")
# Sections of files and services that a dry run must not read or write.
DROPPED_SECTIONS = ("mindswap", "callbacks", "monitor", "profiler", "eval_dataset", "run_mode")


@dataclass(frozen=True)
class TrainerRequest:
    """Arguments of `mindswap.adapters.pynative.trainer_dry_run.dry_run`.

    Attributes:
        config: configuration of MindFormers 2.x for one process.
        sample: sizes and columns of the made-up data.
        num_layers: layers of the model, without those for multi-token prediction.
        num_stages: pipeline stages that run, each in a process; 1 without.
        stage: the stage of this request.
    """

    config: Mapping[str, Any]
    sample: Mapping[str, Any]
    num_layers: int
    num_stages: int = 1
    stage: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the rank of this stage."""
        if self.num_stages == 1:
            return {}
        return {"RANK_SIZE": str(self.num_stages), "RANK_ID": str(self.stage)}


def require_valid_2x(document: Document) -> None:
    """Require that `mindswap check` finds no error in a configuration of MindFormers 2.x.

    Raises:
        PolicyError: it has errors.
    """
    checked = check_pynative(document, mindformers=installed_version("mindformers"))
    if find_errors(checked.problems):
        raise PolicyError(checked.problems)


def trainer_request(document: Document, num_layers: int | None = None, num_cards: int | None = None) -> TrainerRequest:
    """Derive the request for a dry run of one rank.

    Args:
        document: a configuration of MindFormers 2.x.
        num_layers: layers of a truncated model; None for all.
        num_cards: cards of the training; None for the product of its tensor, context and pipeline parallel sizes.

    Raises:
        GraphError: a size of the model is missing.
        LaunchError: the sizes do not fit the number of cards or of layers.
    """
    config = copy.deepcopy(document.data())
    full_layers = find_num_layers_2x(document)
    if full_layers is None:
        raise GraphError(f"{document.location_of('model')}: model: a dry run needs {NUM_LAYERS_KEYS[0]}")
    if num_layers is not None:
        truncate_layers(config, full_layers, num_layers, find_mtp_layers(document))
    num_stages = count_stages(document) if num_layers is None else 1
    count = min(_max_micro_batches(document, num_stages), num_micro_batches(document, num_cards))
    batch_size = document.count("training", "local_batch_size")
    config["training"] = {
        **(config.get("training") or {}),
        "local_batch_size": batch_size,
        "global_batch_size": batch_size * count,
        "deterministic": False,
    }
    config["checkpoint"] = {"enable_save": False, "no_load_optim": True}
    config["train_dataset"] = {"dataloader": {"type": "HFDataLoader"}}  # the samples are made by the process itself
    config["parallelism"] = dict(ONE_PROCESS)
    if num_stages > 1:
        own = config_keys(document.data().get("parallelism") or {}, STAGE_KEYS)
        config["parallelism"] |= {"pipeline_parallel_layers_per_stage": "auto", **own}
    for name in DROPPED_SECTIONS:
        config.pop(name, None)
    columns = document.get("train_dataset", "dataloader", "column_names")
    sample = {
        "batch_size": batch_size,
        "num_micro_batches": count,
        "seq_length": _size(document, "seq_length"),
        "vocab_size": _size(document, "vocab_size"),
        "columns": [str(node.value) for node in columns.items] if columns and columns.items else list(COLUMNS),
    }
    return TrainerRequest(config, sample, num_layers or full_layers, num_stages)


def _max_micro_batches(document: Document, num_stages: int) -> int:
    """Return the micro-batches after which a step needs no more memory; `MAX_COUNT` where each needs more."""
    if num_stages == 1:
        return MAX_MICRO_BATCHES
    # In 1F1B a stage has at most one micro-batch for each stage in flight, and the next one begins when a backward pass
    # has ended. In the other schedules all forward passes may precede the first backward pass.
    return num_stages + 1 if is_1f1b(document) else MAX_COUNT


def is_1f1b(document: Document) -> bool:
    """Return whether forward and backward passes of a pipeline stage take turns, as without a schedule in the file."""
    schedule = document.value("parallelism", "pipeline_parallel_schedule")
    return not schedule or str(schedule).lower() == "1f1b"


def count_stages(document: Document) -> int:
    """Return the pipeline stages of a dry run: those of the file, if each is one chunk; otherwise 1."""
    is_interleaved = document.count("parallelism", "pipeline_parallel_interleave_num") > 1
    return 1 if is_interleaved else document.count("parallelism", "pipeline_parallel")


def config_keys(section: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return the keys of a section that have a value."""
    return {key: section[key] for key in keys if section.get(key) is not None}


def num_micro_batches(document: Document, num_cards: int | None = None) -> int:
    """Return the micro-batches that a rank runs in a step.

    Args:
        document: a configuration of MindFormers 2.x.
        num_cards: see `trainer_request`.

    Raises:
        LaunchError: the batch cannot be distributed.
    """
    num_ranks = num_data_parallel_ranks(document, num_cards)
    samples = document.count("training", "local_batch_size") * num_ranks
    total = document.count("training", "global_batch_size")
    if total % samples:
        raise LaunchError(
            f"{document.location_of('training', 'global_batch_size')}: training.global_batch_size {total} is no "
            f"multiple of {samples}, local_batch_size x {format_count(num_ranks, 'data parallel rank')}\n"
            "    fix:     --cards N, of the training"
        )
    return total // samples


def num_data_parallel_ranks(document: Document, num_cards: int | None) -> int:
    """Return the data parallel ranks of a training with so many cards; None is one of them.

    Args:
        document: a configuration of MindFormers 2.x.
        num_cards: cards of the training.

    Raises:
        LaunchError: the other parallel sizes do not fit the cards.
    """
    per_replica = math.prod(document.count("parallelism", key) for key in PARALLEL_KEYS)
    if num_cards is None:
        return 1
    if num_cards % per_replica:
        product = " x ".join(PARALLEL_KEYS)
        raise LaunchError(f"--cards {num_cards}: no multiple of {per_replica}, which is {product} of the configuration")
    return num_cards // per_replica


def _size(document: Document, name: str) -> int:
    """Return a size of the model.

    Raises:
        GraphError: it is missing.
    """
    value = document.value("model", name)
    if not isinstance(value, int) or value < 1:
        raise GraphError(
            f"{document.location_of('model')}: model.{name} is missing\n    fix:     write it, for example {name}: 4096"
        )
    return value


def switched_off_2x(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a configuration of MindFormers 2.x without swap and recompute."""
    return {key: value for key, value in config.items() if key not in ("swap", "recompute", "recompute_comm")}


def fully_recomputed_2x(config: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """Return a copy in which nothing is swapped and all layers are recomputed.

    Args:
        config: a configuration of MindFormers 2.x.
        num_layers: its layers, with those for multi-token prediction.
    """
    layers = [f"0-{num_layers - 1}"]
    return {**switched_off_2x(config), "recompute": {"mode": "full", "full_recompute_layer": layers}}


def truncate_layers(config: dict[str, Any], full_layers: int, num_layers: int, num_mtp_layers: int) -> None:
    """Reduce a configuration to its first layers, and those for multi-token prediction; it is changed.

    Args:
        config: a configuration of MindFormers 2.x.
        full_layers: layers of the model, without those for multi-token prediction.
        num_layers: layers to keep.
        num_mtp_layers: layers for multi-token prediction.

    Raises:
        LaunchError: the model has fewer layers.
    """
    if num_layers > full_layers:
        raise LaunchError(f"--layers {num_layers}: the model has {full_layers}\n    allowed: 1 to {full_layers}")
    model = config["model"]
    for key in set(NUM_LAYERS_KEYS) & model.keys():
        model[key] = num_layers
    for key, value in model.items():
        if isinstance(value, list) and len(value) == full_layers + num_mtp_layers and key not in MTP_KEYS:
            model[key] = value[:num_layers] + value[full_layers:]  # one entry per layer, as `compress_ratios`
    for key in {"first_k_dense_replace", "num_hash_layers"} & model.keys():
        model[key] = min(model[key], num_layers)
    positions = {index: index for index in range(num_layers)}
    positions |= {full_layers + index: num_layers + index for index in range(num_mtp_layers)}
    for name in ("swap", "recompute", "recompute_comm"):
        if isinstance(config.get(name), dict):
            is_own = (config.get("mindswap") or {}).get(SWAP_ENGINE) == OWN_ENGINE
            prefetch = config[name].get("default_prefetch", 1) if name == "swap" and not is_own else 0
            limit = num_layers + num_mtp_layers - prefetch
            kept = {index: position for index, position in positions.items() if position < limit}
            config[name] = {key: _retained(value, kept) for key, value in config[name].items()}


def _retained(value: Any, positions: Mapping[int, int]) -> Any:
    """Return a value of a section with the lists of layers in it reduced to those with a position."""
    if isinstance(value, Mapping):
        return {key: _retained(each, positions) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    if all(isinstance(item, Mapping) for item in value):
        return [_retained(item, positions) for item in value]
    specs = [parse_spec(DocumentNode(Location(""), item), "") for item in value]
    indices = indices_of((spec for spec in specs if spec is not None), max(positions, default=-1) + 1)
    return [str(positions[index]) for index in indices if index in positions]
