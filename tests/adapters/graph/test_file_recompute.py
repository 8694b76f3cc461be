"""With swap off a few layers of a Llama are compiled, and tell the same as all of them."""

import json
from pathlib import Path

import pytest
import yaml

from tests import forked

ROOT = Path(__file__).resolve().parents[3]
CPU_CASE = ROOT / "configs" / "llama2_7b" / "cpu" / "case4_swap_and_recompute.yaml"

# The network without recompute is compiled once for both commands: the tags that only `inspect` needs change no size.
SCRIPT = """
import json, sys
from mindswap.adapters.quiet import quiet
from mindswap.config.weight_sharding import place_rank
from mindswap.config.source import load_document
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.policy.model import Policy
from mindswap.features.verify.report import recompute_effect_to_json
from mindswap.features.inspect.report import memory_to_json
from mindswap.features import inspect, verify
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
with quiet():
    from mindswap.adapters.graph import layer_choice, mindformers
path = sys.argv[1]
document = load_document(path)
asked = expand_stage_recompute(document, 6).policy
compile_network = mindformers.capture

def answer():
    with quiet():
        own = compile_network(path, Policy())
        plain = compile_network(path, Policy(is_swap_enabled=True), own.sample, with_tags=True)
    mindformers.capture = lambda _, policy, *rest, **options: plain if policy.is_swap_enabled else own
    report = memory_to_json(inspect.inspect_config(load_document(path), Policy(), use_cache=False))
    effects, compiled = verify.verify_recompute(load_document(path), asked, use_cache=False)
    sample = compiled.sample
    return [sample.indices, sample.layer_map, report, recompute_effect_to_json(effects, True, ())]

sampled = answer()
choose_representative_layers = layer_choice.choose_representative_layers
layer_choice.choose_representative_layers = lambda kinds, with_peak: LayerSample(tuple(range(6)), tuple(range(6)))
stages = []
whole = answer()
mindformers.capture, layer_choice.choose_representative_layers = compile_network, choose_representative_layers
for rank in (0, 2):
    with quiet():
        placement = place_rank(document, rank, 6)
        effects, compiled = verify.verify_recompute(document, asked, placement, use_cache=False)
    stages.append([compiled.sample.indices, recompute_effect_to_json(effects, True, ())["layers"]])
print(json.dumps([sampled, whole, stages]))
"""


@pytest.mark.mindspore
def test_a_sample_tells_the_same_as_all_layers(tmp_path):
    # Three stages of two layers. Whole: the first of each. feed_forward: both, of which the first is whole. So
    # w f w f w f: layers 3 and 4 are as 1 and 2, between the same neighbours, and are not compiled.
    config = yaml.safe_load(CPU_CASE.read_text())
    config["model"]["model_config"] |= {"num_layers": 6}
    config["parallel_config"] |= {"data_parallel": 1, "pipeline_stage": 3, "micro_batch_num": 3}
    config["swap_config"] = {"swap": False}
    config["recompute_config"] = {"recompute": [1, 1, 1], "select_recompute": {"feed_forward": [2, 2, 2]}}
    path = tmp_path / "mixed.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    command = ["-c", SCRIPT, str(path)]
    result = forked.run(command, cwd=ROOT, timeout=1800)
    assert result.returncode == 0, result.stderr
    sampled, whole, stages = json.loads(result.stdout)
    assert sampled[:2] == [[0, 1, 2, 5], [0, 1, 2, 1, 2, 3]]
    assert whole[0] == [0, 1, 2, 3, 4, 5]
    assert sampled[2:] == whole[2:]
    # A layer keeps 833 KiB, 4 x 96 KiB of them in feed_forward; fully recomputed its input of 32 KiB (test_verify).
    part = 833 - 4 * 96
    assert [layer["kept_bytes"] // 1024 for layer in sampled[3]["layers"]] == [32, part] * 3
    # One rank of a stage has its layers only, each as in the whole model.
    assert [indices for indices, _ in stages] == [[0, 1], [4, 5]]
    assert [layer for _, layers in stages for layer in layers] == [whole[3]["layers"][index] for index in (0, 1, 4, 5)]


INTERLEAVED = {"pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}}


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("parallel", "model", "recompute", "whole"),
    [
        # Stage 0 has layers 0 to 4, stage 1 has 5 to 7.
        ({}, {"offset": [1, -1]}, [2, 1], [0, 1, 5]),
        # Chunk 0 has layers 0 and 1 on stage 0, 2 and 3 on stage 1; chunk 1 the others.
        (INTERLEAVED, {"pp_interleave_num": 2}, [[1, 2], [0, 1]], [0, 2, 3, 6]),
    ],
)
def test_counts_of_a_newer_model_are_of_its_stages_and_chunks(tmp_path, parallel, model, recompute, whole):
    config = yaml.safe_load((ROOT / "tests" / "data" / "qwen3_small.yaml").read_text())
    config["model"]["model_config"] |= {"num_hidden_layers": 8, **model}
    config["parallel"] |= parallel
    config["parallel_config"] = {"pipeline_stage": 2, "micro_batch_num": 4}
    config["recompute_config"], config["swap_config"] = {"recompute": recompute}, {"swap": False}
    path = tmp_path / "counts.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    result = forked.run(["-m", "mindswap", "inspect", path, "--json"], cwd=ROOT)
    assert result.returncode == 0, result.stderr
    layers = [layer for layer in json.loads(result.stdout)["layers"] if layer["layer"] is not None]
    assert [layer["layer"] for layer in layers if layer["recomputed_bytes"]] == whole
