"""How the parallel optimizer cuts weights, as a configuration says it.

`graph.sharding.gather` says what that does to a step, and names the sources.
"""

import math
from dataclasses import dataclass

from mindswap.config.nodes import Document, is_whole_number
from mindswap.config.rank import STRATEGY_MODES

OPTIMIZER_CONFIG = ("parallel", "parallel_optimizer_config")
OPTIMIZER_LEVELS = ("level1", "level2", "level3")
# Ends of the names of weights that MindFormers keeps whole (modules/layers.py, `parallel_optimizer = False`).
WHOLE_WEIGHTS = (".bias", ".gamma", ".beta")
# The table of a legacy Llama and its like stays whole, too, unless `model_config.parallel_optimizer` is True
# (models/llama/llama_layer.py, LlamaEmbedding).
LEGACY_EMBEDDING = ".embedding_weight"
KIB = 1024
DEFAULT_THRESHOLD_KIB = 64


@dataclass(frozen=True)
class WeightSharding:
    """How the parallel optimizer cuts weights."""

    num_ranks: int = 1  # ranks that share a weight; 1 without the parallel optimizer
    # smaller weights stay whole (parallel_optimizer_threshold, whose unit is KiB)
    threshold_bytes: int = DEFAULT_THRESHOLD_KIB * KIB
    # forward releases a gathered weight and backward gathers it again (optimizer_level level3)
    is_released: bool = False
    stride: int = 1  # from one of these ranks to the next: MindSpore lays out the ranks of a tensor inside
    # ranks that have the same experts, whose weights tensor parallelism does not cut
    # (parallel_core/training_graph/device_matrix.py, MoeLayoutManager: dp x tp x cp / ep)
    num_expert_copies: int = 1
    whole_names: tuple[str, ...] = (*WHOLE_WEIGHTS, LEGACY_EMBEDDING)  # ends of the names of weights that stay whole
    # a weight is gathered as it is stored, and cast where it is read: lazy_inline, one stage and one micro-batch
    is_cast_behind: bool = False

    def cuts(self, name: str, shape: tuple[int, ...], size_bytes: int) -> bool:
        """Whether a weight is cut.

        Args:
            name: of the parameter.
            shape, size_bytes: as it is stored on one rank, cut by tensor parallel only.
        """
        if self.num_ranks < 2 or name.endswith(self.whole_names) or size_bytes < self.threshold_bytes:
            return False
        if is_expert_weight(name) and self.num_expert_copies != self.num_ranks:
            return False  # assumed where there are several copies: that MindSpore cuts over those is not modelled
        return math.prod(shape) > 0 and bool(shape) and shape[0] % self.num_ranks == 0


WHOLE = WeightSharding()  # nothing is cut


def read_weight_sharding(document: Document) -> WeightSharding:
    """How the parallel optimizer cuts the weights of a configuration; a wrong value counts as missing.

    It cuts nothing where the strategies of the model are not in force: in the data parallel mode it hands out whole
    weights (MindSpore's nn/optim/optimizer.py, `_use_parallel_optimizer`).
    """
    mode = document.value("parallel", "parallel_mode")
    is_parallel = document.value("use_parallel") is not False and (mode is None or mode in STRATEGY_MODES)
    if not is_parallel or document.value("parallel", "enable_parallel_optimizer") is not True:
        return WeightSharding(num_expert_copies=num_expert_copies(document))
    ranks = num_sharing_ranks(document)
    size = document.value(*OPTIMIZER_CONFIG, "optimizer_weight_shard_size")
    threshold = document.value(*OPTIMIZER_CONFIG, "parallel_optimizer_threshold")
    cuts_embedding = document.value("model", "model_config", "parallel_optimizer") is True
    return WeightSharding(
        num_ranks=size if is_whole_number(size) and size > 1 and ranks % size == 0 else ranks,
        threshold_bytes=(threshold if is_whole_number(threshold) and threshold >= 0 else DEFAULT_THRESHOLD_KIB) * KIB,
        is_released=document.value(*OPTIMIZER_CONFIG, "optimizer_level") == "level3",
        stride=document.count("parallel_config", "model_parallel"),
        num_expert_copies=num_expert_copies(document),
        whole_names=WHOLE_WEIGHTS if cuts_embedding else (*WHOLE_WEIGHTS, LEGACY_EMBEDDING),
        is_cast_behind=document.value("swap_config", "swap") is True and has_one_turn(document),
    )


def has_one_turn(document: Document) -> bool:
    """Whether all layers are on one stage, and a step has one micro-batch."""
    counts = (
        ("parallel_config", "pipeline_stage"),
        ("runner_config", "gradient_accumulation_steps"),
        ("micro_batch_interleave_num",),
    )
    return all(document.count(*path) == 1 for path in counts)


def is_expert_weight(name: str) -> bool:
    """Whether a parameter is that of routed experts (`FFNGroupedGEMM`, `weight1` and `weight2`)."""
    return name.rpartition(".")[0].endswith(".experts")


def num_expert_copies(document: Document) -> int:
    """Ranks of a pipeline stage that have the same routed experts; 1 where nothing tells of experts."""
    model = document.get("model", "model_config")
    keys = [str(entry.key) for entry in model.unique_entries()] if model is not None else []
    if document.get("parallel_config", "expert_parallel") is None and not any("expert" in key for key in keys):
        return 1
    parts = ("data_parallel", "model_parallel", "context_parallel")
    ranks = math.prod(document.count("parallel_config", part) for part in parts)
    return max(1, ranks // document.count("parallel_config", "expert_parallel"))


def num_sharing_ranks(document: Document) -> int:
    """Ranks that have the same part of a weight of a matrix product: of data and of context parallelism.

    `optimizer_weight_shard_size` has an effect only where it divides them, and from 2 on (MindSpore's context.py, and
    `set_optimizer_weight_shard_size` of parallel/_auto_parallel_context.py).
    """
    return document.count("parallel_config", "data_parallel") * document.count("parallel_config", "context_parallel")
