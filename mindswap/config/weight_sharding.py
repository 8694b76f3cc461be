"""Weight sharding settings of the parallel optimizer, and the position of a rank in the parallel layout.

`graph.passes.gather` applies the sharding to a step, and names the sources.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mindswap.config.nodes import Document, is_int
from mindswap.config.pipeline_layout import read_pipeline
from mindswap.errors import GraphError

# Position of a rank in the parallel layout.

# `parallel.parallel_mode` with MindFormers' names, and with MindSpore's, by which a run replaces them.
SEMI_AUTO_MODES = (1, "SEMI_AUTO_PARALLEL", "semi_auto_parallel")
AUTO_MODES = (2, "AUTO_PARALLEL", "auto_parallel")
STRATEGY_MODES = (*SEMI_AUTO_MODES, *AUTO_MODES)


def is_split(document: Document) -> bool:
    """Return whether the strategies of the model are in force: semi-auto mode, which is the default, or auto mode."""
    mode = document.value("parallel", "parallel_mode")
    is_mode = mode is None or (mode in STRATEGY_MODES and not isinstance(mode, bool))
    return is_mode and document.is_parallel


@dataclass(frozen=True)
class RankPlacement:
    """The position of a rank in the parallel layout of a training."""

    rank: int  # number of the rank
    num_ranks: int  # ranks of the training
    # data_parallel, model_parallel, context_parallel, num_stages: parallel settings
    data_parallel: int
    model_parallel: int
    context_parallel: int
    num_stages: int
    has_seq_parallel: bool  # `use_seq_parallel` is on
    has_strategies: bool  # operators are sharded by strategies; otherwise every rank computes a full micro-batch
    stage: int  # pipeline stage of the rank
    layers: tuple[int, ...]  # layers of the model on this stage, in order
    expert_parallel: int = 1  # ranks that share the experts
    expert_skew_permille: int = 1000  # tokens that the experts of the rank receive for 1000 that it sends out

    @property
    def num_stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.num_ranks // self.num_stages

    @property
    def is_last_stage(self) -> bool:
        """Return whether the rank is on the last stage, which has head and loss."""
        return self.stage == self.num_stages - 1

    def describe(self) -> str:
        """Return one line for titles."""
        settings = f"data {self.data_parallel}, tensor {self.model_parallel}"
        settings += " with sequence parallel" if self.has_seq_parallel else ""
        settings += f", context {self.context_parallel}" if self.context_parallel > 1 else ""
        settings += f", experts {self.expert_parallel}" if self.expert_parallel > 1 else ""
        return f"rank {self.rank} of {self.num_ranks}, stage {self.stage} of {self.num_stages} (parallel: {settings})"


def place_rank(document: Document, rank: int, num_layers: int, expert_skew_permille: int = 1000) -> RankPlacement:
    """Return the placement of a rank; ranks count from 0, stage by stage.

    Raises:
        GraphError: there is no such rank, or the layers cannot be distributed over the stages.
    """
    data = document.count("parallel_config", "data_parallel")
    model = document.count("parallel_config", "model_parallel")
    context = document.count("parallel_config", "context_parallel")
    pipeline = read_pipeline(document)
    stage_ranks = data * model * context
    num_ranks = stage_ranks * pipeline.num_stages
    if not 0 <= rank < num_ranks:
        raise GraphError(
            f"there is no rank {rank}: data_parallel {data} x model_parallel {model} x context_parallel {context} "
            f"x pipeline_stage {pipeline.num_stages} gives ranks 0-{num_ranks - 1}"
        )
    stage = rank // stage_ranks
    layers = pipeline.stage_layers(stage, num_layers)
    if layers is None:
        raise GraphError(
            f"{num_layers} layers cannot be spread over pipeline_stage {pipeline.num_stages} x pp_interleave_num "
            f"{pipeline.num_chunks} with offset {pipeline.offset}"
        )
    if not layers:
        raise GraphError(f"stage {stage}, where rank {rank} is, has no layers")
    return RankPlacement(
        rank=rank,
        num_ranks=num_ranks,
        data_parallel=data,
        model_parallel=model,
        context_parallel=context,
        num_stages=pipeline.num_stages,
        has_seq_parallel=document.value("parallel_config", "use_seq_parallel") is True,
        has_strategies=is_split(document),
        stage=stage,
        layers=layers,
        expert_parallel=document.count("parallel_config", "expert_parallel"),
        expert_skew_permille=expert_skew_permille,
    )


def gathers_sequence(document: Document) -> bool:
    """Return whether sequence parallelism shards the boundary tensors of layers over tensor parallel ranks."""
    is_enabled = document.value("parallel_config", "use_seq_parallel") is True
    return is_split(document) and is_enabled and document.count("parallel_config", "model_parallel") > 1


# Legacy models that shard their head over all ranks of a stage, and their default size of the vocabulary
# (models/glm2/glm2.py, shard_head_tail).
HEAD_OVER_DATA, VOCABULARY_KEY, DEFAULT_VOCABULARY = "ChatGLM2Config", "padded_vocab_size", 65024


def shards_head_over_data(document: Document) -> bool:
    """Return whether data parallel ranks hold different shards of the head.

    They do without `vocab_emb_dp` (default True, but False with several stages: core/parallel_config.py), if all ranks
    of a stage divide the size of the vocabulary.
    """
    model = ("model", "model_config")
    if document.value(*model, "type") != HEAD_OVER_DATA or not is_split(document):
        return False
    size = document.value(*model, VOCABULARY_KEY)
    parts = ("data_parallel", "model_parallel", "context_parallel")
    num_ranks = math.prod(document.count("parallel_config", part) for part in parts)
    is_divided = (size if is_int(size) else DEFAULT_VOCABULARY) % num_ranks == 0
    has_stages = document.count("parallel_config", "pipeline_stage") > 1
    is_full = document.value("parallel_config", "vocab_emb_dp") is not False and not has_stages
    return not is_full and num_ranks > 1 and is_divided


OPTIMIZER_CONFIG = ("parallel", "parallel_optimizer_config")
OPTIMIZER_LEVELS = ("level1", "level2", "level3")
KIB = 1024
DEFAULT_THRESHOLD_KIB = 64


@dataclass(frozen=True)
class WeightSharding:
    """Sharding of weights by the parallel optimizer."""

    num_ranks: int = 1  # ranks that share the shard of a tensor parallel rank; 1 without the parallel optimizer
    # smaller weights stay unsharded (parallel_optimizer_threshold, in KiB)
    threshold_bytes: int = DEFAULT_THRESHOLD_KIB * KIB
    # forward frees an all-gathered weight, and backward all-gathers it a second time (optimizer_level level3)
    is_released: bool = False
    stride: int = 1  # distance between these ranks; tensor parallel ranks are inside
    # ranks with the same experts, whose weights tensor parallelism does not shard
    # (parallel_core/training_graph/device_matrix.py, MoeLayoutManager: dp x tp x cp / ep)
    num_expert_copies: int = 1
    # weights are all-gathered in the stored dtype and cast afterwards: lazy_inline, one stage and one micro-batch
    is_cast_after_gather: bool = False
    num_unsharded_ranks: int = 0  # ranks that share a weight that tensor parallelism does not shard
    # weights that the network keeps unsharded, by name (`Graph.unsharded`)
    unsharded: frozenset[str] = frozenset()

    def of_network(self, unsharded: Iterable[str]) -> "WeightSharding":
        """Return the sharding of a network that keeps some weights unsharded, given by name."""
        return replace(self, unsharded=frozenset(unsharded))

    def is_sharded(self, name: str, shape: tuple[int, ...], size_bytes: int, num_shards: int | None = None) -> bool:
        """Return whether the parallel optimizer shards a weight.

        Args:
            name: name of the parameter.
            shape: shape of the tensor parallel shard.
            size_bytes: size of that shape.
            num_shards: number of tensor parallel shards; None if not known.
        """
        num_ranks = self.num_ranks_of(name, num_shards)
        if num_ranks < 2 or name in self.unsharded or size_bytes < self.threshold_bytes:
            return False
        return math.prod(shape) > 0 and bool(shape) and shape[0] % num_ranks == 0

    def num_ranks_of(self, name: str, num_shards: int | None = None) -> int:
        """Return the number of ranks with the same tensor parallel shard, over which a weight would be sharded.

        Checked against dry runs: `qwen3_moe optimizer_cut ep4` of benchmarks/dryrun (two copies of the experts, weights
        of half the size), and DeepSeek-V3 with data 4 and tensor 8 (weights that tensor parallelism does not shard, as
        of routers and shared experts, have 1/32 of their size).
        """
        if is_expert_weight(name):
            return min(self.num_ranks, self.num_expert_copies)
        if self.is_sharded_over_all(name, num_shards):
            return self.num_unsharded_ranks
        if self.is_split_over_data(name, num_shards):
            return max(1, self.num_ranks * self.stride // (num_shards or 1))
        return self.num_ranks

    def is_sharded_over_all(self, name: str, num_shards: int | None) -> bool:
        """Return whether all ranks of a stage have the full weight, which is then sharded over all of them."""
        is_wide = 1 < self.num_ranks < self.num_unsharded_ranks
        return is_wide and num_shards == 1 and not is_expert_weight(name)

    def is_split_over_data(self, name: str, num_shards: int | None) -> bool:
        """Return whether the strategy of a weight splits it over data parallel ranks, too (`shards_head_over_data`).

        Checked against the dry run `glm4 pp2`: the head, its states and accumulated gradient have 1/4 of their size.
        """
        return num_shards is not None and num_shards > self.stride and not is_expert_weight(name)


UNSHARDED = WeightSharding()  # all weights unsharded


def shards_weights(document: Document) -> bool:
    """Return whether the parallel optimizer is on, and the strategies of the model are in force."""
    return is_split(document) and document.value("parallel", "enable_parallel_optimizer") is True


def read_weight_sharding(document: Document) -> WeightSharding:
    """Read the settings of the parallel optimizer; an invalid value counts as missing.

    Without strategies no weight is sharded: in data parallel mode, the parallel optimizer assigns full weights to ranks
    (MindSpore's nn/optim/optimizer.py, `_use_parallel_optimizer`).
    """
    tensor_ranks, num_copies = document.count("parallel_config", "model_parallel"), num_expert_copies(document)
    is_cast_after_gather = document.value("swap_config", "swap") is True and has_single_micro_step(document)
    if not shards_weights(document):
        return WeightSharding(
            stride=tensor_ranks, num_expert_copies=num_copies, is_cast_after_gather=is_cast_after_gather
        )
    ranks = num_replica_ranks(document)
    size = document.value(*OPTIMIZER_CONFIG, "optimizer_weight_shard_size")
    threshold = document.value(*OPTIMIZER_CONFIG, "parallel_optimizer_threshold")

    def limited(num_ranks: int) -> int:
        if not is_int(size) or size <= 1 or size > num_ranks:
            return num_ranks
        return size if num_ranks % size == 0 else 1  # "can not be applied": the weight stays unsharded

    return WeightSharding(
        num_ranks=limited(ranks),
        num_unsharded_ranks=limited(ranks * tensor_ranks),
        threshold_bytes=(threshold if is_int(threshold) and threshold >= 0 else DEFAULT_THRESHOLD_KIB) * KIB,
        is_released=document.value(*OPTIMIZER_CONFIG, "optimizer_level") == "level3",
        stride=tensor_ranks,
        num_expert_copies=num_copies,
        is_cast_after_gather=is_cast_after_gather,
    )


# Short names of dtypes in a configuration -> names of MindSpore.
DTYPE_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# Default dtypes of stored weights and of computation, by whether the model is a legacy one.
DEFAULT_DTYPES = {True: ("float16", "float16"), False: ("float32", "bfloat16")}


def read_weight_dtypes(document: Document) -> tuple[str, str]:
    """Return the dtype of stored weights, and the dtype of computation."""
    key = "param_init_type" if document.is_legacy else "params_dtype"
    stored, computed = DEFAULT_DTYPES[document.is_legacy]

    def read(name: str, default: str) -> str:
        value = document.value("model", "model_config", name)
        text = value.lower() if isinstance(value, str) else default
        return DTYPE_NAMES.get(text, text)

    return read(key, stored), read("compute_dtype", computed)


def has_single_micro_step(document: Document) -> bool:
    """Return whether a step has one stage and one micro-batch."""
    counts = (
        ("parallel_config", "pipeline_stage"),
        ("runner_config", "gradient_accumulation_steps"),
        ("micro_batch_interleave_num",),
    )
    return all(document.count(*path) == 1 for path in counts)


def is_expert_weight(name: str) -> bool:
    """Return whether a parameter belongs to routed experts (`FFNGroupedGEMM`, `weight1` and `weight2`)."""
    return name.rpartition(".")[0].endswith(".experts")


def num_expert_copies(document: Document) -> int:
    """Return the number of ranks of a stage with the same routed experts; 1 for models without experts."""
    model = document.get("model", "model_config")
    keys = [str(entry.key) for entry in model.unique_entries()] if model is not None else []
    if document.get("parallel_config", "expert_parallel") is None and not any("expert" in key for key in keys):
        return 1
    parts = ("data_parallel", "model_parallel", "context_parallel")
    ranks = math.prod(document.count("parallel_config", part) for part in parts)
    return max(1, ranks // document.count("parallel_config", "expert_parallel"))


def num_replica_ranks(document: Document) -> int:
    """Return the number of ranks with the same shard of a matrix weight: those of data and context parallelism.

    `optimizer_weight_shard_size` of 2 or more reduces it (MindSpore's context.py, and `set_optimizer_weight_shard_size`
    of parallel/_auto_parallel_context.py). A size that is larger has no effect; with a smaller one that does not divide
    the number, no weight is sharded (dry runs: docs/rule_effects.md).
    """
    return document.count("parallel_config", "data_parallel") * document.count("parallel_config", "context_parallel")
