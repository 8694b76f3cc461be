import shlex
from dataclasses import replace

import pytest

from mindswap.config.problem import Level, Location
from mindswap.policy.cell_tree import load_layer_trees, match_pattern
from mindswap.policy.formats.megatron.options import read_options, read_tokens
from mindswap.policy.formats.megatron.placement import PlacementError, place_layers
from mindswap.policy.formats.megatron.policy import available_modules, megatron_module_names, policy_of_megatron
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap
from tests.builders import layer, trees

LLAMA = {"arch": {"type": "LlamaForCausalLM"}, "model_config": {"use_flash_attention": True}}
LLAMA_PLAIN = {"arch": {"type": "LlamaForCausalLM"}, "model_config": {"use_flash_attention": False}}
QWEN3 = {"model_config": {"architectures": ["Qwen3ForCausalLM"]}}
FULL = "--num-layers 8 --recompute-granularity full"
MOE = """
    self_attention
      linear_kv_up_proj
        matmul*
      core_attention
        flash_attention*
    mlp
      experts
        swiglu*
      shared_experts
        linear_fc1
          matmul*
"""


def read(text):
    tokens = read_tokens(shlex.split(text))
    return read_options(tokens, dict.fromkeys(tokens, Location("command line")))


def convert(text, model=LLAMA, layer_trees=None):
    options, problems = read(text)
    assert problems == ()
    layer_trees = layer_trees or load_layer_trees(model, options.num_layers or 1)
    return policy_of_megatron(options, "arch" in model, layer_trees, 10)


def messages(text, level=Level.ERROR, **how):
    found = convert(text, **how).problems
    assert all(problem.message.startswith(f"{problem.subject}: ") for problem in found)
    return [problem.message for problem in found if problem.level is level]


def layouts(text):
    options, _ = read(text)
    return place_layers(options, options.num_layers)


# placement


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("--num-layers 8", ((8,),)),
        ("--num-layers 8 --pipeline-model-parallel-size 2", ((4, 4),)),
        # Megatron numbers the chunks through the stages: stage 0 has layers 0-1 and 4-5.
        (
            "--num-layers 8 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
            ((2, 2), (2, 2)),
        ),
        ("--num-layers 8 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4", ((1, 1),) * 4),
        ("--num-layers 8 --pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2", ((2, 3, 3),)),
        (
            "--num-layers 8 --pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 1 "
            "--decoder-last-pipeline-num-layers 3",
            ((1, 4, 3),),
        ),
        (
            "--num-layers 6 --pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split "
            "--account-for-loss-in-pipeline-split",
            ((1, 2, 2, 1),),
        ),
    ],
)
def test_where_the_layers_are(text, sizes):
    assert layouts(text).layout.sizes == sizes


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("--num-layers 8 --pipeline-model-parallel-size 3", "pipeline_model_parallel_size"),
        (
            "--num-layers 8 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            "num_layers_per_virtual_pipeline_stage",
        ),
        (
            "--num-layers 8 --pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 3",
            "decoder_first_pipeline_num_layers",
        ),
        (
            "--num-layers 8 --pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2 "
            "--num-layers-per-virtual-pipeline-stage 1",
            "num_layers_per_virtual_pipeline_stage",
        ),
    ],
)
def test_layers_that_cannot_be_spread(text, field):
    with pytest.raises(PlacementError) as caught:
        layouts(text)
    assert caught.value.field == field


def test_block_and_groups_count_in_every_chunk():
    placement = layouts("--num-layers 12 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3")
    assert placement.first_layers(2) == (0, 1, 3, 4, 6, 7, 9, 10)
    assert tuple(placement.group_ends(2)) == (1, 2, 4, 5, 7, 8, 10, 11)


# recomputation


def test_selective_is_core_attention_of_every_layer():
    for text in ("--recompute-activations", "--recompute-granularity selective"):
        policy = convert(f"--num-layers 8 {text}").policy
        assert policy.select_recompute == (OpRecompute(r"attention\.flash_attention\..*", ALL_LAYERS),)
        assert policy.is_swap_enabled and policy.op_swap == () and not policy.layer_recompute


def test_core_attention_without_flash_attention_is_its_operators():
    (entry,) = convert("--num-layers 8 --recompute-activations", LLAMA_PLAIN).policy.select_recompute
    found = match_pattern(entry.pattern, load_layer_trees(LLAMA_PLAIN, 1).layers[0])
    assert {match.name for match in found} == {
        f"attention.{name}" for name in ("batch_matmul_q_k", "mul", "add", "softmax", "cast_attn", "batch_matmul")
    }


@pytest.mark.parametrize(
    ("text", "recomputed", "inner"),
    [
        ("block --recompute-num-layers 8", None, ()),
        ("block --recompute-num-layers 3", (0, 1, 2), ()),
        ("block", (0,), ()),
        ("block --recompute-num-layers 1 --pipeline-model-parallel-size 4", (0, 2, 4, 6), ()),
        ("uniform", None, ()),
        ("uniform --recompute-num-layers 2", None, (0, 2, 4, 6)),
        ("uniform --recompute-num-layers 3", None, (0, 1, 3, 4, 6)),
        ("uniform --recompute-num-layers 3 --pipeline-model-parallel-size 2", None, (0, 1, 4, 5)),
        ("uniform --recompute-num-layers 8", None, (0, 1, 2, 3, 4, 5, 6)),
    ],
)
def test_full_recompute(text, recomputed, inner):
    policy = convert(f"{FULL} --recompute-method {text}").policy
    assert policy.layer_recompute == Layers(recomputed)
    assert policy.output_recompute == Layers(inner)


def test_distribute_slices_activations():
    text = f"{FULL} --recompute-method block --distribute-saved-activations --tensor-model-parallel-size 2"
    assert convert(text).policy.recompute_slice_activation is True
    assert "MindFormers refuses it" in messages(text, model=QWEN3)[0]


def test_groups_of_the_newer_models_are_refused_with_the_nearest_block():
    text = f"{FULL} --recompute-method uniform --recompute-num-layers 2 --pipeline-model-parallel-size 2"
    (problem,) = convert(text, QWEN3).problems
    assert "cannot compile" in problem.message
    assert problem.fix.startswith("--recompute-method block --recompute-num-layers 4:")
    assert convert(f"{FULL} --recompute-method uniform", QWEN3).problems == ()


# modules


def test_modules_to_offload():
    text = "--num-layers 4 --fine-grained-activation-offloading --offload-modules core_attn attn_proj"
    assert convert(text).policy.op_swap == (
        OpSwap(r"attention\.apply_rotary_emb\.add", ALL_LAYERS, 10),
        OpSwap(r"attention\.transpose", ALL_LAYERS, 10),
        OpSwap(r"attention\.reshape", ALL_LAYERS, 10),
    )
    assert messages(text.replace("attn_proj", "attn_norm"), Level.WARNING) == [
        "--offload-modules: attn_norm: 'add' makes the inputs of both norms, so both are offloaded"
    ]


def test_a_module_without_counterpart_names_what_there_is():
    text = "--num-layers 4 --recompute-granularity selective --recompute-modules layernorm moe_act"
    (problem,) = convert(text).problems
    assert problem.message.endswith("is like 'moe_act'")
    assert problem.allowed == "core_attn, layernorm, mlp"


def test_dense_and_moe_layers_are_told_apart():
    dense = MOE.replace("shared_experts", "other").replace("experts", "linear_fc1")
    mixed = replace(trees(3), layers=(layer(dense), layer(MOE), layer(MOE)))
    text = "--num-layers 3 --recompute-granularity selective --recompute-modules mlp moe shared_experts mla_up_proj"
    policy = convert(text, QWEN3, mixed).policy
    assert policy.select_recompute == (
        OpRecompute("mlp", Layers((0, 1, 2))),
        OpRecompute(r"mlp\.shared_experts", Layers((1, 2))),
        OpRecompute(r"self_attention\.linear_(?:q|kv)_up_proj\..*", ALL_LAYERS),
    )


@pytest.mark.parametrize("model", [LLAMA, LLAMA_PLAIN, QWEN3])
@pytest.mark.parametrize("purpose", ["recompute", "offload"])
def test_every_name_of_the_table_is_one_of_megatron(model, purpose):
    possible = available_modules(purpose, "arch" in model, load_layer_trees(model, 1))
    assert possible and set(possible) <= set(megatron_module_names()[purpose])


# what Megatron refuses


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--num-layers 8", "--recompute-granularity: no option asks for recomputation or offloading"),
        (FULL, "--recompute-granularity: full recompute needs a method"),
        (
            "--num-layers 8 --recompute-activations --recompute-method block",
            "--recompute-method: 'block': selective recompute takes no method",
        ),
        (
            "--num-layers 8 --recompute-activations --recompute-num-layers 1",
            "--recompute-num-layers: 1: selective recompute applies to every layer",
        ),
        ("--recompute-activations", "--num-layers: is needed to know the layers"),
        (
            f"{FULL} --recompute-method block --distribute-saved-activations",
            "--distribute-saved-activations: needs tensor parallel > 1, and it is 1",
        ),
        (
            "--num-layers 8 --recompute-activations --distribute-saved-activations --tensor-model-parallel-size 2",
            "--distribute-saved-activations: needs full recompute, and the granularity is selective",
        ),
        (
            f"{FULL} --recompute-method block --distribute-saved-activations --tensor-model-parallel-size 2 "
            "--sequence-parallel",
            "--distribute-saved-activations: cannot be combined with --sequence-parallel, which shards them already",
        ),
        (
            "--num-layers 8 --recompute-granularity selective --recompute-modules attn",
            "--recompute-modules: attn: no such module",
        ),
        (
            "--num-layers 8 --fine-grained-activation-offloading",
            "--fine-grained-activation-offloading: needs the modules to offload",
        ),
        (
            "--num-layers 8 --fine-grained-activation-offloading --offload-modules attn_proj",
            "--offload-modules: attn_proj needs core_attn: its input is the output of core_attn, "
            "whose gradient keeps it",
        ),
        (
            "--num-layers 8 --recompute-activations --pipeline-model-parallel-layout E|t*4|L",
            "--pipeline-model-parallel-layout: has 4 layers, the model 8; Megatron-LM refuses it too",
        ),
    ],
)
def test_what_is_refused(text, message):
    assert convert(text).policy is None
    assert messages(text) == [message]


def test_everything_is_said_at_once():
    text = "--num-layers 8 --recompute-activations --recompute-method block --distribute-saved-activations"
    assert len(messages(text + " --pipeline-model-parallel-size 3")) == 4


def test_what_megatron_takes_and_ignores_is_a_warning():
    text = f"{FULL} --recompute-activations --offload-modules core_attn"
    assert messages(text) == []
    assert messages(text, Level.WARNING) == [
        "--offload-modules: has no effect without --fine-grained-activation-offloading",
        "--recompute-activations: makes recompute selective, whatever --recompute-granularity says",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--num-layers x", "--num-layers: x is not a number from 1"),
        ("--num-layers 0", "--num-layers: 0 is not a number from 1"),
        ("--num-layers 1.5", "--num-layers: 1.5 is not a number from 1"),
        ("--num-layers 99999999999", "--num-layers: 99999999999 is not a number from 1"),
        ("--num-layers '$N'", "--num-layers: $N is not known without running the script"),
        ("--num-layers", "--num-layers: has no value"),
        ("--recompute-granularity all", "--recompute-granularity: all is not full or selective"),
        ("--recompute-modules '$M'", "--recompute-modules: $M is not known without running the script"),
    ],
)
def test_values_that_do_not_fit(text, message):
    _, (problem,) = read(text)
    assert problem.message == message


def test_a_count_above_a_chunk_takes_what_is_there_as_in_megatron():
    """8 layers on 2 stages: block 5 recomputes the 4 layers of each; uniform 9 on one stage is one group, like 8."""
    block = convert(f"{FULL} --recompute-method block --recompute-num-layers 5 --pipeline-model-parallel-size 2")
    assert block.policy.layer_recompute == Layers(None)
    assert [(p.level, p.message) for p in block.problems] == [
        (Level.WARNING, "--recompute-num-layers: 5: a pipeline stage has 4 layers, so that many are taken")
    ]
    uniform = convert(f"{FULL} --recompute-method uniform --recompute-num-layers 9")
    assert uniform.policy == convert(f"{FULL} --recompute-method uniform --recompute-num-layers 8").policy
    assert uniform.policy.output_recompute == Layers(tuple(range(7)))


def test_layers_that_do_not_divide_are_refused_as_in_megatron():
    made = convert(f"{FULL} --recompute-method block --recompute-num-layers 1 --pipeline-model-parallel-size 3")
    assert [p.message for p in made.problems] == [
        "--pipeline-model-parallel-size: 8 layers cannot be divided by 3 (stages); Megatron-LM refuses it too"
    ]
