"""Real trainings in processes of their own: a small Llama, two layers, ten steps, one worker."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests import forked
from tests.adapters.edits import edited

ROOT = Path(__file__).resolve().parents[2]
CPU_CASES = ROOT / "configs" / "llama2_7b" / "cpu"
SCRIPT = Path(__file__).parent / "plain_training.py"
NUM_STEPS = 10
LOSS = re.compile(r"loss:\[(\d+\.\d+)/")
MESSAGE = re.compile(r" - (?:INFO|WARNING|ERROR) - (.*)$", re.MULTILINE)

# One worker, two layers; the weights of the last step are saved.
SMALL = {
    "use_parallel": False,
    "model.model_config.num_layers": 2,
    "optimizer": {"type": "AdamWeightDecay"},  # one operator a weight; AdamW has ten, a fifth of the time of a training
    "train_dataset.data_loader.num_samples": 2 * NUM_STEPS,
    "callbacks": [
        {"type": "MFLossMonitor", "per_print_times": 1},
        {
            "type": "CheckpointMonitor",
            "prefix": "llama",
            "save_checkpoint_steps": NUM_STEPS,
            "checkpoint_format": "safetensors",
        },
    ],
}
# What a user without the stand-ins of mindswap writes: standard attention, and a training step of his own.
PLAIN = {
    **SMALL,
    "mindswap": None,
    "model.model_config.use_flash_attention": False,
    "runner_wrapper.type": "TrainOneStepWithoutOverflow",
}
ATTENTION_SWAP = {"swap": True, "op_swap": [{"op_name": "attention", "backward_prefetch": 20, "layers": [0, 1]}]}


@dataclass(frozen=True)
class Training:
    """What one training did.

    Attributes:
        folder: where it ran; its output is in `output`.
        exit_code: of the process.
        log: all that it printed.
    """

    folder: Path
    exit_code: int
    log: str

    @property
    def losses(self) -> list[str]:
        """Loss of every step, as printed."""
        return LOSS.findall(self.log)

    @property
    def messages(self) -> list[str]:
        """First line of every log entry, without time and place."""
        return MESSAGE.findall(self.log)

    @property
    def set_lines(self) -> list[str]:
        """The lines of the specification."""
        return [message for message in self.messages if message.startswith("Set ")]

    @property
    def weights(self) -> dict[str, bytes]:
        """Every weight after the last step."""
        from safetensors.numpy import load_file

        (path,) = (self.folder / "output" / "checkpoint" / "rank_0").glob(f"*-1_{NUM_STEPS}.safetensors")
        return {name: value.tobytes() for name, value in load_file(path).items()}

    @property
    def attributes(self) -> dict[str, dict]:
        """What `plain_training.py` found on every cell and primitive just before the first compile."""
        return json.loads((self.folder / "attributes.json").read_text())


def write_config(folder: Path, edits: dict, case: str = "case1_default_swap") -> Path:
    """A case of the specification for CPU, with changes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    config = yaml.safe_load((CPU_CASES / f"{case}.yaml").read_text())
    path.write_text(yaml.safe_dump(edited(config, edits)))
    return path


def train(
    folder: Path,
    config: Path,
    data: Path,
    *options: str,
    start: tuple[str, ...] = ("-m", "mindswap", "run"),
    fork=False,
):
    """Train `config` on `data` in `folder`; by default with the package's own entry."""
    arguments = ("--config", str(config), "--run_mode", "train", "--train_dataset_dir", str(data))
    return run_python(folder, *start, *arguments, "--output_dir", str(folder / "output"), *options, fork=fork)


def run_python(folder: Path, *arguments: str, fork: bool = False) -> Training:
    """Run this Python in `folder`, with nothing of mindswap or MindSpore in the environment.

    Args:
        folder: where it runs.
        arguments: of Python.
        fork: go on from a process that has MindSpore imported; where it does not matter what is imported first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept_away = ("MS_", "RANK_", "GLOG_", "ENABLE_LAZY_INLINE", "REGISTER_PATH", "LOG_")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(kept_away)}
    if fork:
        forked_run = forked.run(arguments, cwd=folder, env=environ)
        return Training(folder, forked_run.returncode, forked_run.stdout + forked_run.stderr)
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environ, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1800, check=False,
    )  # fmt: skip
    return Training(folder, result.returncode, result.stdout)
