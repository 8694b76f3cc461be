"""Settings of a training step other than its network: batch, parallelism, optimizer and pipeline."""

from dataclasses import dataclass

from mindswap.config.device_memory import read_pool_block, read_pool_limit
from mindswap.config.nodes import Document, is_int
from mindswap.config.pipeline_layout import Pipeline, read_pipeline
from mindswap.config.sequence_pieces import SEQUENCE_KEY, has_interleaved_halves
from mindswap.config.weight_sharding import (
    OPTIMIZER_CONFIG,
    WeightSharding,
    has_single_micro_step,
    is_split,
    read_weight_sharding,
    shards_head_over_data,
)

COMPUTE_DTYPE_PATH = ("model", "model_config", "compute_dtype")
DEFAULT_OPTIMIZER = "AdamW"
# Default of `model_config.seq_length`: of LlamaConfig and similar classes (models/llama/llama_config.py), and of all
# newer models (`register_mf_model_parameter` in models/*/configuration_*.py).
DEFAULT_SEQ_LENGTHS = {"legacy": 2048, "newer": 4096}
# Up to this number of micro-batches, MindSpore 2.9 inlines the lazy_inline cells of a pipeline. With more ("Set no
# inline because cell reuse micro num is greater than" in its frontend), backward of a layer is a separate function: a
# prefetch cannot start before it, and a larger `backward_prefetch` fails to compile. The limit is from dry runs: 64
# compile, 65 do not (docs/internals/planner_results.md).
MAX_INLINED_MICRO_BATCHES = 64
LAYERS_NOT_INLINED = (
    f"MindSpore 2.9 does not inline the layers of more than {MAX_INLINED_MICRO_BATCHES} micro-batches: "
    "`backward_prefetch` reaches no further than the layer, and more stops the compile (Graph cycle exists; The "
    "pointer[pre_node] is null)"
)


@dataclass(frozen=True)
class StepSettings:
    """Settings of a training step."""

    batch_size: int  # samples of one micro-batch on one data parallel rank
    seq_length: int  # tokens of a sample
    num_micro_batches: int  # micro-batches of a step
    # ranks of data, tensor and context parallelism
    data_parallel: int
    model_parallel: int
    context_parallel: int
    pipeline: Pipeline  # stages and chunks
    optimizer: str  # `optimizer.type`
    sharding: WeightSharding  # sharding of weights and states by the parallel optimizer
    # accumulated gradients are sharded as well, so every micro-batch reduces its gradients, not only the last one
    is_accumulator_sharded: bool
    is_state_offloaded: bool  # optimizer states are in host memory
    compute_dtype: str  # dtype of the layers, in lower case
    is_fused: bool  # jit_level O1 fuses element-wise operators
    is_clipping: bool = False  # gradients are clipped by their global norm (`runner_wrapper.use_clip_grad`)
    # gradients are accumulated in separate tensors: several stages, or gradient accumulation
    is_accumulating: bool = False
    shares_casts: bool = False  # micro-batches share casts of weights (`graph.sharding.pipeline_stage`)
    # compiled without lazy_inline (`lacks_lazy_inline`; MindFormers 1.3: whenever there is no pipeline)
    lacks_lazy_inline: bool = False
    expert_parallel: int = 1  # ranks that share the experts of a layer
    num_sequences: int = 1  # pieces of each sequence (`seq_split_num`); each has its own forward and backward
    is_decaying: bool = False  # `optimizer.weight_decay` is more than 0
    is_rate_constant: bool = False  # the learning rate is the same in every step, a constant of the graph
    has_interleaved_halves: bool = False  # layers alternate between two halves of the batch (`fine_grain_interleave`)
    is_split: bool = False  # operators are split by strategies: `parallel_mode` is semi-auto or auto
    is_newer: bool = False  # a newer model of MindFormers (`use_legacy: False`)
    is_head_sharded: bool = False  # over data parallel ranks, too (`shards_head_over_data`)
    is_launched_at_once: bool = False  # jit_level O2: the host launches the whole graph, not each kernel
    plans_memory: bool = False  # MindSpore plans the addresses of all tensors of the step before it (SOMAS)
    pool_block_bytes: int = 0  # smallest block of MindSpore's pool (`mempool_block_size`); 0 for its default
    pool_limit_bytes: int = 0  # size to which `max_device_memory` lets MindSpore's pool grow; 0 without a limit

    @property
    def num_micro_steps(self) -> int:
        """Number of forward and backward passes per step: one per micro-batch and sequence piece."""
        return self.num_micro_batches * self.num_sequences

    @property
    def inlines_layers(self) -> bool:
        """Return whether MindSpore inlines the layers into the graph of the step."""
        return self.pipeline.num_stages == 1 or self.num_micro_batches <= MAX_INLINED_MICRO_BATCHES

    @property
    def num_gradient_reductions(self) -> int:
        """Number of gradient reductions per step: 1 if accumulated gradients are unsharded."""
        is_repeated = self.is_accumulating and self.is_accumulator_sharded and self.num_optimizer_shards > 1
        return self.num_micro_steps if is_repeated else 1

    @property
    def num_optimizer_shards(self) -> int:
        """Number of ranks over which the parallel optimizer shards weights and states; 1 without it."""
        return self.sharding.num_ranks

    @property
    def data_parallel_stride(self) -> int:
        """Distance between neighboring data parallel ranks; tensor and context parallel ranks are inside."""
        return self.model_parallel * self.context_parallel

    @property
    def is_network_sharded(self) -> bool:
        """Return whether the ranks of a stage compute different parts of the network."""
        return self.is_head_sharded or self.model_parallel * self.context_parallel * self.expert_parallel > 1

    @property
    def num_cards(self) -> int:
        """Number of cards of the training."""
        return self.data_parallel * self.model_parallel * self.context_parallel * self.pipeline.num_stages

    @property
    def communicators(self) -> tuple[str, ...]:
        """Purposes of the communicators of one rank: MindSpore groups with more than one card.

        HCCL keeps buffers for each, outside MindSpore's pool.

        Source:
            MindSpore's `hccl_world_group`; groups of the splits of operators; in a pipeline forward and backward to
            the other stages (`pipeline_transformer.cc`, CreateForwardGroup), the group of MindFormers' `wrapper.py`,
            and one of its own for weights (`overlap_opt_shard_in_pipeline.cc`, `_parallel_optimizer`).
        """
        cards = {
            "world": self.num_cards,
            "tensor parallel": self.model_parallel,
            "context parallel": self.context_parallel,
            "data parallel": self.data_parallel,
        }
        names = [name for name, number in cards.items() if number > 1]
        if self.pipeline.num_stages > 1:
            names += ["pipeline forward", "pipeline backward", "pipeline loss"]
            if self.num_optimizer_shards > 1 and self.data_parallel * self.context_parallel > 1:
                names.append("weights")
        return tuple(names)

    @property
    def num_tokens(self) -> int:
        """Tokens of one step over all cards."""
        return self.batch_size * self.seq_length * self.num_micro_batches * self.data_parallel


def read_step_settings(document: Document) -> StepSettings:
    """Read the step settings of a configuration; missing keys have the defaults of MindFormers."""
    pipeline = read_pipeline(document)
    if pipeline.num_stages > 1:  # gradient accumulation is then reset to 1 (trainer/base_trainer.py)
        num_micro_batches = document.count("parallel_config", "micro_batch_num")
    else:
        num_micro_batches = document.count("runner_config", "gradient_accumulation_steps")
    num_sequences = document.count("parallel_config", SEQUENCE_KEY) if pipeline.num_stages > 1 else 1
    is_accumulating = num_micro_batches > 1
    data_parallel = document.count("parallel_config", "data_parallel") if document.is_parallel else 1
    sharding = read_weight_sharding(document)
    optimizer = document.value("optimizer", "type")
    # MindFormers then uses the class with a fused kernel (core/optim/build_optim.py, get_actual_adamw_cls).
    if optimizer in ("AdamW", "PmaAdamW") and document.value("optimizer", "use_fused") is True:
        optimizer = f"Fused{optimizer}"
    level = document.value(*OPTIMIZER_CONFIG, "optimizer_level")
    # level2 forces it on (parallel/_auto_parallel_context.py, set_parallel_optimizer_config). level3 forces it off
    # there, but accumulated gradients are sharded anyway: parameter_manager.cc (SliceParameterObj,
    # SetClonedTensorShapeForOptimizer) tests for it or zero3. tests/adapters/test_gathered_weights.py checks it in
    # 2.9.0.
    shard_sum = document.value(*OPTIMIZER_CONFIG, "gradient_accumulation_shard")
    dtype = document.value(*COMPUTE_DTYPE_PATH)
    is_clipping = document.value("runner_wrapper", "use_clip_grad")
    return StepSettings(
        # The interleaved parts of a micro-batch are one forward and one backward (`graph.passes.interleaved_batch`).
        batch_size=document.count("runner_config", "batch_size") * document.count("micro_batch_interleave_num"),
        seq_length=read_seq_length(document),
        num_micro_batches=num_micro_batches,
        data_parallel=data_parallel,
        model_parallel=document.count("parallel_config", "model_parallel"),
        context_parallel=document.count("parallel_config", "context_parallel"),
        expert_parallel=document.count("parallel_config", "expert_parallel"),
        is_head_sharded=shards_head_over_data(document),
        pipeline=pipeline,
        num_sequences=num_sequences,
        optimizer=optimizer if isinstance(optimizer, str) else DEFAULT_OPTIMIZER,
        sharding=sharding,
        is_accumulator_sharded=shard_sum is True or level in ("level2", "level3"),
        is_state_offloaded=document.value("optimizer", "swap") is True,
        compute_dtype=dtype.lower() if isinstance(dtype, str) else "float16",
        is_fused=document.value("context", "jit_config", "jit_level") == "O1",
        # The training cell for several micro-batches clips by default, the one for a single micro-batch does not.
        is_clipping=is_clipping if isinstance(is_clipping, bool) else is_accumulating,
        is_accumulating=is_accumulating,
        shares_casts=document.is_parallel
        and document.value("parallel", "enable_parallel_optimizer") is True
        and num_micro_batches > 1
        and level != "level3",
        lacks_lazy_inline=lacks_lazy_inline(document, sharding.is_cast_after_gather),
        is_decaying=document.value("optimizer", "weight_decay") not in (None, 0),
        is_rate_constant=_is_rate_constant(document),
        has_interleaved_halves=has_interleaved_halves(document),
        is_split=is_split(document),
        is_newer=not document.is_legacy,
        is_launched_at_once=document.value("context", "jit_config", "jit_level") == "O2",
        # SOMAS plans no graph with dynamic shapes, and positions of the pieces of a sequence are tensors (`DoSomas` of
        # ascend_kernel_executor.cc, `IsSupportSomas` of somas.cc; mindspore 2.9.0).
        plans_memory=document.value("context", "memory_optimize_level") == "O1" and num_sequences == 1,
        pool_block_bytes=read_pool_block(document),
        pool_limit_bytes=read_pool_limit(document),
    )


def lacks_lazy_inline(document: Document, has_swap: bool) -> bool:
    """Return whether a step is compiled without lazy_inline: one stage and one micro-batch in graph mode, without swap.

    MindFormers switches lazy_inline off for it (trainer/base_trainer.py), and mindswap on with swap. Interleaved parts
    count as micro-batches: in which order MindSpore runs their gradients is not known.

    Args:
        document: the configuration.
        has_swap: whether swap is on; overrides the configuration.
    """
    return not has_swap and has_single_micro_step(document) and not uses_pynative_mode(document)


def _is_rate_constant(document: Document) -> bool:
    """Return whether the learning rate is a constant of the graph: no schedule, or a constant without a warm-up."""
    schedule = document.value("lr_schedule", "type")
    if schedule is None:
        return True
    warm_up = (document.value("lr_schedule", key) for key in ("warmup_steps", "warmup_ratio"))
    return schedule == "ConstantWarmUpLR" and all(value in (None, 0) for value in warm_up)


def read_seq_length(document: Document) -> int:
    """Return the tokens of a sample: `seq_length`, or the default of the model class."""
    seq_length = document.value("model", "model_config", "seq_length")
    if is_int(seq_length) and seq_length >= 1:
        return seq_length
    return DEFAULT_SEQ_LENGTHS["legacy" if document.is_legacy else "newer"]


# Execution mode and device.

# Values of `context.mode` (mindformers/tools/utils.py, MODE); the default is graph mode.
GRAPH = (0, "GRAPH_MODE")
PYNATIVE = (1, "PYNATIVE_MODE")
ASCEND = "Ascend"
# Default port of the scheduler of a job (MindFormers' scripts/msrun_launcher.sh).
DEFAULT_MASTER_PORT = 8118


def uses_pynative_mode(document: Document) -> bool:
    """Return whether a 1.9 configuration uses PyNative mode, in which mindswap itself copies the tensors."""
    mode = document.value("context", "mode")
    return not isinstance(mode, bool) and mode in PYNATIVE


def read_device_target(document: Document) -> str:
    """Return `context.device_target`; Ascend if missing or null."""
    value = document.value("context", "device_target")
    return ASCEND if value is None else str(value)


def is_on_cpu(document: Document) -> bool:
    """Return whether the device target is CPU."""
    return read_device_target(document) == "CPU"
