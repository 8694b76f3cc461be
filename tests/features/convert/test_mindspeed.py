"""Options of MindSpeed: the launch scripts of MindSpeed-LLM, and where its counts of layers lead."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.config.problem import Level, Location
from mindswap.features.convert import MegatronSource, convert_config
from mindswap.policy.formats.megatron.options import MegatronOptions, option_name, read_options, read_tokens
from mindswap.policy.formats.megatron.other_options import find_other_options
from mindswap.policy.formats.megatron.placement import PlacementError, place_layers
from mindswap.policy.formats.megatron.policy import policy_of_megatron
from tests.builders import trees
from tests.features.convert.outcomes import outcome

SCRIPTS = yaml.safe_load((Path(__file__).parents[2] / "data/mindspeed_llm.yaml").read_text("utf-8"))


def script(folder, options):
    path = folder / "run.sh"
    path.write_text(f"torchrun pretrain_gpt.py {options}\n", "utf-8")
    return str(path)


@pytest.mark.parametrize("row", SCRIPTS, ids=lambda row: f"{row['family']} {row['options']}"[:120])
def test_what_the_scripts_of_mindspeed_llm_ask_for(row, tmp_path):
    assert outcome(script(tmp_path, row["options"]), row["family"]) == row["result"]


# Where counts lead, from the two lines of MindSpeed that decide it.


def recomputed_by_mindspeed(num_layers, num_stages, num_chunks, count, *, is_per_stage, noop_layers):
    """`(layer_idx * vpp_size + vpp_rank) < recompute_num_layers` of core/memory/common.py, for each stage and chunk."""
    found, per_chunk = set(), num_layers // num_stages // num_chunks
    for stage in range(num_stages):
        for chunk in range(num_chunks):
            for layer_idx in range(per_chunk):
                vpp_size, vpp_rank = (num_chunks, chunk) if is_per_stage else (1, 0)
                if layer_idx * vpp_size + vpp_rank < count:
                    found.add(chunk * num_stages * per_chunk + stage * per_chunk + layer_idx)
    real = [layer for layer in range(num_layers) if layer not in noop_layers]
    return {index for index, layer in enumerate(real) if layer in found}


@settings(max_examples=200)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.booleans(), st.data())
def test_counts_lead_where_mindspeed_has_them(num_stages, num_chunks, per_chunk, count, is_per_stage, data):
    num_layers = num_stages * num_chunks * per_chunk
    noop_layers = data.draw(st.sets(st.integers(0, num_layers - 1), max_size=min(3, num_layers - 1)))
    options = MegatronOptions(
        recompute_granularity="full",
        recompute_method="block",
        recompute_num_layers=count,
        num_layers=num_layers,
        pipeline_model_parallel_size=num_stages,
        num_virtual_stages_per_pipeline_rank=num_chunks,
        enable_recompute_layers_per_pp_rank=is_per_stage,
        noop_layers=tuple(noop_layers) or None,
    )
    made = policy_of_megatron(options, True, None, 1)
    expected = recomputed_by_mindspeed(
        num_layers, num_stages, num_chunks, count, is_per_stage=is_per_stage, noop_layers=noop_layers
    )
    assert {*made.policy.layer_recompute.resolve(num_layers - len(noop_layers))} == expected


def test_the_example_of_mindspeed(tmp_path):
    """Of its comment: 8 layers, 2 stages of 2 chunks; 3 layers are 0, 1, 4 of stage 0, and 2, 3, 6 of stage 1."""
    options = (
        "--num-layers 8 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
        "--recompute-granularity full --recompute-method block --enable-recompute-layers-per-pp-rank "
        "--recompute-num-layers 3"
    )
    assert outcome(script(tmp_path, options), "llama") == ["recompute: layers 0-4, 6"]


def test_the_last_layer_is_left_out_of_what_in_advance_means_only(tmp_path):
    """--recompute-in-advance is about whole layers and MLPs: experts of --moe-zero-memory keep their own count."""
    options = (
        "--num-layers 4 --pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method block "
        "--recompute-num-layers 1 --recompute-in-advance --moe-zero-memory level1 --moe-zero-memory-num-layers 2"
    )
    assert outcome(script(tmp_path, options), "qwen3_moe") == [
        "recompute: layers 0, 2", r"select_recompute mlp: layers 1, 3",
    ]  # fmt: skip


# Places of layers.


def read(text):
    tokens = read_tokens(text.split())
    options, problems = read_options(tokens, dict.fromkeys(tokens, Location("command line")))
    assert problems == ()
    return options


@pytest.mark.parametrize(
    ("text", "sizes", "model_sizes"),
    [
        ("--num-layers 8 --pipeline-model-parallel-size 2 --noop-layers 0,7", ((4, 4),), ((3, 3),)),
        ("--num-layers 9 --pipeline-model-parallel-size 2 --num-layer-list 5,4", ((5, 4),), ((5, 4),)),
        ("--num-layers 8 --pipeline-model-parallel-size 2 --schedules-method dualpipev", ((2, 2), (2, 2)), None),
        ("--num-layers 7 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4|t*3L", ((4, 3),), None),
        (
            "--num-layers 9 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|(tt|)*2,t*4mL",
            ((1, 2), (2, 4)),
            None,
        ),
    ],
)
def test_where_the_layers_are(text, sizes, model_sizes):
    options = read(text)
    placement = place_layers(options, options.num_layers)
    assert placement.layout.sizes == sizes
    assert placement.model_sizes == (model_sizes or sizes)


def test_the_second_chunk_of_dualpipev_visits_the_stages_in_reverse():
    options = read("--num-layers 8 --pipeline-model-parallel-size 2 --schedules-method dualpipev")
    stages = [(cell.stage, *cell.layers) for cell in place_layers(options, 8).layout.cells()]
    assert stages == [(0, 0, 1), (1, 2, 3), (1, 4, 5), (0, 6, 7)]


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("--noop-layers 8", "noop_layers", "8: layers are 0 to 7"),
        ("--noop-layers 0,1,2,3,4,5,6,7", "noop_layers", "no layer is left"),
        ("--num-layer-list 5,4 --pipeline-model-parallel-size 2", "num_layer_list", "5,4: 2 stages with 9 layers"),
        ("--num-layer-list 8", "num_layer_list", None),
        ("--schedules-method dualpipev", "schedules_method", "needs more than one stage"),
        ("--schedules-method dualpipev --pipeline-model-parallel-size 3", "schedules_method", "cannot be divided by 6"),
        ("--pipeline-model-parallel-layout Et*8Lx", "pipeline_model_parallel_layout", "'x': only E, t, m, L"),
        ("--pipeline-model-parallel-layout t*9999*9999", "pipeline_model_parallel_layout", "has more than 10000"),
        (
            "--pipeline-model-parallel-layout Et*4|t*4|L --pipeline-model-parallel-size 2",
            "pipeline_model_parallel_layout",
            "3 parts cannot be divided by 2",
        ),
    ],
)
def test_places_that_are_refused(text, field, message):
    options = read(text)
    if message is None:
        assert place_layers(options, 8).layout.sizes == ((8,),)
        return
    with pytest.raises(PlacementError, match=message) as caught:
        place_layers(options, 8)
    assert caught.value.field == field


def test_config_of_another_pipeline_says_which_offset_it_needs(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "model:\n  arch: {type: LlamaForCausalLM}\n  model_config: {type: LlamaConfig, num_layers: 6, "
        "use_flash_attention: True}\nparallel_config: {pipeline_stage: 2}\n"
    )
    options = "--num-layers 8 --noop-layers 0,1 --pipeline-model-parallel-size 2 --recompute-granularity full "
    source = MegatronSource({}, script(tmp_path, f"{options} --recompute-method block --recompute-num-layers 2"))
    made = convert_config(str(config), source)
    assert made.data["sections"]["recompute_config"]["recompute"] == [2, 3]
    fixes = [problem.fix for problem in made.problems if "the stages are not those" in problem.message]
    assert len(fixes) == 1 and fixes[0].startswith("pipeline_stage: 2, offset: [-1, 1]; or ")


# What has no counterpart.


def test_an_option_about_memory_is_never_silent(tmp_path):
    """Known without a counterpart, not known, and misspelled: each with its line."""
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun pretrain_gpt.py --num-layers 8 --recompute-activations \\\n  --smart-swap \\\n"
        "  --offload-everything --enable-share-memory --lr 1 --pipeline-model-parallel-siz 2 --reuse-fp32-param\n"
    )
    options = find_other_options(path.read_text().split())
    assert [(option.name, option.level) for option in options] == [
        ("--smart-swap", Level.ERROR), ("--offload-everything", Level.ERROR),
        ("--pipeline-model-parallel-siz", Level.WARNING), ("--reuse-fp32-param", Level.WARNING),
    ]  # fmt: skip
    assert outcome(str(path), "llama") == [
        "error: --smart-swap: has no counterpart in MindFormers", "error: --offload-everything: is not known",
    ]  # fmt: skip


def test_the_optimizer_of_config_keeps_what_it_has(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "model:\n  arch: {type: LlamaForCausalLM}\n  model_config: {type: LlamaConfig, num_layers: 6}\n"
        "optimizer:\n  type: AdamW  # as before\n  eps: 1.e-8\nswap_config: {swap: False}\n"
    )
    made = convert_config(str(config), MegatronSource({}, script(tmp_path, "--num-layers 6 --swap-optimizer")))
    assert "  type: AdamW  # as before\n  eps: 1.e-8\n  swap: True\n" in made.text
    assert "swap_config: {swap: False}\n" in made.text


def test_what_whole_layers_recompute_is_not_written_twice():
    options = read("--num-layers 2 --recompute-granularity full --recompute-method uniform --recompute-norm")
    made = policy_of_megatron(options, True, trees(2), 1)
    warnings = [problem.message for problem in made.problems]
    assert warnings == [f"{option_name('recompute_norm')}: has no effect: all its layers are fully recomputed"]
