"""Simulated memory against MindSpore's own dry run of its Ascend backend: `Used peak memory usage (without fragments)`.

Recorded on 2026-11-23 with mindspore 2.9.0 and mindformers 1.9.0, x86-64, 8 ranks, rank 0, the form of a server, of
`configs/llama2_7b/case4_swap_and_recompute.yaml` with these changes. A dry run has no workspaces.
"""

from pathlib import Path

import pytest
import yaml

from benchmarks.dryrun.compare import FOLDER, configuration
from tests.forked import run

pytestmark = pytest.mark.mindspore

CASE = Path("configs/llama2_7b/case4_swap_and_recompute.yaml")
CODE = """
import sys, mindswap
step = mindswap.load_step(sys.argv[1]).simulate().simulated
stage = int(sys.argv[2]) if len(sys.argv) > 2 else 0
static = step.static[stage]
print(step.activation_bytes[stage] + static.total_bytes - static.workspace_bytes)
"""
OFF = {"swap_config": {"swap": False}, "recompute_config": {"recompute": False}}
SMALL = {"hidden_size": 1024, "num_heads": 16, "num_layers": 8, "batch_size": 4}
PIPELINE = {"pipeline_stage": 2, "model_parallel": 2, "data_parallel": 2, "micro_batch_num": 4, "vocab_emb_dp": False}


@pytest.mark.parametrize(
    ("changes", "model", "parallel", "recorded_mib", "least", "most"),
    [
        # The peak is in the loss: OneHot of labels is there from the begin on, and sums end fused kernels.
        (OFF, {}, {}, 8816, 0.99, 1.01),
        # At the end of backward: gradients in float32 stay beside what their communication gives.
        ({**OFF, "recompute_config": {"recompute": True}}, {}, {}, 7917, 0.99, 1.02),
        # Likewise, though the backend has 16 of 29 ReduceScatters only after that.
        ({}, {}, {}, 7661, 0.99, 1.05),
        (OFF, SMALL, {}, 12239, 0.99, 1.01),
        # The mask of all micro-batches is in both. Simulated is one more tensor that was received, and one more sent.
        (OFF, SMALL, PIPELINE, 4016, 1.0, 1.02),
        # MindFormers resets vocab_emb_dp in a pipeline.
        (OFF, SMALL, {**PIPELINE, "vocab_emb_dp": True}, 4016, 1.0, 1.02),
    ],
    ids=["off", "full recompute", "swap and recompute", "small, off", "pipeline and tensor parallel, off", "reset"],
)
def test_the_first_stage_is_as_in_the_dry_run(tmp_path, changes, model, parallel, recorded_mib, least, most):
    config = yaml.safe_load(CASE.read_text())
    config.update(changes)
    config["model"]["model_config"].update(model)
    config["parallel_config"].update(parallel)
    if model:
        config["runner_config"]["batch_size"] = model["batch_size"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    simulated = int(run(["-c", CODE, path], check=True).stdout.split()[-1])
    assert least <= simulated / 2**20 / recorded_mib <= most


PARTS = {
    "hidden_size": 1024, "num_heads": 8, "num_layers": 4, "seq_length": 1024, "vocab_size": 4096, "batch_size": 1,
    "param_init_type": "float16", "compute_dtype": "bfloat16",
}  # fmt: skip


def test_interleaved_parts_of_a_micro_batch_are_one_pass_without_accumulators(tmp_path):
    """Full recompute, data 4, tensor 2, two parts: 241 MiB in a dry run of 2026-11-29; as two micro-batches 313."""
    config = yaml.safe_load(CASE.read_text())
    config.update({**OFF, "recompute_config": {"recompute": True}, "micro_batch_interleave_num": 2})
    config["model"]["model_config"].update(PARTS)
    config["parallel_config"].update(data_parallel=4, model_parallel=2)
    config["runner_config"]["batch_size"] = 1
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    simulated = int(run(["-c", CODE, path], check=True).stdout.split()[-1])
    assert 0.99 <= simulated / 2**20 / 241 <= 1.04


QWEN3 = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "seq_length": 4096, "max_position_embeddings": 4096,
    "compute_dtype": "bfloat16",
}  # fmt: skip


def test_the_embedding_of_a_newer_model_is_cut_over_tensor_and_data_parallel_ranks(tmp_path):
    """Qwen3 of 4 layers, tensor 2, data 4, jit_level O0: 11066 MiB, of which 2885 are weights and states."""
    config = yaml.safe_load(Path("tests/data/qwen3_small.yaml").read_text())
    config["model"]["model_config"].update(QWEN3)
    config["swap_config"] = {"swap": False}
    config["parallel_config"].update(data_parallel=4, model_parallel=2)
    config["parallel"].update(enable_parallel_optimizer=True, full_batch=True)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    simulated = int(run(["-c", CODE, path], check=True).stdout.split()[-1])
    assert 0.99 <= simulated / 2**20 / 11066 <= 1.01


@pytest.mark.parametrize(
    ("name", "recorded_mib"),
    [
        # In the loss: casts of the weights of all layers are there, though the layers run again.
        ("llama optimizer_whole full", 1761),
        # In steps that swap these casts run again.
        ("llama optimizer_whole mixed", 1778),
        ("qwen3_moe select_mlp mlp_10", 646),
        # As the optimizer begins: products of gradients beside what they are of.
        ("qwen3 pp2_tp2 layers_10", 421),
        # At the end of backward, or a little later; gradients of `linear_fc1` are cut.
        ("telechat3 full", 675),
        # Distances count Reshapes, and what redistributes tensors: 774 MiB if they count kernels.
        ("llama tp2 sp ops_10", 711),
        # The head is sharded over data parallel ranks, and the embedding by the parallel optimizer.
        ("glm4", 3384),
    ],
)
def test_a_row_of_the_declared_set_is_as_in_the_dry_run(tmp_path, name, recorded_mib):
    declared = yaml.safe_load((FOLDER / "set.yaml").read_text())
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(configuration(declared, name)))
    simulated = int(run(["-c", CODE, path], check=True).stdout.split()[-1])
    assert 0.99 <= simulated / 2**20 / recorded_mib <= 1.03


@pytest.mark.parametrize(
    ("name", "stage", "recorded_mib", "least"),
    [
        # The layer for multi-token prediction is recomputed with the last layer: 765 MiB if it is not. The last stage
        # trains an embedding of its own: 701 MiB if it does not.
        ("deepseek pp2_tp2 of_1_of_2", 1, 728, 0.99),
        # Both losses take turns: 545 MiB one after the other. Zeros that gradients are added to are missing.
        ("deepseek optimizer_cut", 0, 595, 0.96),
    ],
)
def test_the_loss_of_multi_token_prediction_is_as_in_the_dry_run(tmp_path, name, stage, recorded_mib, least):
    declared = yaml.safe_load((FOLDER / "set.yaml").read_text())
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(configuration(declared, name)))
    simulated = int(run(["-c", CODE, path, str(stage)], check=True).stdout.split()[-1])
    assert least <= simulated / 2**20 / recorded_mib <= 1.03
