"""Real captures for tests, compiled in a process of their own: MindFormers builds one family of models per process."""

from pathlib import Path

from mindswap.api.step import load_step
from mindswap.simulator.step_model import StepModel
from tests import forked

EXPERTS = Path(__file__).resolve().parents[1] / "data" / "qwen3_moe_small.yaml"


def capture_apart(config: Path) -> StepModel:
    """The step of a configuration; a child compiles it into the cache of all tests, and it is read from there."""
    forked.run(["-m", "mindswap", "simulate", "--json", str(config)], timeout=1200)
    return load_step(str(config)).model


def capture_experts(folder: Path) -> StepModel:
    """Qwen3-MoE in bfloat16 with experts over two ranks: functions exchange what they compute on."""
    text = EXPERTS.read_text("utf-8")
    for before, after in (
        ("compute_dtype: float32", "compute_dtype: bfloat16"),
        ("seq_length: 64", "seq_length: 2048"),
        ("data_parallel: 8", "data_parallel: 8\n  expert_parallel: 2"),
    ):
        assert before in text
        text = text.replace(before, after, 1)
    (folder / "experts.yaml").write_text(text, "utf-8")
    return capture_apart(folder / "experts.yaml")
