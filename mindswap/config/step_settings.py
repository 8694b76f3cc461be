"""Settings of a training step besides its network."""

import re
from dataclasses import dataclass
from decimal import Decimal

from mindswap.config.nodes import Document, is_whole_number
from mindswap.config.pipeline_layout import SEQUENCE_KEY, Pipeline, has_interleaved_halves, read_pipeline
from mindswap.config.problem import Location
from mindswap.config.weight_sharding import OPTIMIZER_CONFIG, WeightSharding, read_weight_sharding
from mindswap.units import ceil_div

DEFAULT_OPTIMIZER = "AdamW"
# Tokens of a sample where model_config has no `seq_length`: of LlamaConfig and its like (models/llama/llama_config.py),
# and of all newer models (`register_mf_model_parameter` in models/*/configuration_*.py).
DEFAULT_SEQ_LENGTHS = {"legacy": 2048, "newer": 4096}
# Micro-batches of a pipeline of which MindSpore 2.9 inlines a lazy_inline cell. Of more ("Set no inline because cell
# reuse micro num is greater than" in its frontend) backward of a layer is a function of its own: a copy back begins no
# earlier than that, and a larger `backward_prefetch` stops the compile. Dry runs: 64 compile, 65 do not; what the limit
# is, is not known (docs/internals/planner.md).
MAX_INLINED_MICRO_BATCHES = 64
LAYERS_NOT_INLINED = (
    f"MindSpore 2.9 does not inline the layers of more than {MAX_INLINED_MICRO_BATCHES} micro-batches: "
    "`backward_prefetch` reaches no further than the layer, and more stops the compile (Graph cycle exists; The "
    "pointer[pre_node] is null)"
)


@dataclass(frozen=True)
class StepSettings:
    """A training step."""

    batch_size: int  # samples of one micro-batch on one data parallel rank
    seq_length: int  # tokens of a sample
    num_micro_batches: int  # samples, or groups of them, that go through forward and backward in a step
    # data_parallel, model_parallel, context_parallel: ranks that share samples, layers, sequences
    data_parallel: int
    model_parallel: int
    context_parallel: int
    pipeline: Pipeline  # stages and chunks
    optimizer: str  # `optimizer.type`
    sharding: WeightSharding  # how the parallel optimizer cuts weights and states
    # sums of gradients over micro-batches are cut as well: every micro-batch hands its gradients to the ranks, not the
    # last one only
    is_accumulator_sharded: bool
    is_state_offloaded: bool  # optimizer states are in host memory
    compute_dtype: str  # of the layers, in lower case
    is_fused: bool  # jit_level O1 fuses element-wise operators
    is_clipping: bool = False  # gradients are clipped by their global norm (`runner_wrapper.use_clip_grad`)
    # gradients are summed up in tensors of their own: several stages, or gradient accumulation
    is_accumulating: bool = False
    shares_casts: bool = False  # micro-batches share casts of weights (`graph.sharding.pipeline_stage`)
    # compiled without lazy_inline, as MindFormers did without a pipeline before mindswap could swap
    lacks_lazy_inline: bool = False
    expert_parallel: int = 1  # ranks that share the experts of a layer
    num_sequences: int = 1  # pieces that each sequence is cut into; each goes through forward and backward by itself
    is_decaying: bool = False  # `optimizer.weight_decay` is more than 0
    has_interleaved_halves: bool = False  # layers compute in two halves in turn (`fine_grain_interleave`)
    is_newer: bool = False  # of the newer models of MindFormers (`use_legacy: False`)

    @property
    def num_micro_steps(self) -> int:
        """Forward and backward passes per step."""
        return self.num_micro_batches * self.num_sequences

    @property
    def inlines_layers(self) -> bool:
        """MindSpore compiles the layers into the step, not as functions that it calls."""
        return self.pipeline.num_stages == 1 or self.num_micro_batches <= MAX_INLINED_MICRO_BATCHES

    @property
    def num_gradient_reductions(self) -> int:
        """Number of gradient reductions in a step: once for sums that are whole."""
        is_repeated = self.is_accumulating and self.is_accumulator_sharded and self.num_optimizer_shards > 1
        return self.num_micro_steps if is_repeated else 1

    @property
    def num_optimizer_shards(self) -> int:
        """Ranks over which the parallel optimizer cuts weights and states; 1 without it."""
        return self.sharding.num_ranks

    @property
    def data_parallel_stride(self) -> int:
        """Ranks from one data parallel rank to the next: MindSpore lays out sequences and tensors inside."""
        return self.model_parallel * self.context_parallel

    @property
    def num_parts(self) -> int:
        """Ranks of a stage among which one whole is divided; 1 where every rank is like one that has all of it."""
        return self.model_parallel * self.context_parallel * self.expert_parallel

    @property
    def num_cards(self) -> int:
        """Cards that work on the step."""
        return self.data_parallel * self.model_parallel * self.context_parallel * self.pipeline.num_stages

    @property
    def num_tokens(self) -> int:
        """Tokens of one step, all cards."""
        return self.batch_size * self.seq_length * self.num_micro_batches * self.data_parallel


def read_step_settings(document: Document) -> StepSettings:
    """The settings of a configuration of MindFormers; what is missing is as MindFormers takes it."""
    pipeline = read_pipeline(document)
    if pipeline.num_stages > 1:  # which takes no accumulation beside it (trainer/base_trainer.py resets it to 1)
        num_micro_batches = document.count("parallel_config", "micro_batch_num")
    else:
        num_micro_batches = document.count("runner_config", "gradient_accumulation_steps")
    is_accumulating = num_micro_batches > 1
    num_micro_batches *= document.count("micro_batch_interleave_num")
    data_parallel = document.count("parallel_config", "data_parallel") if document.is_parallel else 1
    sharding = read_weight_sharding(document)
    optimizer = document.value("optimizer", "type")
    # MindFormers takes the class of one kernel then (core/optim/build_optim.py, get_actual_adamw_cls).
    if optimizer in ("AdamW", "PmaAdamW") and document.value("optimizer", "use_fused") is True:
        optimizer = f"Fused{optimizer}"
    level = document.value(*OPTIMIZER_CONFIG, "optimizer_level")
    # level2 switches it on whatever it says (parallel/_auto_parallel_context.py, set_parallel_optimizer_config). level3
    # switches it off there, but the sums are cut all the same: parameter_manager.cc (SliceParameterObj,
    # SetClonedTensorShapeForOptimizer) asks for it or zero3. tests/adapters/test_gathered_weights.py shows it in 2.9.0.
    shard_sum = document.value(*OPTIMIZER_CONFIG, "gradient_accumulation_shard")
    dtype = document.value("model", "model_config", "compute_dtype")
    is_clipping = document.value("runner_wrapper", "use_clip_grad")
    return StepSettings(
        batch_size=document.count("runner_config", "batch_size"),
        seq_length=read_seq_length(document),
        num_micro_batches=num_micro_batches,
        data_parallel=data_parallel,
        model_parallel=document.count("parallel_config", "model_parallel"),
        context_parallel=document.count("parallel_config", "context_parallel"),
        expert_parallel=document.count("parallel_config", "expert_parallel"),
        pipeline=pipeline,
        num_sequences=document.count("parallel_config", SEQUENCE_KEY) if pipeline.num_stages > 1 else 1,
        optimizer=optimizer if isinstance(optimizer, str) else DEFAULT_OPTIMIZER,
        sharding=sharding,
        is_accumulator_sharded=shard_sum is True or level in ("level2", "level3"),
        is_state_offloaded=document.value("optimizer", "swap") is True,
        compute_dtype=dtype.lower() if isinstance(dtype, str) else "float16",
        is_fused=document.value("context", "jit_config", "jit_level") == "O1",
        # The cell for several micro-batches clips by default, the other does not.
        is_clipping=is_clipping if isinstance(is_clipping, bool) else is_accumulating,
        is_accumulating=is_accumulating,
        shares_casts=document.is_parallel
        and document.value("parallel", "enable_parallel_optimizer") is True
        and num_micro_batches > 1
        and level != "level3",
        is_decaying=document.value("optimizer", "weight_decay") not in (None, 0),
        has_interleaved_halves=has_interleaved_halves(document),
        is_newer=not document.is_legacy,
    )


def read_seq_length(document: Document) -> int:
    """Tokens of a sample: `seq_length` of the model, else what the class of its configuration has."""
    stated = document.value("model", "model_config", "seq_length")
    if is_whole_number(stated) and stated >= 1:
        return stated
    return DEFAULT_SEQ_LENGTHS["legacy" if document.is_legacy else "newer"]


# How a configuration trains: in graph mode or in PyNative mode, on what.

# What `context.mode` takes (mindformers/tools/utils.py, MODE); without the key it is graph mode.
GRAPH = (0, "GRAPH_MODE")
PYNATIVE = (1, "PYNATIVE_MODE")
ASCEND = "Ascend"
# Where the scheduler of a job listens (MindFormers' scripts/msrun_launcher.sh).
DEFAULT_MASTER_PORT = 8118


def uses_pynative_mode(document: Document) -> bool:
    """Operators run one by one: mindswap itself moves the memory."""
    mode = document.value("context", "mode")
    return not isinstance(mode, bool) and mode in PYNATIVE


def read_device_target(document: Document) -> str:
    """`context.device_target`; Ascend where that is missing or null."""
    value = document.value("context", "device_target")
    return ASCEND if value is None else str(value)


def is_on_cpu(document: Document) -> bool:
    """The device target is CPU."""
    return read_device_target(document) == "CPU"


# What a configuration lets MindSpore take of a card: `context.max_device_memory`.

PATH = "context.max_device_memory"
ALLOWED = 'a string such as "58GB"; GB is GiB there'
# `_RE_PATTERN` and `set_max_device_memory` in context.py of mindspore 2.9.0; ascend_memory_adapter.cc takes
# kGBToByte = 1024 << 20 bytes for one.
_SIZE = re.compile(r"(?:[1-9][0-9]*\.?[0-9]*|0\.[0-9]*)GB")


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of each card that MindSpore may take."""

    size_bytes: int  # how much
    location: Location  # where that stands

    @property
    def source(self) -> str:
        """In words."""
        return f"{PATH}, {self.location}"


def is_device_memory(value: object) -> bool:
    """True for a value that MindSpore takes; no unit but GB, no blank, not 0."""
    return isinstance(value, str) and _SIZE.fullmatch(value) is not None and Decimal(value[:-2]) > 0


def read_device_memory(document: Document) -> DeviceMemory | None:
    """The limit of a configuration; None if it has none, or none that MindSpore takes."""
    node = document.get(*PATH.split("."))
    if node is None or not is_device_memory(node.value):
        return None
    return DeviceMemory(int(Decimal(node.value[:-2]) * 2**30), node.location)


# Of the host memory that is available MindSpore pins so much for what is swapped, shared evenly by the ranks of a node
# (`offload_cpu_size` of offload_context.cc, pin_mem_pool.cc; mindspore 2.9.0).
PINNED_PERMILLE = 800


def pinnable_bytes(host_bytes: int) -> int:
    """Part of the memory of a host that MindSpore takes for copies."""
    return host_bytes * PINNED_PERMILLE // 1000


def host_bytes_for(pinned_bytes: int) -> int:
    """Memory of a host of which MindSpore pins so much."""
    return ceil_div(pinned_bytes * 1000, PINNED_PERMILLE)
