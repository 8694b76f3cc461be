"""Real captures for tests, compiled in a process of their own: MindFormers builds one family of models per process."""

from pathlib import Path

import yaml

from mindswap.features.step import load_step
from mindswap.simulator.step_model import StepModel
from tests import forked
from tests.adapters.edits import edited
from tests.adapters.graphs import QWEN3_MOE


def capture_apart(config: Path) -> StepModel:
    """The step of a configuration; a child compiles it into the cache of all tests, and it is read from there."""
    forked.run(["-m", "mindswap", "simulate", "--json", str(config)], timeout=1200)
    return load_step(str(config)).model


def capture_experts(folder: Path) -> StepModel:
    """Qwen3-MoE in bfloat16 with experts over two ranks: functions exchange what they compute on."""
    config = edited(
        yaml.safe_load(QWEN3_MOE.read_text("utf-8")),
        {
            "model.model_config.compute_dtype": "bfloat16",
            "model.model_config.seq_length": 2048,
            "parallel_config.expert_parallel": 2,
        },
    )
    (folder / "experts.yaml").write_text(yaml.safe_dump(config), "utf-8")
    return capture_apart(folder / "experts.yaml")
