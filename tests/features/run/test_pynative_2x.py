"""`mindswap run` with the PyNative trainer of MindFormers 2.1.0, on a CPU."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mindswap import cli
from mindswap.features.run import pynative_2x
from tests.features.dryrun.test_trainer_on_backend import SMALL, has_mindformers_2x
from tests.features.run.samples_2x import CPU_TYPES, write_samples

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.mindformers2,
    pytest.mark.skipif(not has_mindformers_2x(), reason="make test-2x runs it where MindFormers 2.x is"),
]

LENGTH, NUM_TOKENS, NUM_STEPS = 32, 256, 5
# `loss:   6.243463, ..., grad_norm:   1.279254,` in the line of a step
STEP = re.compile(r"step:\[ *(\d+)/.*?loss: *([\d.]+),.*?grad_norm: *([\d.]+),")


def small_model(folder: Path, mindswap: dict) -> Path:
    config = yaml.safe_load(SMALL.read_text("utf-8"))
    config["model"] |= CPU_TYPES | {
        "vocab_size": NUM_TOKENS, "seq_length": LENGTH, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    }  # fmt: skip
    config["training"] |= {"steps": NUM_STEPS, "local_batch_size": 2, "global_batch_size": 2, "deterministic": False}
    config["checkpoint"] = {"enable_save": False, "no_load_optim": True}
    config["train_dataset"] = write_samples(folder, 3 * NUM_STEPS, LENGTH, NUM_TOKENS)
    config["swap"]["layer_swap"] = [{"layers": ["0-1"]}]
    if "swap_engine" in mindswap:
        config["swap"]["layer_swap"] += [{"layers": [2], "prefetch": 2}]
    config["mindswap"] = {"cpu_stand_ins": True, **mindswap}
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def train(folder: Path, mindswap: dict) -> str:
    folder.mkdir()
    file = small_model(folder, mindswap)
    words = ["-m", "mindswap", "run", "--config", str(file), "--device_target", "CPU", "--output_dir", str(folder)]
    ended = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert not (folder / "output").exists() and (folder / "log").is_dir()  # logs of MindFormers, below --output_dir
    return ended.stdout + ended.stderr


def test_with_the_own_engine_losses_and_norms_are_those_without_swap_in_every_digit(tmp_path):
    """Without it MindFormers swaps nothing in one process, and the log says so."""
    plain = train(tmp_path / "plain", {})
    assert "swap and recompute of the file have no effect (2 lines" in plain
    swapped = train(tmp_path / "swapped", {"swap_engine": "mindswap", "audit_swap": True})
    steps = STEP.findall(plain)
    assert len(steps) == NUM_STEPS and len({loss for _, loss, _ in steps}) == NUM_STEPS
    assert STEP.findall(swapped) == steps
    report = json.loads((tmp_path / "swapped/swap/rank_0.json").read_text("utf-8"))
    assert report["is_as_predicted"] and report["num_passes"] == NUM_STEPS - 1
    assert report["offloaded_bytes"] == report["prefetched_bytes"] > 0
    assert report["peak_device_bytes"] < report["peak_without_swap_bytes"]


def test_several_processes_without_hyper_parallel_are_refused_before_anything_is_recorded(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setattr(pynative_2x, "recorded_step", lambda document, device: pytest.fail("recorded"))
    file = small_model(tmp_path, {"swap_engine": "mindswap"})
    assert cli.main(["run", "--config", str(file)]) == 1
    assert "RANK_SIZE is 2: several processes of MindFormers 2.x need HyperParallel" in capsys.readouterr().err
