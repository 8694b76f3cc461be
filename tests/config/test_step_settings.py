"""What a configuration says about a step."""

import pytest

from mindswap.config.step_settings import read_seq_length, read_step_settings
from mindswap.config.weight_sharding import WeightSharding
from tests.builders import document


def read(text=""):
    return read_step_settings(document(text))


def test_what_is_missing_is_as_mindformers_takes_it():
    settings = read("{}")
    assert (settings.batch_size, settings.num_micro_batches, settings.num_cards) == (1, 1, 1)
    assert (settings.optimizer, settings.compute_dtype, settings.is_fused) == ("AdamW", "float16", False)
    assert settings.num_optimizer_shards == 1


def test_micro_batches_of_a_pipeline():
    # 4 micro-batches of 2 interleaved parts, which are one pass; a pipeline takes no accumulation (base_trainer.py).
    text = """
    parallel_config: {pipeline_stage: 2, micro_batch_num: 4, data_parallel: 2, model_parallel: 2}
    runner_config: {batch_size: 5, gradient_accumulation_steps: 3}
    micro_batch_interleave_num: 2
    model: {model_config: {seq_length: 10}}
    """
    settings = read(text)
    assert (settings.num_micro_batches, settings.batch_size) == (4, 10)
    assert settings.num_cards == 8
    assert settings.num_tokens == 5 * 10 * 8 * 2


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("{enable_parallel_optimizer: True}", True),
        ("{enable_parallel_optimizer: False}", False),
        ("{enable_parallel_optimizer: True, parallel_optimizer_config: {optimizer_level: level3}}", False),
    ],
)
def test_micro_batches_share_casts_with_the_parallel_optimizer(text, shares):
    assert read(f"{{parallel: {text}, runner_config: {{gradient_accumulation_steps: 2}}}}").shares_casts is shares
    assert not read(f"parallel: {text}").shares_casts


@pytest.mark.parametrize(
    ("schedule", "is_constant"),
    [
        ("{}", True),
        ("{type: ConstantWarmUpLR, warmup_steps: 0}", True),
        ("{type: ConstantWarmUpLR, warmup_ratio: 0.03}", False),
        ("{type: CosineWithWarmUpLR, warmup_steps: 0}", False),
    ],
)
def test_a_schedule_makes_the_learning_rate_a_value_of_each_step(schedule, is_constant):
    assert read(f"lr_schedule: {schedule}").is_rate_constant is is_constant


def test_without_pipeline_there_is_no_micro_batch_num():
    assert read("parallel_config: {micro_batch_num: 4}").num_micro_batches == 1


def test_without_use_parallel_one_rank_trains():
    assert read("{use_parallel: False, parallel_config: {data_parallel: 8}}").data_parallel == 1


@pytest.mark.parametrize(
    ("parallel", "shards"),
    [
        ("{}", 1),
        ("{enable_parallel_optimizer: True}", 8),
        ("{enable_parallel_optimizer: True, parallel_optimizer_config: {optimizer_weight_shard_size: 4}}", 4),
        ("{enable_parallel_optimizer: True, parallel_optimizer_config: {optimizer_weight_shard_size: -1}}", 8),
        ("{enable_parallel_optimizer: False, parallel_optimizer_config: {optimizer_weight_shard_size: 4}}", 1),
        # A size of one rank, or of more than there are, has no effect; with one that does not divide them no weight is
        # sharded (dry runs of a small Llama: 3 takes 3261 MiB, as no parallel optimizer; 2665 with all 8).
        ("{enable_parallel_optimizer: True, parallel_optimizer_config: {optimizer_weight_shard_size: 3}}", 1),
        ("{enable_parallel_optimizer: True, parallel_optimizer_config: {optimizer_weight_shard_size: 16}}", 8),
        ("{enable_parallel_optimizer: True, parallel_optimizer_config: {optimizer_weight_shard_size: 1}}", 8),
        # In the data parallel mode weights are not cut.
        ("{enable_parallel_optimizer: True, parallel_mode: 0}", 1),
        ("{enable_parallel_optimizer: True, parallel_mode: 1}", 8),
    ],
)
def test_ranks_that_share_the_optimizer(parallel, shards):
    assert read(f"{{parallel: {parallel}, parallel_config: {{data_parallel: 8}}}}").num_optimizer_shards == shards


def test_ranks_of_context_parallelism_have_the_same_weights():
    text = "parallel: {enable_parallel_optimizer: True}\nparallel_config: {data_parallel: 4, context_parallel: 2}"
    assert read(text).sharding.num_ranks == 8


@pytest.mark.parametrize(
    ("level", "is_accumulator_sharded", "is_released"),
    [("level1", False, False), ("level2", True, False), ("level3", True, True)],
)
def test_optimizer_levels(level, is_accumulator_sharded, is_released):
    config = f"{{optimizer_level: {level}, parallel_optimizer_threshold: 24}}"
    settings = read(
        f"{{parallel: {{enable_parallel_optimizer: True, parallel_optimizer_config: {config}}},"
        " parallel_config: {data_parallel: 2}}"
    )
    assert settings.is_accumulator_sharded == is_accumulator_sharded
    assert settings.sharding == WeightSharding(2, 24 * 1024, is_released, num_unsharded_ranks=2)


@pytest.mark.parametrize(
    ("config", "num_gradient_reductions"),
    [
        ("{optimizer_level: level1}", 1),  # the last micro-batch hands on the sums
        ("{optimizer_level: level2}", 4),
        ("{optimizer_level: level3}", 4),
        ("{gradient_accumulation_shard: True}", 4),
        ("{gradient_accumulation_shard: False, optimizer_level: level2}", 4),  # level2 overrules it
    ],
)
def test_each_micro_batch_hands_on_gradients_whose_sums_are_cut(config, num_gradient_reductions):
    settings = read(
        f"{{parallel: {{enable_parallel_optimizer: True, parallel_optimizer_config: {config}}},"
        " parallel_config: {data_parallel: 2}, runner_config: {gradient_accumulation_steps: 4}}"
    )
    assert settings.num_gradient_reductions == num_gradient_reductions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{model: {model_config: {fine_grain_interleave: 2}}, parallel_config: {model_parallel: 2}}", True),
        ("{model: {model_config: {fine_grain_interleave: 2}}, parallel_config: {model_parallel: 1}}", False),
        ("{model: {model_config: {fine_grain_interleave: 1}}, parallel_config: {model_parallel: 2}}", False),
        ("{use_legacy: False, model: {model_config: {fine_grain_interleave: 2}},"
         " parallel_config: {model_parallel: 2}}", False),
    ],
)  # fmt: skip
def test_layers_compute_in_halves_beside_tensor_parallel_of_legacy_models(text, expected):
    assert read(text).has_interleaved_halves is expected


@pytest.mark.parametrize(
    ("text", "swap", "lacks"),
    [
        ("", False, True),
        ("", True, False),
        ("parallel: {enable_parallel_optimizer: True}", False, True),
        ("parallel: {enable_parallel_optimizer: True}", True, False),
        ("parallel: {parallel_mode: 0}", True, False),  # data parallel
        ("parallel: {parallel_mode: 0}", False, True),
        ("micro_batch_interleave_num: 2", True, False),
        ("micro_batch_interleave_num: 2", False, False),
        ("runner_config: {gradient_accumulation_steps: 2}", False, False),
        ("parallel_config: {pipeline_stage: 2, micro_batch_num: 1}", True, False),
        ("parallel_config: {pipeline_stage: 2, micro_batch_num: 1}", False, False),
        ("context: {mode: 1}", False, False),  # PyNative mode compiles nothing
    ],
)
def test_one_micro_batch_without_swap_is_compiled_without_lazy_inline(text, swap, lacks):
    """MindFormers 1.9.0 switches it off there (trainer/base_trainer.py)."""
    settings = read(f"swap_config: {{swap: {swap}}}\n{text}")
    assert settings.lacks_lazy_inline is lacks
    is_single = settings.num_micro_batches == settings.pipeline.num_stages == 1 and "interleave" not in text
    assert settings.sharding.is_cast_after_gather is (swap and is_single)


@pytest.mark.parametrize(("level", "at_once"), [("O0", False), ("O1", False), ("O2", True)])
def test_the_graph_is_launched_at_once_at_o2(level, at_once):
    assert read(f"{{context: {{jit_config: {{jit_level: {level}}}}}}}").is_launched_at_once is at_once


@pytest.mark.parametrize(
    ("context", "pieces", "expected"),
    [
        ("memory_optimize_level: O1", 1, True),
        ("memory_optimize_level: O1", 4, False),  # shapes are dynamic
        ("memory_optimize_level: O0", 1, False),
        ("mode: 0", 1, False),
    ],
)
def test_mindspore_plans_the_memory_of_a_step(context, pieces, expected):
    text = f"{{context: {{{context}}}, parallel_config: {{pipeline_stage: 2, seq_split_num: {pieces}}}}}"
    assert read(text).plans_memory is expected


@pytest.mark.parametrize(
    ("value", "size_bytes"), [("52.5GB", 105 * 2**29), ("1GB", 2**30), ("52.5 GB", 0), ("52", 0), ("null", 0)]
)
def test_blocks_of_the_memory_pool(value, size_bytes):
    assert read(f"{{context: {{mempool_block_size: {value}}}}}").pool_block_bytes == size_bytes


def test_other_settings():
    text = """
    optimizer: {type: Adam, swap: True}
    parallel: {parallel_optimizer_config: {gradient_accumulation_shard: True}}
    context: {jit_config: {jit_level: O1}}
    model: {model_config: {compute_dtype: BFloat16}}
    """
    settings = read(text)
    assert (settings.optimizer, settings.is_state_offloaded, settings.is_accumulator_sharded) == ("Adam", True, True)
    assert (settings.is_fused, settings.compute_dtype) == (True, "bfloat16")


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        ("optimizer: {type: AdamW, use_fused: True}", "FusedAdamW"),
        ("optimizer: {type: PmaAdamW, use_fused: True}", "FusedPmaAdamW"),
        ("optimizer: {type: AdamW, use_fused: False}", "AdamW"),
        ("optimizer: {type: Adam, use_fused: True}", "Adam"),
    ],
)
def test_a_fused_optimizer_is_a_class_of_its_own(text, optimizer):
    assert read(text).optimizer == optimizer


@pytest.mark.parametrize(
    ("text", "is_clipping"),
    [
        ("{}", False),
        ("runner_config: {gradient_accumulation_steps: 2}", True),
        ("parallel_config: {pipeline_stage: 2, micro_batch_num: 2}", True),
        ("micro_batch_interleave_num: 2", False),
        ("runner_wrapper: {use_clip_grad: True}", True),
        ("{runner_wrapper: {use_clip_grad: False}, runner_config: {gradient_accumulation_steps: 2}}", False),
    ],
)
def test_the_cell_for_several_micro_batches_clips_by_default(text, is_clipping):
    assert read(text).is_clipping is is_clipping


def test_sums_of_gradients_are_those_of_pipelines_and_accumulation():
    assert read("runner_config: {gradient_accumulation_steps: 2}").is_accumulating
    assert not read("micro_batch_interleave_num: 2").is_accumulating


def test_distance_of_data_parallel_ranks():
    assert read("parallel_config: {model_parallel: 4, context_parallel: 2}").data_parallel_stride == 8
    assert read("{}").data_parallel_stride == 1


def test_a_model_without_seq_length_has_that_of_its_class():
    # models/llama/llama_config.py: 2048; register_mf_model_parameter of models/qwen3_moe: 4096.
    assert read_seq_length(document("use_legacy: True\nmodel: {model_config: {num_layers: 2}}")) == 2048
    assert read_seq_length(document("use_legacy: False\nmodel: {model_config: {num_layers: 2}}")) == 4096
    assert read_seq_length(document("use_legacy: False\nmodel: {model_config: {seq_length: 512}}")) == 512


def test_experts_are_on_fewer_ranks_than_tokens_and_not_cut_where_one_rank_has_them():
    # 4 x 8 ranks share the tokens of a stage, 32 the experts: each expert is on one rank.
    parts = "data_parallel: 4, model_parallel: 8, expert_parallel: 32"
    on = "parallel: {parallel_mode: 1, enable_parallel_optimizer: True}\n"
    sharding = read(f"{on}parallel_config: {{{parts}}}").sharding
    assert (sharding.num_ranks, sharding.num_expert_copies) == (4, 1)
    big = ((4096, 64), 4096 * 64 * 4)
    assert sharding.is_sharded("model.layers.3.mlp.linear_fc1.weight", *big)
    assert not sharding.is_sharded("model.layers.3.mlp.experts.weight1", *big)


def test_without_experts_there_are_no_copies_of_them():
    assert read("parallel_config: {data_parallel: 4}").sharding.num_expert_copies == 1
    text = "parallel_config: {data_parallel: 4, model_parallel: 2}\nmodel: {model_config: {num_experts: 8}}"
    assert read(text).sharding.num_expert_copies == 8


def test_pieces_of_sequences_are_of_a_pipeline():
    # 4 micro-batches of 3 pieces are 12 passes; tokens stay those of whole sequences.
    parallel = "parallel_config: {pipeline_stage: 2, micro_batch_num: 4, seq_split_num: 3}"
    text = f"{{{parallel}, model: {{model_config: {{seq_length: 6}}}}}}"
    settings = read(text)
    assert (settings.num_sequences, settings.num_micro_steps, settings.num_tokens) == (3, 12, 24)
    assert read("parallel_config: {seq_split_num: 3}").num_sequences == 1


GLM4 = "type: ChatGLM2Config, padded_vocab_size: 16000"


@pytest.mark.parametrize(
    ("model", "parallel", "is_sharded"),
    [
        (GLM4, "data_parallel: 4, vocab_emb_dp: False", True),
        (GLM4, "data_parallel: 4", False),  # the default of vocab_emb_dp is True
        (GLM4, "data_parallel: 4, vocab_emb_dp: True, pipeline_stage: 2", True),  # MindFormers resets it
        (GLM4, "data_parallel: 3, vocab_emb_dp: False", False),  # 16000 rows are not divisible by 3
        (GLM4, "vocab_emb_dp: False", False),  # one rank
        ("type: LlamaConfig, vocab_size: 16000", "data_parallel: 4, vocab_emb_dp: False", False),
    ],
)
def test_the_head_of_glm_is_sharded_over_data_parallel_ranks(model, parallel, is_sharded):
    settings = read(f"{{model: {{model_config: {{{model}}}}}, parallel_config: {{{parallel}}}}}")
    assert settings.is_head_sharded == settings.is_network_sharded == is_sharded


def test_no_other_rank_has_a_shard_of_a_head_that_is_sharded_over_all_ranks():
    # Dry run `glm4 pp2`: the head has 1/4 of its size on each of 4 ranks, and is not gathered.
    sharding = WeightSharding(num_ranks=4, num_unsharded_ranks=4)
    assert [sharding.num_ranks_of("head.weight", num_shards) for num_shards in (1, 2, 4)] == [4, 2, 1]
    # 2 x 2 ranks, tensor parallel ones inside: their 2 shards are on 2 data parallel ranks each.
    sharding = WeightSharding(num_ranks=2, stride=2, num_unsharded_ranks=4)
    assert [sharding.num_ranks_of("head.weight", num_shards) for num_shards in (1, 2, 4)] == [4, 2, 1]


def test_weights_of_experts_are_cut_over_the_ranks_that_have_the_same_ones():
    # Dry run `qwen3_moe optimizer_cut ep4`: 8 ranks, 4 with different experts: 18 MiB of experts, not 36.
    sharding = WeightSharding(num_ranks=4, num_expert_copies=2)
    shape, size_bytes = (2048, 1024), 8 * 2**20
    names = ("layers.0.mlp.experts.weight1", "layers.0.self_attention.linear_qkv.weight")
    assert [sharding.num_ranks_of(name) for name in names] == [2, 4]
    assert all(sharding.is_sharded(name, shape, size_bytes) for name in names)
    assert not WeightSharding(num_ranks=4, num_expert_copies=1).is_sharded(names[0], shape, size_bytes)
