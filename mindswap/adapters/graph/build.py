"""Construction of MindFormers networks from a YAML file, without weights, device or other processes."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindformers.core.context import build_context
from mindformers.core.parallel_config import build_parallel_config
from mindformers.models.build_config import merge_model_config
from mindformers.models.build_model import build_network as build_model_network
from mindformers.tools.register import MindFormerConfig
from mindspore.common.initializer import Zero
from mindspore.communication import GlobalComm
from mindspore.nn.utils import no_init_parameters

from mindswap.adapters.graph.expert_exchange import ExchangeSizes, exchange_sizes
from mindswap.adapters.graph.experts import with_model_layer_numbers
from mindswap.adapters.graph.file_recompute import recompute_by_stage
from mindswap.adapters.graph.frontend_limits import masks_without_values, use_broadcast_products, use_rope_slices
from mindswap.adapters.graph.network import EXPERTS_CLASS, use_full_tensors
from mindswap.adapters.graph.run_config import install_stand_ins, keep_swap_sections, replace_swap_sections
from mindswap.adapters.versions import builds_form, replaced
from mindswap.config.source import given_folder
from mindswap.config.step_settings import DEFAULT_SEQ_LENGTHS
from mindswap.config.weight_sharding import RankPlacement
from mindswap.errors import GraphError
from mindswap.policy.formats.mindformers1.read import NUM_LAYERS_KEYS
from mindswap.policy.formats.mindformers1.truncate import truncated_layer_classes
from mindswap.policy.model import Policy
from mindswap.runtime.text.samples import TAKES_COLUMNS

# One rank of many in a single process, so that models of MindFormers set their strategies during construction.
#
# The newer models query their rank and create groups of ranks meanwhile. Nothing is ever sent, because the network is
# only built and compiled by the frontend. Names are those of mindspore 2.9.0 and mindformers 1.9.0.

GPT = "mindformers.parallel_core.training_graph"
PARALLEL_STATE = "mindformers.parallel_core.inference.parallel_state"
MANAGEMENT = "mindspore.communication.management"  # used by `get_rank`, `get_group_size`, `create_group`
# Process-wide caches of MindFormers for groups and splits.
GROUP_CACHES = (
    (f"{GPT}.device_matrix", "layout"),
    (f"{GPT}.device_matrix", "layout_moe"),
    (f"{GPT}.tensor_parallel.utils", "_TP_GROUP_NAME"),
    (f"{GPT}.transformer.moe.utils", "GROUP_NAME"),
    (f"{GPT}.communication", "OP_GROUP_NAME"),
    (f"{GPT}.communication", "CP_GROUP_NAME"),
    (f"{GPT}.communication", "DP_GROUP_NAME"),
)


@contextlib.contextmanager
def on_rank(rank: int, num_ranks: int) -> Iterator[None]:
    """Build models as on one rank of a pipeline stage, in semi-auto parallel mode, inside the block.

    Args:
        rank: rank in the training; all stages number their ranks alike.
        num_ranks: ranks of a stage.
    """
    rank %= num_ranks
    environ = dict(os.environ)
    os.environ.update(RANK_SIZE=str(num_ranks), RANK_ID=str(rank))  # checked by the models
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=num_ranks, global_rank=rank, full_batch=True
    )
    try:
        with _without_communication(rank, num_ranks):
            yield
    finally:
        os.environ.clear()
        os.environ.update(environ)
        # semi_auto_parallel cannot be compiled for a CPU. The primitives have their strategies at this point.
        ms.reset_auto_parallel_context()


@contextlib.contextmanager
def _without_communication(rank: int, num_ranks: int) -> Iterator[None]:
    """Replace the communication library with answers from a table of the created groups."""
    groups = {GlobalComm.WORLD_COMM_GROUP: list(range(num_ranks))}
    management, state = importlib.import_module(MANAGEMENT), importlib.import_module(PARALLEL_STATE)
    group_names = [name for name in vars(state) if name.startswith("_") and name.endswith(("_GROUP", "_RANKS"))]
    answers = {
        "_get_rank_helper": lambda group: groups[group].index(rank),
        "_get_size_helper": lambda group: len(groups[group]),
        "_create_group_helper": lambda group, ranks, options=None: groups.update({group: list(ranks)}),
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(management, **answers))
        stack.enter_context(replaced(state, _is_initialized=lambda: True, **dict.fromkeys(group_names)))
        for module_name, name in GROUP_CACHES:
            _empty_cache(stack, getattr(importlib.import_module(module_name), name))
        yield


def _empty_cache(stack: contextlib.ExitStack, group_cache: object) -> None:
    """Empty a dict, or the attributes of an object, and restore the content at the end."""
    entries = group_cache if isinstance(group_cache, dict) else vars(group_cache)
    stack.callback(entries.update, dict(entries))
    stack.callback(entries.clear)  # runs before the update
    entries.clear()


# Keys of model_config for the virtual chunks of each pipeline stage.
CHUNKS_KEYS = ("pp_interleave_num", "virtual_pipeline_model_parallel_size")
# Keys of the configuration under which `_build` stores its notes, and the sizes that the experts of a rank exchange.
NOTES_KEY, EXCHANGE_KEY = "mindswap_notes", "mindswap_exchange"


def build_network(
    config_path: str, policy: Policy, layers: Sequence[int] | None = None, placement: RankPlacement | None = None
):
    """Build the training network of a YAML file without weights.

    Args:
        config_path: MindFormers YAML.
        policy: if swap is enabled, MindFormers' own swap and recompute are disabled.
        layers: build only these layers of the model, on one pipeline stage; default all.
        placement: let the model set its strategies as on this rank; default is one rank without splits.

    Returns:
        The network, and the configuration as completed by MindFormers.

    Raises:
        GraphError: if MindFormers refuses the configuration, with its message.
    """
    try:
        return _build(config_path, policy, layers, placement)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError, OSError, ImportError) as error:
        raise GraphError(f"MindFormers could not build the network of {config_path}: {error}") from error


def _build(config_path, policy, layers, placement):
    keep_swap_sections()
    config = MindFormerConfig(config_path, run_mode="train")
    _read_model_folder(config)
    _leave_out_checkpoint(config)
    replace_swap_sections(config, policy)
    install_stand_ins(config)
    num_layers = _truncate_layers(config, layers) if layers is not None else 0
    is_sharded = placement is not None and placement.has_strategies and placement.num_stage_ranks > 1
    keep_stages: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not config.get("use_legacy", True):
        if layers is None and not policy.is_swap_enabled:
            keep_stages = recompute_by_stage(**_stage_arguments(config))
        _keep_single_stage(config)  # the models compare the number of stages with the ranks of one stage
        if not is_sharded:
            _keep_single_rank(config)
    elif not is_sharded and config.parallel_config.get("seq_split_num", 1) > 1:
        # Caches of sequence pieces have the samples of all data parallel ranks.
        config.parallel_config.data_parallel = 1
    # One process without communication: in any other mode the newer models initialize it.
    config.use_parallel = False
    config.context.device_target = "CPU"
    config.context.mode = ms.GRAPH_MODE  # in PyNative mode the newer models need hyper_parallel; the cells are the same
    config.context.pop("ascend_config", None)
    config.context.pop("max_device_memory", None)
    build_context(config)
    if not builds_form(bool(config.get("use_legacy", True))):
        raise GraphError("MindFormers builds legacy and newer models only in different processes")
    build_parallel_config(config)
    _set_pipeline(config, has_all_layers=layers is None)
    as_rank = on_rank(placement.rank, placement.num_stage_ranks) if is_sharded else contextlib.nullcontext()
    keep_numbers = with_model_layer_numbers(layers, num_layers) if layers is not None else contextlib.nullcontext()
    with as_rank, no_init_parameters(), masks_without_values(), keep_numbers, keep_stages:
        network = build_model_network(
            config.model,
            default_args={
                "parallel_config": config.parallel_config,
                "moe_config": config.moe_config,
                "dataset_config": config.train_dataset,
            },
        )
    if config.parallel_config.seq_split_num > 1 and not hasattr(network, "clear_kv_cache"):
        raise GraphError(
            f"parallel_config.seq_split_num: {type(network).__name__} has no caches of keys and values, which pieces "
            "of sequences need\n    allowed: 1\n    fix:     seq_split_num: 1"
        )
    notes = use_rope_slices(network)
    use_broadcast_products(network)
    if is_sharded:
        config[EXCHANGE_KEY] = sizes = _exchange_sizes(network, config, placement)
        notes += sizes.notes
        use_full_tensors(network, sizes)
    config[NOTES_KEY] = notes
    return network, config


def _leave_out_checkpoint(config) -> None:
    """Remove the checkpoint, because legacy models read the file, which may not exist on this machine.

    `load_checkpoint` of `PreTrainedModel` in modeling_utils.py of mindformers 1.9.0 reads nothing if the name is empty.
    """
    model = (config.get("model") or {}).get("model_config")
    if model and model.get("checkpoint_name_or_path"):
        model["checkpoint_name_or_path"] = ""


def _read_model_folder(config) -> None:
    """Merge the model of the YAML into the `config.json` of `pretrained_model_dir`, as its trainer does."""
    folder = given_folder() or config.get("pretrained_model_dir")
    if folder:
        model = config.get("model") or MindFormerConfig()
        model.model_config = MindFormerConfig(**merge_model_config(folder, model.get("model_config")))
        config.model = model


def _set_pipeline(config, has_all_layers: bool) -> None:
    """Let MindFormers assign layers to stages and chunks as in the training, if all layers are built."""
    settings = (config.get("parallel") or {}).get("pipeline_config") if has_all_layers else None
    ms.set_auto_parallel_context(
        pipeline_config=dict(settings or {"pipeline_interleave": False, "pipeline_scheduler": "1f1b"})
    )


def _truncate_layers(config, layers: Sequence[int]) -> int:
    """Truncate the model to some layers, and return its original number of layers."""
    model = config.model.model_config
    keys = [key for key in NUM_LAYERS_KEYS if key in model]
    before = max((model[key] for key in keys), default=len(layers))
    model.update(dict.fromkeys(keys, len(layers)))
    model.update(truncated_layer_classes(model, layers))
    _keep_single_stage(config)
    return before


def _stage_arguments(config) -> dict[str, Any]:
    """Return the arguments of `recompute_by_stage` from the configuration."""
    model = config.model.model_config
    chunks = next((model[key] for key in CHUNKS_KEYS if model.get(key)), 1)
    return {"num_stages": config.parallel_config.pipeline_stage or 1, "num_chunks": chunks, "offset": model.offset or 0}


def _keep_single_stage(config) -> None:
    model = config.model.model_config
    model.offset = 0
    # MindFormers assigns layers to chunks on a single stage, too.
    model.update({key: 1 for key in CHUNKS_KEYS if key in model})
    if (config.parallel_config.pipeline_stage or 1) > 1:
        config.parallel_config.vocab_emb_dp = False  # as `build_parallel_config` does for several stages
    config.parallel_config.pipeline_stage = 1


def _exchange_sizes(network, config, placement) -> ExchangeSizes:
    """Return the sizes that the experts of a rank exchange; empty without experts."""
    experts = next((cell for _, cell in network.cells_and_names() if type(cell).__name__ == EXPERTS_CLASS), None)
    if experts is None:
        return ExchangeSizes()
    batch, length = config.runner_config.batch_size or 1, experts.config.seq_length
    num_tokens = batch * length // (placement.model_parallel * placement.context_parallel)
    return exchange_sizes(experts, num_tokens, placement.expert_skew_permille)


def _keep_single_rank(config) -> None:
    """Disable all splits, because the newer models create communication groups for them in any mode."""
    for key in ("data_parallel", "model_parallel", "context_parallel", "expert_parallel"):
        if key in config.parallel_config:
            config.parallel_config[key] = 1
    if "use_seq_parallel" in config.parallel_config:
        config.parallel_config.use_seq_parallel = False
    if "moe_token_dispatcher_type" in config.model.model_config:  # tokens are not exchanged
        config.model.model_config.moe_token_dispatcher_type = "alltoall"


def example_inputs(config, data_parallel: int = 1) -> dict[str, ms.Tensor]:
    """Return the columns of the data set as tensors without values: one micro-batch of all ranks."""
    batch = (config.runner_config.batch_size or 1) * data_parallel
    is_legacy = config.get("use_legacy", True)
    default_length = DEFAULT_SEQ_LENGTHS["legacy" if is_legacy else "newer"]
    seq_length = config.model.model_config.get("seq_length") or default_length
    seq_length //= config.parallel_config.seq_split_num  # a piece, as in modules/seq_pipe.py
    takes_columns = config.model.model_config.get("type") in TAKES_COLUMNS or not is_legacy
    if not takes_columns and not config.model.model_config.get("input_sliced_sig"):
        return {"input_ids": _tensor_without_values((batch, seq_length + 1), ms.int32)}
    data = config.train_dataset or {}
    columns = data.get("construct_args_key") or data.get("input_columns") or ["input_ids", "labels"]
    columns = list(dict.fromkeys([*columns, "labels"]))
    shapes = {
        "attention_mask": ((batch, 1, seq_length, seq_length), ms.uint8),
        "loss_mask": ((batch, seq_length), ms.float32),
    }
    return {name: _tensor_without_values(*shapes.get(name, ((batch, seq_length), ms.int32))) for name in columns}


def _tensor_without_values(shape, dtype):
    return ms.Tensor(shape=shape, dtype=dtype, init=Zero())


def make_input(name: str, shape: tuple[int, ...], random: np.random.Generator, vocab_size: int) -> np.ndarray:
    """Return values of a column: tokens below the size of the vocabulary, masks, positions."""
    if name == "position_ids":
        return np.broadcast_to(np.arange(shape[-1]), shape)
    if name == "loss_mask":
        return np.ones(shape)
    if name == "attention_mask":
        return np.broadcast_to(np.triu(np.ones(shape[-2:]), 1), shape)
    return random.integers(3, vocab_size, shape)
