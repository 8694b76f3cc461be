"""What of MindFormers and MindSpore tests a configuration: one function for each place, called with the whole of it.

Each takes the configuration as plain data, merged into a small one that trains, and raises where upstream does.
"""

import functools
import importlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mindspore as ms
import yaml
from mindformers.core.parallel_config import build_parallel_config
from mindformers.tools import check_rules
from mindformers.tools.register import MindFormerConfig
from mindformers.tools.register.template import ConfigTemplate
from mindformers.trainer import trainer as trainers
from mindformers.trainer.base_trainer import BaseTrainer

from tests.rules.refusal_cases import Case

SIZES = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 128, "seq_length": 128}
NEWER = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, **SIZES}
DEEPSEEK = {
    **NEWER, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": None, "multi_latent_attention": True,
}  # fmt: skip
SPARSE = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "dsa_indexer_head_dim": 128, "dsa_indexer_n_heads": 64}
LEGACY = {"type": "LlamaConfig", "num_layers": 2, "num_heads": 4, "batch_size": 1, **SIZES}
CLASSES = {
    "qwen3": "mindformers.models.qwen3.configuration_qwen3.Qwen3Config",
    "qwen3_moe": "mindformers.models.qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig",
    "deepseek_v3": "mindformers.models.deepseek3.configuration_deepseek_v3.DeepseekV3Config",
}


def read(text: str) -> Any:
    """Return a configuration as MindFormers completes it."""
    data = yaml.safe_load(text)
    given = data.setdefault("model", {}).setdefault("model_config", {})
    if data.get("use_legacy", True):
        data["model"]["model_config"] = LEGACY | given
    else:
        kind = given.setdefault("model_type", "qwen3")
        base = DEEPSEEK if kind == "deepseek_v3" else NEWER
        sparse = SPARSE if given.get("experimental_attention_variant") == "dsa" else {}
        data["model"]["model_config"] = base | sparse | given
    data.setdefault("run_mode", "train")
    check_rules.check_yaml_depth_before_loading(text)
    ConfigTemplate.apply_template(data)
    return MindFormerConfig(**data)


def completed(file: Path) -> dict[str, Any]:
    """Return a configuration file as MindFormers completes it before it builds the context."""
    config = MindFormerConfig(str(file), run_mode="train", use_parallel=True)
    validators(config)
    return dict(config)


@contextmanager
def parallel(config: Any, **settings: Any) -> Iterator[None]:
    """Set MindSpore's parallel context as the configuration has it, until the end."""
    pipeline = config.parallel.get("pipeline_config")
    settings = {"parallel_mode": "semi_auto_parallel", **settings}
    if isinstance(pipeline, dict) and pipeline.get("pipeline_scheduler"):
        settings["pipeline_config"] = dict(pipeline)
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(**settings)
    try:
        yield
    finally:
        ms.reset_auto_parallel_context()


def by_name(path: str) -> Any:
    """Return an object of a module by its full name."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def rules(config: Any) -> None:
    """Run `check_rules` of MindFormers as the trainer does."""
    build_parallel_config(config)
    dp, mp, cp, pp = check_rules.get_parallel_strategy(config)
    with parallel(config), mock.patch.object(check_rules, "get_device_num", return_value=dp * mp * cp * pp):
        check_rules.check_rules(config, "train", network=None, dataset=object())


def model(config: Any) -> Any:
    """Make a TransformerConfig of the configuration of a newer model."""
    build_parallel_config(config)
    values = dict(config.model.model_config)
    kind = by_name(CLASSES[values.pop("model_type")])
    with parallel(config):
        made = kind(**values, parallel_config=config.parallel_config)
        return made.convert_to_transformer_config(is_mla_model=bool(getattr(made, "multi_latent_attention", False)))


def parallel_context(config: Any) -> None:
    """Hand `parallel` to MindSpore."""
    ms.reset_auto_parallel_context()
    given = {key: value for key, value in config.parallel.items() if key not in MindFormersDefaults}
    try:
        ms.set_auto_parallel_context(**given)
    finally:
        ms.reset_auto_parallel_context()


MindFormersDefaults = ("parallel_mode", "full_batch", "strategy_ckpt_save_file")


def validators(config: Any) -> None:
    """Run the validators that MindFormers runs before it builds the context."""
    by_name("mindformers.core.context.validators.execute_validator")(config)


def trainer_method(name: str, **fields: Any) -> Callable[[Any], None]:
    """Return a call of a method of BaseTrainer that reads the configuration only."""

    def call(config: Any) -> None:
        stages = config.parallel_config.pipeline_stage
        owner = SimpleNamespace(config=config, get_pipeline_stages=lambda: stages, get_train_data_size=lambda: 8)
        config.train_dataset.batch_size = 1
        vars(owner).update(fields)
        for method in ("learning_rate_scale", "create_lr_scheduler"):
            setattr(owner, method, getattr(BaseTrainer, method).__get__(owner))
        NAMED[name](owner, config)

    return call


NAMED: dict[str, Callable[[Any, Any], None]] = {
    "wrap": lambda owner, config: BaseTrainer._wrap_network_with_tool_cells(owner, ms.nn.ReLU()),
    "accumulation": lambda owner, config: BaseTrainer._check_grad_accumulation_steps(owner),
    "wrap-legacy": lambda owner, config: BaseTrainer._wrap_network_with_tool_cells_legacy(owner, ms.nn.ReLU()),
    "seed": lambda owner, config: BaseTrainer.set_seed(owner),
    "schedule": lambda owner, config: BaseTrainer.create_lr_scheduler(
        owner, config.lr_schedule, config.lr_scale, config.lr_scale_factor
    ) and None,
    "grouped": lambda owner, config: BaseTrainer._create_grouped_lr_scheduler(owner, False, 256) and None,
    "strategy": lambda owner, config: BaseTrainer._set_full_batch_with_strategy(
        config, config.parallel.get("dataset_strategy", "full_batch")
    ) and ms.reset_auto_parallel_context(),
    "sliced": lambda owner, config: BaseTrainer._check_input_sliced_sig(config),
    "types": lambda owner, config: trainers.Trainer._check_config_type(owner),
    "callbacks": lambda owner, config: trainers.Trainer._error_if_checkpoint_prefix_contains_rank_info(owner),
}  # fmt: skip


def layers(config: Any) -> None:
    """WorkerPool the layers over pipeline stages."""
    build_parallel_config(config)
    values, utils = config.model.model_config, "mindformers.parallel_core.training_graph.transformer.utils"
    with parallel(config), mock.patch(f"{utils}.is_legacy_model", return_value=True):
        chunks = values.get("pp_interleave_num", 1)
        by_name(f"{utils}.LayerSetting")(values.num_layers, values.offset, config.parallel_config, chunks)


def batch(config: Any) -> None:
    """Hold the strategy of the dataset against the data parallel ranks."""
    strategy = tuple(map(tuple, config.parallel.dataset_strategy))
    with parallel(config, full_batch=False, dataset_strategy=strategy):
        trainer_method_owner = SimpleNamespace(
            config=config, get_pipeline_stages=lambda: 1, _reset_wrapper_for_pipeline_parallel=lambda: None
        )
        BaseTrainer._check_global_batch_size_for_auto_parallel(trainer_method_owner)


def broadcast(config: Any) -> None:
    """Hold sink mode against the level of dataset broadcast."""
    level = config.context.dataset_broadcast_opt_level
    with mock.patch("mindformers.trainer.base_trainer.mf_get_context", return_value=level):
        BaseTrainer._check_sink_mode_with_ds_broadcast(config)


def one_step(self: Any, network: Any, optimizer: Any, *_: Any) -> None:
    """Make a training cell without groups of ranks."""
    ms.nn.Cell.__init__(self)
    self.network, self.optimizer, self.weights = network, optimizer, optimizer.parameters
    self.parallel_mode = ms.get_auto_parallel_context("parallel_mode")


def wrapper(config: Any) -> None:
    """Make the cell that trains a pipeline."""
    mode = {0: "data_parallel", 1: "semi_auto_parallel"}[config.parallel.parallel_mode]
    make = by_name("mindformers.wrapper.wrapper.MFPipelineWithLossScaleCell")
    with (
        parallel(config, parallel_mode=mode),
        mock.patch.object(make.__mro__[1], "__init__", one_step),
        mock.patch("mindformers.wrapper.wrapper._get_pipeline_group", return_value=([0], "0")),
        mock.patch("mindformers.wrapper.wrapper.create_group"),
    ):
        network = ms.nn.Dense(1, 1)
        make(network, ms.nn.SGD(network.trainable_params()), scale_sense=ms.Tensor([1.0]))


def stages(config: Any) -> None:
    """Read the number of stages as MindFormers does when it builds the parallel context."""
    operator = by_name("mindformers.core.context.parallel.ParallelOperator")
    operator._set_pipeline_stage(SimpleNamespace(config=config))


def check_pipeline_stage(config: Any) -> None:
    """Hold the layers of DeepSeek-V3 against its stages and chunks."""
    values = SimpleNamespace(**config.model.model_config, parallel_config=config.parallel_config)
    check = by_name("mindformers.models.deepseek3.utils.DeepseekV3PreTrainedModel")
    with parallel(config):
        check.check_pipeline_stage(SimpleNamespace(config=values))


def three_dimensional(config: Any) -> None:
    """Check 3d tensor parallelism of a legacy model."""
    build_parallel_config(config)
    values = {"fine_grain_interleave": None, "moe_config": config.moe_config, **config.model.model_config}
    settings = SimpleNamespace(**values, parallel_config=config.parallel_config)
    mode = {1: "semi_auto_parallel", 2: "auto_parallel"}[config.parallel.parallel_mode]
    with parallel(config, parallel_mode=mode, search_mode="sharding_propagation"):
        by_name("mindformers.models.utils.check_use_3d_tensor_parallel_valid")(settings)


def attention_of_llama(config: Any) -> None:
    """Build a layer of a legacy Llama, and cut it over the ranks."""
    build_parallel_config(config)
    values, splits = config.model.model_config, config.parallel_config
    attention = by_name("mindformers.models.llama.llama_transformer.LLamaAttention")
    feed_forward = by_name("mindformers.models.llama.llama_layer.LlamaFeedForward")
    with parallel(config):
        attention(
            seq_length=128, dim=values.hidden_size, n_heads=values.num_heads, n_kv_heads=values.get("n_kv_heads"),
            parallel_config=splits,
        )  # fmt: skip
        feed_forward(
            dim=values.hidden_size, intermediate_size=values.intermediate_size, hidden_dim=4 * values.hidden_size,
            multiple_of=1, moe_config=config.moe_config if config.moe_config.expert_num > 1 else None,
            parallel_config=splits,
        ).shard(splits)  # fmt: skip


def experts_of_llama(config: Any) -> None:
    """Make the feed forward cell of a legacy Llama with experts."""
    build_parallel_config(config)
    feed_forward = by_name("mindformers.models.llama.llama_layer.LlamaFeedForward")
    feed_forward(
        dim=64, intermediate_size=128, moe_config=config.moe_config, parallel_config=config.parallel_config
    )  # fmt: skip


def mask(config: Any) -> None:
    """Make the cell that makes the masks of a newer model."""
    transformer = model(config)
    make = by_name("mindformers.parallel_core.training_graph.transformer.mask_generate.CausalMaskGenerate")
    make(
        seq_length=transformer.seq_length, use_attn_mask_compression=transformer.use_attn_mask_compression,
        config=transformer,
    )  # fmt: skip


def activation(config: Any) -> None:
    """Make the activation of a newer model."""
    by_name("mindformers.parallel_core.training_graph.activation.get_activation")(config.model.model_config.hidden_act)


def parameters() -> list[Any]:
    """Return two parameters, as a group that an optimizer takes."""
    made = [ms.Parameter(ms.Tensor([1.0]), name=name) for name in ("a", "b")]
    return [{"params": made}]


def optimizer(config: Any, rate: Any = 0.1) -> None:
    """Build the optimizer."""
    given = {"params": parameters()} if rate is None else {"params": parameters(), "learning_rate": rate}
    by_name("mindformers.core.optim.build_optim")(config.optimizer, default_args=given)


def muon(config: Any) -> None:
    """Make Muon as far as it looks at the model."""
    kind = by_name("mindformers.core.optim.muon.Muon")
    has_latent_attention = config.model.model_config.model_type == "deepseek_v3"
    checked = SimpleNamespace(
        get_gpt_transformer_config=lambda: SimpleNamespace(multi_latent_attention=has_latent_attention)
    )
    with mock.patch("mindformers.core.optim.muon.is_legacy_model", return_value=False):
        if config.optimizer.get("swap"):
            kind(parameters(), swap=True)
        else:
            kind._verify_model(None, checked)


def muon_ranks(config: Any) -> None:
    """Read how many ranks share the weights of Muon."""
    kind = by_name("mindformers.core.optim.muon.Muon")
    sizes = SimpleNamespace(tensor_model_parallel_size=1, data_parallel_size=config.parallel_config.data_parallel)
    given = {key: config.parallel[key] for key in ("parallel_optimizer_config",) if key in config.parallel}
    with parallel(config, enable_parallel_optimizer=True, **given):
        owner = SimpleNamespace(_parameters=())
        kind._initialize_parallel_config(owner, SimpleNamespace(get_gpt_transformer_config=lambda: sizes))


def rate(config: Any) -> None:
    """Build the schedule of the learning rate; the trainer adds the steps."""
    given = dict(config.lr_schedule)
    if "Annealing" not in given["type"]:
        given["total_steps"] = 100
    by_name("mindformers.core.lr.build_lr")(MindFormerConfig(**given))


def loss_scale(config: Any) -> None:
    """Make the cell that adapts the loss scale."""
    given = dict(config.runner_wrapper.scale_sense)
    given.pop("type")
    by_name("mindformers.wrapper.adaptive_loss_scale.AdaptiveLossScaleUpdateCell")(**given)


def clip(config: Any) -> None:
    """Make the cell that clips gradients."""
    by_name("mindformers.core.clip_grad.ClipGradNorm")(max_norm=config.runner_wrapper.max_grad_norm)


def context(config: Any) -> None:
    """Hand mode, jit_config and ascend_config to MindSpore."""
    given = {key: config.context[key] for key in ("jit_config", "ascend_config") if key in config.context}
    with mock.patch("mindspore.context._Context.set_param"):
        handle = by_name("mindspore.context._context")()
        for key, value in given.items():
            getattr(handle, f"set_{key}")(dict(value))


def memory(config: Any) -> None:
    """Set the level of memory optimization."""
    runtime = by_name("mindspore.runtime.memory.RuntimeConf")
    with mock.patch.object(runtime, "get_instance", return_value=mock.MagicMock(is_memory_configured=lambda: False)):
        by_name("mindspore.runtime.set_memory")(optimize_level=config.context.memory_optimize_level)


def recursion(config: Any) -> None:
    """Set how deep calls may be."""
    ms.set_recursion_limit(config.context.max_call_depth)


def runner(config: Any) -> None:
    """Check epochs and sink size against a dataset."""
    dataset = SimpleNamespace(get_dataset_size=lambda: 8)
    by_name("mindformers.trainer.utils.check_runner_config")(config, dataset)


def batch_function(config: Any) -> None:
    """Batch a dataset."""
    config.train_dataset.divisor = config.train_dataset.remainder = None
    by_name("mindformers.dataset.causal_language_model_dataset.dataset_batch_func")(
        config.train_dataset, mock.MagicMock()
    )


def megatron(config: Any) -> None:
    """Make the builder of Megatron datasets."""
    by_name("mindformers.dataset.dataloader.blended_megatron_dataloader.MegatronDatasetBuilder")(
        config.train_dataset.data_loader.datasets_type, {}
    )


def megatron_config(config: Any) -> None:
    """Make the configuration of a Megatron dataset."""
    builder = by_name("mindformers.dataset.dataloader.blended_megatron_dataloader.MegatronDatasetBuilder")
    builder("GPTDataset", dict(config.train_dataset.data_loader.config)).init_gpt_dataset_config()


def optimizer_mode(config: Any) -> None:
    """Build the optimizer in the parallel mode of the configuration."""
    mode = {0: "data_parallel", 1: "semi_auto_parallel"}[config.parallel.parallel_mode]
    with parallel(config, parallel_mode=mode, enable_parallel_optimizer=config.parallel.enable_parallel_optimizer):
        optimizer(config)


def registered(kind: str, *path: str) -> Callable[[Any], None]:
    """Return a call that finds the class that a section names."""

    def find(config: Any) -> None:
        section = functools.reduce(lambda inner, key: inner[key], path, config)
        by_name("mindformers.tools.register.MindFormerRegister").get_cls(kind, section["type"])

    return find


def hf(config: Any) -> None:
    """Make the configuration of a dataset of Hugging Face."""
    given = dict(config.train_dataset.data_loader)
    given.pop("type")
    name = "HFStreamingConfig" if given.get("streaming") else "HFDataLoaderConfig"
    by_name(f"mindformers.dataset.dataloader.hf_dataloader.{name}")(**given)


def hf_process(config: Any) -> None:
    """Process a dataset of Hugging Face."""
    loader = by_name("mindformers.dataset.dataloader.hf_dataloader.HFDataLoader")
    loader.process_dataset(SimpleNamespace(process=list(config.train_dataset.data_loader.process)), mock.MagicMock())


def mock_data(config: Any) -> None:
    """Make a dataset of made-up values."""
    values = config.train_dataset.data_loader
    kind = by_name("mindformers.dataset.dataloader.mock_dataloader.BaseMockDataLoader")
    kind(values.mock_columns, values.mock_shapes, values.mock_dtypes, 4).build()


def dataset(config: Any) -> None:
    """Complete the settings of a dataset."""
    kind = by_name("mindformers.dataset.base_dataset.BaseDataset")
    given = {"filepath_prefix": tempfile.mkdtemp(), "autotune_per_step": 10, **config.train_dataset}
    with mock.patch("mindspore.dataset.config.set_enable_autotune"):
        kind.init_dataset_config(MindFormerConfig(**given))


def checkpoint_format(config: Any) -> None:
    """Check the checkpoint that is loaded."""
    config.checkpoint = MindFormerConfig(load_path=config.load_checkpoint)
    by_name("mindformers.trainer.utils.check_checkpoint_config_valid")(config)


def checkpoint(config: Any) -> None:
    """Read the settings of checkpoints in the newer form."""
    by_name("mindformers.trainer.utils.convert_checkpoint_config")(config)


def checkpoint_section(config: Any) -> None:
    """Check the section of checkpoints."""
    by_name("mindformers.trainer.utils.validate_checkpoint_config")(config.checkpoint)


def monitor(config: Any) -> None:
    """Make the callback that monitors the training."""
    settings = config.monitor_config
    kind = by_name("mindformers.core.callback.callback.TrainingStateMonitor")
    stages = config.parallel_config.pipeline_stage
    with (
        parallel(config, device_num=stages, pipeline_stages=stages),
        mock.patch("mindformers.core.callback.callback.is_last_pipeline_stage", return_value=True),
    ):
        kind(origin_epochs=1, config=settings, step_interval=settings.step_interval, dataset_size=8)


CALLS: dict[str, Callable[[Any], Any]] = {
    "rules": rules,
    "model": model,
    "parallel": build_parallel_config,
    "parallel-context": parallel_context,
    "validators": validators,
    "wrapper": wrapper,
    "stages": stages,
    "check_pipeline_stage": check_pipeline_stage,
    "wrap-newer": trainer_method("wrap"),
    "accumulation": trainer_method("accumulation"),
    "seed": trainer_method("seed"),
    "schedule": trainer_method("schedule"),
    "types": trainer_method("types"),
    "grouped-rates": trainer_method("grouped"),
    "strategy": trainer_method("strategy"),
    "sliced": trainer_method("sliced"),
    "callbacks": trainer_method("callbacks"),
    "batch": batch,
    "broadcast": broadcast,
    "3d": three_dimensional,
    "llama": attention_of_llama,
    "llama-experts": experts_of_llama,
    "mask": mask,
    "activation": activation,
    "optimizer": optimizer,
    "registry-trainer": registered("trainer", "trainer"),
    "registry-models": registered("models", "model", "arch"),
    "registry-config": registered("config", "model", "model_config"),
    "optimizer-rate": lambda config: optimizer(config, None),
    "muon": muon,
    "muon-ranks": muon_ranks,
    "rate": rate,
    "loss-scale": loss_scale,
    "context": context,
    "layers": layers,
    "template": lambda config: None,
    "depth": lambda config: None,
    "wrap-legacy": trainer_method("wrap-legacy"),
    "megatron-config": megatron_config,
    "optimizer-mode": optimizer_mode,
    "clip": clip,
    "moe": build_parallel_config,
    "memory": memory,
    "recursion": recursion,
    "runner": runner,
    "batch-function": batch_function,
    "megatron": megatron,
    "hf": hf,
    "hf-process": hf_process,
    "mock": mock_data,
    "dataset": dataset,
    "checkpoint-format": checkpoint_format,
    "checkpoint": checkpoint,
    "checkpoint-section": checkpoint_section,
    "monitor": monitor,
}


def call(case: Case, text: str) -> None:
    """Call what a case names with a configuration.

    Raises:
        Exception: whatever MindFormers or MindSpore raise.
    """
    CALLS[case.call](read(text))
