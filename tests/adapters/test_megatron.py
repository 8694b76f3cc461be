"""Megatron-LM's options, converted by `mindswap convert` and compiled: what backward runs again and what is kept.

Shapes: sequence 64, hidden 64, 4 heads, float16, batch 1; one hidden state is 64 x 64 x 2 = 8192 bytes.
"""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from mindswap import cli
from tests import forked
from tests.adapters.edits import edited
from tests.adapters.graphs import CASES, QWEN3, compile_jobs, expected, job, pairs_of
from tests.adapters.training import NUM_STEPS, train, write_config
from tests.adapters.training import SMALL as TRAINING
from tests.strength import is_nightly

pytestmark = pytest.mark.mindspore

LAYERS = range(4)
TWO_LAYERS = range(2)
HIDDEN_STATE_BYTES = 64 * 64 * 2
SMALL = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "seq_length": 64, "vocab_size": 260, "multiple_of": 32}
OFF = {"swap_config": {"swap": False}}
BASE = {"swap_config": {"swap": True, "op_swap": []}, "recompute_config": {"recompute": False}}
STAGES = {
    **OFF,
    "parallel_config.pipeline_stage": 2,
    "recompute_config": {"recompute": [1, 0], "select_recompute": {"feed_forward": [2, 1]}},
}
TOLD_APART = ("FlashAttentionScore", "RmsNorm", "SiLU")
FULL = ("--recompute-granularity", "full", "--recompute-method")
TWO_STAGES = ("--pipeline-model-parallel-size", "2")
OFFLOADED = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
# In a model of four layers, where one layer is not as another.
IN_FOUR = {
    "block 1": (*FULL, "block", "--recompute-num-layers", "1", *TWO_STAGES),
    "uniform 2": (*FULL, "uniform", "--recompute-num-layers", "2", *TWO_STAGES),
    "uniform 3": (*FULL, "uniform", "--recompute-num-layers", "3"),
}
# In one of two.
IN_TWO = {
    "selective": ("--recompute-granularity", "selective"),
    "activations": ("--recompute-activations",),
    "uniform 1": (*FULL, "uniform"),
    "distribute": (*FULL, "uniform", "--distribute-saved-activations", "--tensor-model-parallel-size", "2"),
    "modules": ("--recompute-granularity", "selective", "--recompute-modules", "layernorm", "mlp"),
    "offload": ("--fine-grained-activation-offloading", "--offload-modules", *OFFLOADED),
    "swap attention": ("--swap-attention", "--recompute-num-layers", "1"),
    "activation function": ("--recompute-activation-function",),
}
NEWER = {
    "modules": ("--recompute-granularity", "selective", "--recompute-modules", "core_attn", "layernorm", "mlp"),
    "offload": ("--fine-grained-activation-offloading", "--offload-modules", "core_attn", "attn_proj", "mlp_norm"),
    "activation function": ("--recompute-activation-function",),
}


def write(path, config, edits):
    path.write_text(yaml.safe_dump(edited(config, edits)))
    return path


def convert(source, target, *options):
    """One file through the command; a result that `mindswap check` refuses would give 1."""
    assert cli.main(["convert", str(source), *options, "-o", str(target)]) == 0
    return job(target)


def compile_named(base, sources):
    """The plain network and one for each name, all in one process."""
    return dict(zip(["base", *sources], compile_jobs([job(base), *sources.values()]), strict=True))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    config = yaml.safe_load((CASES / "case1_default_swap.yaml").read_text())
    config["model"]["model_config"] |= SMALL
    stages = write(folder / "stages.yaml", config, STAGES)
    # MindFormers recomputes, and mindswap makes the network lazy_inline
    jobs = {"stages": job(stages), "indices": convert(stages, folder / "indices.yaml", "--to", "index")}
    for num_layers, cases in ((4, IN_FOUR), (2, IN_TWO)):
        number = {"model.model_config.num_layers": num_layers}
        source = write(folder / f"source{num_layers}.yaml", config, {**OFF, **number})
        for name, options in cases.items():
            jobs[name] = convert(source, folder / f"{len(jobs)}.yaml", "--from", "megatron", *options)
    compiled = {name: entry for name, entry in jobs.items() if name != "activations"}  # its file is that of another
    results = compile_named(write(folder / "base.yaml", config, {**BASE, **number}), compiled)
    return results | {"files": {name: entry["config"] for name, entry in jobs.items()}}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen3")
    config = edited(yaml.safe_load(QWEN3.read_text()), {"model.model_config.num_hidden_layers": 2})
    source = write(folder / "source.yaml", config, OFF)
    jobs = {
        name: convert(source, folder / f"{name}.yaml", "--from", "megatron", *options)
        for name, options in NEWER.items()
    }
    return compile_named(write(folder / "base.yaml", config, BASE), jobs)


def again(results, name):
    """(layer, cell, primitive) -> how often backward runs it again because of the options."""
    plain = Counter(map(tuple, results["base"]["recomputed"]))
    return Counter(map(tuple, results[name]["recomputed"])) - plain


def matmuls(results, name):
    """Layer -> products that backward runs again."""
    counts = Counter()
    for (layer, _, primitive), count in again(results, name).items():
        counts[layer] += count * (primitive == "MatMul")
    return +counts


def kept(results, name):
    return {int(layer): size for layer, size in results[name]["kept"].items()}


def test_selective_recomputes_core_attention_of_every_layer(llama):
    attention = {(layer, "attention.flash_attention", "FlashAttentionScore"): 1 for layer in TWO_LAYERS}
    assert again(llama, "selective") == attention
    assert Path(llama["files"]["activations"]).read_text() == Path(llama["files"]["selective"]).read_text()
    # Not kept any more: maximum and sum of softmax (4 heads x 64 x 8 float32 each), 2 bytes, and the output.
    freed = 2 * 4 * 64 * 8 * 4 + 2 + HIDDEN_STATE_BYTES
    assert kept(llama, "selective") == {layer: size - freed for layer, size in kept(llama, "base").items()}


def test_block_recomputes_the_first_layer_of_each_stage(llama):
    # Stages have layers 0-1 and 2-3. Of 7 products that of w2 makes the output, which is kept.
    assert matmuls(llama, "block 1") == {0: 6, 2: 6}
    _first, last = kept(llama, "base").values()
    assert kept(llama, "block 1") == {0: HIDDEN_STATE_BYTES, 1: last, 2: HIDDEN_STATE_BYTES, 3: last}


def test_uniform_1_keeps_one_hidden_state_per_layer(llama):
    assert matmuls(llama, "uniform 1") == dict.fromkeys(TWO_LAYERS, 6)
    assert kept(llama, "uniform 1") == dict.fromkeys(TWO_LAYERS, HIDDEN_STATE_BYTES)


def test_uniform_n_keeps_one_hidden_state_per_group(llama):
    # Groups 0-1 and 2-3: the first layer of each runs again to its end, all 7 products, and only once.
    assert matmuls(llama, "uniform 2") == {0: 7, 1: 6, 2: 7, 3: 6}
    assert kept(llama, "uniform 2") == {1: HIDDEN_STATE_BYTES, 3: HIDDEN_STATE_BYTES}
    # Groups 0-2 and 3.
    assert matmuls(llama, "uniform 3") == {0: 7, 1: 7, 2: 6, 3: 6}
    assert kept(llama, "uniform 3") == {2: HIDDEN_STATE_BYTES, 3: HIDDEN_STATE_BYTES}


def test_distribute_marks_every_layer_to_be_sliced(llama):
    """MindSpore's parallel pass cuts what is marked; it does not run for a CPU, so the bytes here are still whole."""
    assert llama["distribute"]["sliced"] == list(TWO_LAYERS)
    assert llama["uniform 1"]["sliced"] == []
    assert llama["distribute"]["recomputed"] == llama["uniform 1"]["recomputed"]
    assert kept(llama, "distribute") == kept(llama, "uniform 1")


def test_modules_are_recomputed_and_nothing_else(llama):
    found = again(llama, "modules")
    assert {(layer, cell.partition(".")[0]) for layer, cell, _ in found} == {
        (layer, cell) for layer in TWO_LAYERS for cell in ("attention_norm", "ffn_norm", "feed_forward")
    }
    for layer in TWO_LAYERS:
        assert found[layer, "attention_norm", "RmsNorm"] == found[layer, "ffn_norm", "RmsNorm"] == 1
    assert matmuls(llama, "modules") == dict.fromkeys(TWO_LAYERS, 2)  # w1 and w3; w2 makes the output of mlp


def test_inputs_of_modules_are_offloaded_and_nothing_else(llama):
    inputs = [
        ("attention.wq", "Reshape"),  # qkv_linear
        ("attention.apply_rotary_emb", "Add"),  # core_attn: query
        ("attention.apply_rotary_emb", "Add"),  # key
        ("attention", "Transpose"),  # value
        ("attention.wo", "Reshape"),  # attn_proj
        ("", "Add"),  # mlp_norm
        ("", "Add"),  # attn_norm of the next layer
    ]
    assert pairs_of(llama["offload"]) == expected((TWO_LAYERS, 1, inputs))
    assert again(llama, "offload") == {}


def test_options_of_mindspeed(llama):
    """What attention saves is offloaded in every layer, and the MLP of the first is recomputed; or the activation."""
    offloaded = pairs_of(llama["swap attention"])
    assert {layer for layer, *_ in offloaded} == {*TWO_LAYERS}
    assert {cell.partition(".")[0] for _, cell, *_ in offloaded} == {"attention"}
    assert matmuls(llama, "swap attention") == {0: 2}  # w1 and w3; w2 makes the output
    found = {key: count for key, count in again(llama, "activation function").items() if key[2] in ("Mul", "SiLU")}
    cells = [("feed_forward.w1.activation", "SiLU"), ("feed_forward", "Mul")]
    assert found == {(layer, *cell): 1 for layer in TWO_LAYERS for cell in cells}
    assert matmuls(llama, "activation function") == {}
    # Not kept any more: the outputs of SiLU and of the product, 64 x 192 x 2 bytes each.
    freed = 2 * 64 * 192 * 2
    assert kept(llama, "activation function") == {layer: size - freed for layer, size in kept(llama, "base").items()}


def test_counts_per_stage_and_the_indices_made_of_them_compile_to_the_same(llama):
    # Stages have layers 0-1 and 2-3: layer 0 whole, the product of layers 1 and 2.
    assert llama["stages"]["recomputed"] == llama["indices"]["recomputed"]
    assert kept(llama, "stages") == kept(llama, "indices")
    assert kept(llama, "indices")[0] == HIDDEN_STATE_BYTES
    products = {key for key in again(llama, "indices") if key[1:] == ("feed_forward", "Mul")}
    assert products == {(layer, "feed_forward", "Mul") for layer in (0, 1, 2)}


@pytest.mark.parametrize("name", ["indices", "uniform 2"] if is_nightly() else ["uniform 2"])
def test_verify_says_so_too(llama, name):
    command = ["-m", "mindswap", "verify", "--no-cache", llama["files"][name]]
    result = forked.run(command)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "the compiled graph follows the policy: 0 MoveTo pairs" in result.stdout


def test_modules_of_the_newer_models(qwen3):
    # The compiler leaves operators of functions that the model calls in many places without a cell.
    found = {key: count for key, count in again(qwen3, "modules").items() if key[1] and key[2] in TOLD_APART}
    cells = [
        ("self_attention.core_attention", "FlashAttentionScore"),
        ("input_layernorm", "RmsNorm"),
        ("pre_mlp_layernorm", "RmsNorm"),
        ("mlp.activation_func", "SiLU"),
    ]
    assert found == {(layer, *cell): 1 for layer in TWO_LAYERS for cell in cells}
    inputs = [
        *[("self_attention.core_attention", "Transpose")] * 3,  # query, key, value
        ("self_attention.linear_proj", "Reshape"),  # attn_proj
        *[("", "AddExt")] * 2,  # mlp_norm and attn_norm: one operator
    ]
    assert pairs_of(qwen3["offload"]) == expected((TWO_LAYERS, 1, inputs))


def test_the_activation_function_of_the_newer_models(qwen3):
    found = {
        key: count for key, count in again(qwen3, "activation function").items() if key[1] and key[2] in TOLD_APART
    }
    assert found == {(layer, "mlp.activation_func", "SiLU"): 1 for layer in TWO_LAYERS}
    freed = 2 * 64 * 128 * 4  # the outputs of SiLU and of the product, float32
    assert kept(qwen3, "activation function") == {layer: size - freed for layer, size in kept(qwen3, "base").items()}


def test_groups_of_layers_change_no_loss_and_no_weight(data, tmp_path):
    """Trained for real on CPU: ten steps, four layers, with the second group as `uniform 3` leaves it."""
    groups = {
        "swap_config": {"swap": True, "op_swap": []},
        "recompute_config": {"recompute": True},
        "mindswap": {"cpu_stand_ins": True, "output_recompute": [0, 1]},
    }
    runs = []
    for name, edits in (("plain", OFF), ("groups", groups)):
        config = write_config(tmp_path / name, {**TRAINING, "model.model_config.num_layers": 4, **edits})
        runs.append(train(tmp_path / name, config, data, fork=True))
        assert runs[-1].exit_code == 0, runs[-1].log[-3000:]
    plain, grouped = runs
    assert len(plain.losses) == NUM_STEPS and grouped.losses == plain.losses
    assert grouped.weights == plain.weights
    assert grouped.set_lines == [
        "Set full recompute at layer 0, with its output",
        "Set full recompute at layer 1, with its output",
        "Set full recompute at layer 2",
        "Set full recompute at layer 3",
    ]
