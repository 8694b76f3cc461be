"""`mindswap run` with pipeline stages of MindFormers 2.1.0's trainer: two workers of msrun on a CPU."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mindswap.runtime.crashes import is_training_over
from mindswap.runtime.msrun import free_port
from tests.features.dryrun.test_trainer_on_backend import has_mindformers_2x
from tests.features.run.samples_2x import CPU_TYPES, write_samples
from tests.features.run.test_pynative_2x import STEP

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.mindformers2,
    pytest.mark.skipif(not has_mindformers_2x(), reason="make test-2x runs it where MindFormers 2.x is"),
]

LAUNCHER = Path(__file__).parents[3] / "scripts/msrun_launch.sh"
SET = Path(__file__).parents[3] / "benchmarks/dryrun/trainer_set.yaml"
LENGTH, NUM_TOKENS, NUM_STEPS, NUM_MICRO_BATCHES, NUM_STAGES = 16, 64, 2, 3, 2


def pipeline_model(folder: Path, own_swap: bool) -> Path:
    """A DeepSeek-V3 with latent attention and without experts: the Qwen3 of 2.1.0 has no stages."""
    cases = yaml.safe_load(SET.read_text("utf-8"))
    config = cases["base"] | {"checkpoint": {"enable_save": False, "no_load_optim": True}}
    config["model"] |= cases["models"]["deepseek3"] | CPU_TYPES | {
        "vocab_size": NUM_TOKENS, "seq_length": LENGTH, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 4, "num_attention_heads": 2, "kv_lora_rank": 16, "q_lora_rank": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 8, "qk_nope_head_dim": 8, "first_k_dense_replace": 4,
    }  # fmt: skip
    batches = {"local_batch_size": 1, "global_batch_size": NUM_MICRO_BATCHES}
    config["training"] |= {"steps": NUM_STEPS, "deterministic": False, **batches}
    stages = {"pipeline_parallel": NUM_STAGES, "pipeline_parallel_layers_per_stage": "auto"}
    config["parallelism"] = {"data_parallel_shard": -1, **stages}
    config["train_dataset"] = write_samples(folder, NUM_MICRO_BATCHES * (NUM_STEPS + 1), LENGTH, NUM_TOKENS)
    config["mindswap"] = {"cpu_stand_ins": True}
    config["recompute"] = {"mode": "full", "full_recompute_layer": [2]}
    if own_swap:
        entries = [{"layers": ["0-2"]}, {"layers": [3], "prefetch": 2}]
        config["swap"] = {"enable": True, "default_prefetch": 1, "layer_swap": entries}
        config["mindswap"] |= {"swap_engine": "mindswap", "audit_swap": True}
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def train(folder: Path, own_swap: bool) -> list[str]:
    """Logs of both workers."""
    folder.mkdir()
    file = pipeline_model(folder, own_swap)
    order = shlex.join(
        ["run_mindformer.py", "--config", str(file), "--device_target", "CPU", "--output_dir", str(folder)]
    )
    command = ["bash", str(LAUNCHER), order, str(NUM_STAGES), str(free_port()), "log_msrun", "True", "300"]
    environment = {**os.environ, "PYTHON": sys.executable}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)
    logs = [(folder / f"log_msrun/worker_{rank}.log").read_text("utf-8") for rank in range(NUM_STAGES)]
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-1000:] + logs[0][-2000:] + logs[1][-2000:]
    return logs


def test_two_stages_train_to_the_digits_of_the_training_without_swap(tmp_path):
    """1F1B: the first stage has two micro-batches in flight."""
    plain, swapped = train(tmp_path / "plain", False), train(tmp_path / "swapped", True)
    steps = STEP.findall(plain[1])
    assert len(steps) == NUM_STEPS and len({loss for _, loss, _ in steps}) == NUM_STEPS
    assert STEP.findall(swapped[1]) == steps
    assert "exec_order: [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2)]" in swapped[0]
    first, last = (json.loads((tmp_path / f"swapped/swap/rank_{rank}.json").read_text("utf-8")) for rank in (0, 1))
    # A crash of MindSpore after this is no failure of the training.
    assert is_training_over(tmp_path / "plain/log_msrun", (0, 1))
    assert is_training_over(tmp_path / "swapped/log_msrun", (0, 1))
    # Layer 2 is in the second stage: the first one is not asked for its line.
    assert not any("MindFormers did not log" in log or "have no effect" in log for log in (*plain, *swapped))
    assert "set as `mindswap explain` shows: 1 lines" in swapped[1]
    # The first pass is recorded, and the second one of the first stage begins before its backward.
    assert (first["num_passes"], first["num_in_flight"]) == (NUM_STEPS * NUM_MICRO_BATCHES - 2, 2)
    assert (last["num_passes"], last["num_in_flight"]) == (NUM_STEPS * NUM_MICRO_BATCHES - 1, 1)
    for report in (first, last):
        assert report["is_as_predicted"] and report["offloaded_bytes"] == report["prefetched_bytes"] > 0
    assert first["peak_device_bytes"] < first["peak_without_swap_bytes"]
