"""What MindFormers or MindSpore refuse stops every command that would give figures of it, swap on or off."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mindswap import cli
from mindswap.config.source import load_document
from mindswap.rules.checker import check_before_network
from tests.adapters.edits import edited

ROOT = Path(__file__).resolve().parents[2]
LEGACY = ROOT / "configs" / "llama2_7b" / "cpu" / "case1_default_swap.yaml"
NEWER = ROOT / "tests" / "data" / "deepseek_v3_small.yaml"
PIPELINE = {"use_parallel": True, "parallel.parallel_mode": 1, "parallel_config.pipeline_stage": 4}
CHUNKS = {**PIPELINE, "model.model_config.pp_interleave_num": 2}


def with_scheduler(name: str) -> dict[str, Any]:
    """Return the edits for a pipeline of two chunks on each of four stages."""
    pipeline = {"pipeline_interleave": True, "pipeline_scheduler": name}
    return {**CHUNKS, "parallel.pipeline_config": pipeline}


# Files in which `check` found no problem, and `simulate` gave figures of the first.
REFUSED: dict[str, tuple[Path, dict[str, Any], str]] = {
    "seqvpp without pieces": (LEGACY, with_scheduler("seqvpp"), "pipeline-refused"),
    "few micro-batches": (LEGACY, with_scheduler("1f1b"), "pipeline-refused"),
    "zero bubble": (LEGACY, with_scheduler("zero_bubble_v"), "pipeline-refused"),
    "halves": (LEGACY, {"model.model_config.fine_grain_interleave": 2}, "sequence-pieces"),
    "Muon": (NEWER, {"optimizer.type": "Muon", "optimizer.swap": True}, "optimizer-refused"),
}
COMMANDS = (["check"], ["simulate"], ["plan", "--memory", "20GiB"], ["explain"], ["verify"], ["inspect"], ["dryrun"])


def written(name: str, folder: Path, swap: bool) -> Path:
    path, edits, _ = REFUSED[name]
    config = edited(yaml.safe_load(path.read_text("utf-8")), {**edits, "parallel_config.micro_batch_num": 3})
    config["swap_config"] = {"swap": swap, "default_prefetch": 2} if swap else {"swap": False}
    file = folder / "x.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_no_command_takes_it(name, swap, command, tmp_path, capsys):
    file = written(name, tmp_path, swap)
    assert cli.main([command[0], str(file), *command[1:]]) == 1
    captured = capsys.readouterr()
    assert f"[{REFUSED[name][2]}]" in captured.out + captured.err
    assert f"{file}:" in captured.out + captured.err


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_with_swap_off_is_left_to_mindformers(name, tmp_path):
    result = check_before_network(load_document(written(name, tmp_path, swap=False)), {})
    assert result.errors == () and REFUSED[name][2] in {problem.rule for problem in result.problems}
