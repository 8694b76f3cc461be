"""Recompute as simulated, next to recompute as trained: memory of activations and step time, relative to keeping all.

    python benchmarks/recompute_reality.py

A Llama of 8 layers is trained for real on CPU, by MindFormers' own Trainer, three times: all activations kept, half
of the layers recomputed, all recomputed. The same three YAML files are simulated on the CPU device with the rates of
this machine, which a few operators give (`recompute/measure_rates.py`); nothing is fitted to the trainings.

- Memory is what MindSpore's memory pool counts as in use at its peak; weights and optimizer states are not in it. The
  resident size of the process says nothing: CPU kernels that broadcast keep two index lists of 8 bytes per element,
  recomputed ones too, and the pool gives nothing back.
- `memory_optimize_level: O0` frees a tensor after its last user. O1 plans all memory before and frees nothing here.
- The pool also holds gradients of weights, which the simulated column leaves out (weights are small on purpose), and
  per layer that is kept one output of the feed-forward more: the CPU backend takes `SiLUGrad` apart and runs its
  `Sigmoid` as soon as the input is there, in forward.
- The trainings take turns, step by step, and times are compared within a round: other work on the machine meets all.

Takes one to two minutes and 10 GB. Exit code 1 if a training fails.
"""

import json
import os
import pydoc_data.topics
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from mindswap.features.step import load_step
from mindswap.report.tables import format_table

ROOT = Path(__file__).resolve().parent.parent
PARTS = Path(__file__).resolve().parent / "recompute"
CONFIG = ROOT / "configs" / "llama2_7b" / "cpu" / "case1_default_swap.yaml"
NUM_ROUNDS = 9
WARM_UP = 1
NUM_LAYERS, BATCH, SEQ, HIDDEN, INTERMEDIATE = 8, 8, 512, 128, 352
# With swap off a list counts layers per stage: the first half of them.
VARIANTS = {"keep all": False, "recompute half": [NUM_LAYERS // 2], "recompute all": True}
PEAK = re.compile(r"Common mem pool info: .*?peak used mem:(\d+)M")
MIB = 2**20


@dataclass(frozen=True)
class DecisionCosts:
    """Figures of one variant that are compared.

    Attributes:
        activation_bytes: peak.
        step_ms: simulated, or the median of the rounds.
        relative_time: to keeping all; of measured steps the median over the rounds.
    """

    activation_bytes: int
    step_ms: float
    relative_time: float


def main() -> int:
    """Train, simulate, print both."""
    with tempfile.TemporaryDirectory() as folder:
        configs = {name: write_config(Path(folder), name, recompute) for name, recompute in VARIANTS.items()}
        rates = measure_rates()
        simulated = simulate(configs, device_overrides(rates))
        rough = simulate(configs, {})
        measured = train_in_turns(configs, Path(folder))
    print(f"Llama, {NUM_LAYERS} layers, hidden {HIDDEN}, sequence {SEQ}, batch {BATCH}, float32; {NUM_ROUNDS} rounds\n")
    print(format_comparison(simulated, measured))
    texts = ", ".join(f"{name} {text}" for name, text in device_overrides(rates).items())
    print(f"\nDevice of the simulation: cpu, with figures measured on this machine: {texts}")
    as_it_is = ", ".join(f"{name} {figures.relative_time:.2f}" for name, figures in rough.items())
    print(f"Simulated step time with the device file as it is: {as_it_is}")
    return 0


def write_config(folder: Path, name: str, recompute: bool | list[int]) -> Path:
    """The small Llama of the documented cases, larger, on one worker, with MindFormers' own attention."""
    config = yaml.safe_load(CONFIG.read_text())
    config["model"]["model_config"].update(
        batch_size=BATCH, seq_length=SEQ, hidden_size=HIDDEN, num_heads=1, num_layers=NUM_LAYERS,
        intermediate_size=INTERMEDIATE, use_flash_attention=False,
    )  # fmt: skip
    config["runner_config"]["batch_size"] = BATCH
    config["use_parallel"] = False
    config["parallel_config"]["data_parallel"] = 1
    config["callbacks"] = [{"type": "OneStepPerLine"}]
    config["swap_config"] = {"swap": False}
    config["recompute_config"]["recompute"] = recompute
    path = folder / f"{name.replace(' ', '_')}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def measure_rates() -> dict[str, float]:
    """Rates that operators reach here, from `recompute/measure_rates.py`."""
    shape = [str(size) for size in (BATCH, SEQ, HIDDEN, INTERMEDIATE)]
    command = [sys.executable, str(PARTS / "measure_rates.py"), *shape]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return json.loads(text.splitlines()[-1])


def device_overrides(rates: Mapping[str, float]) -> dict[str, str]:
    """Rates as figures of a device."""
    latency = f"{rates['op_latency_s'] * 1e6:.1f}us"
    return {
        "matrix_float32": f"{rates['matrix_flops_per_s'] / 1e9:.1f}GFLOPS",
        "memory_bandwidth": f"{rates['memory_bytes_per_s'] / 1e9:.2f}GB/s",
        "matrix_op_latency": latency,
        "vector_op_latency": latency,
    }


def simulate(configs: Mapping[str, Path], overrides: dict[str, str]) -> dict[str, DecisionCosts]:
    """Every variant on the CPU device."""
    figures: dict[str, DecisionCosts] = {}
    first_ms = None
    for name, path in configs.items():
        loaded = load_step(str(path), "cpu", overrides)
        step = loaded.model.simulate(loaded.policy)
        step_ms = step.step_time_ns / 1e6
        first_ms = first_ms or step_ms
        figures[name] = DecisionCosts(step.activation_bytes[0], step_ms, step_ms / first_ms)
    return figures


def train_in_turns(configs: Mapping[str, Path], folder: Path) -> dict[str, DecisionCosts]:
    """Train every variant in a process of its own, one step of each in every round."""
    data = prepare_data(folder)
    workers = {name: Worker(path, data) for name, path in configs.items()}
    try:
        for worker in workers.values():
            worker.wait_until_ready()
        rounds = [{name: worker.step_s() for name, worker in workers.items()} for _ in range(WARM_UP + NUM_ROUNDS)]
        logs = {name: worker.finish() for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.wait()
    relative = relative_times(rounds[WARM_UP:])
    return {
        name: DecisionCosts(
            read_peak_bytes(logs[name]), 1000 * statistics.median(r[name] for r in rounds[WARM_UP:]), ratio
        )
        for name, ratio in relative.items()
    }


def prepare_data(folder: Path) -> Path:
    """The help texts of CPython as samples, one byte a token."""
    text, data = folder / "text.txt", folder / "text.mindrecord"
    text.write_text("\n\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    command = ["prepare-data", str(text), "--output", str(data), "--seq-length", str(SEQ)]
    subprocess.run([sys.executable, "-m", "mindswap", *command], check=True, stdout=subprocess.DEVNULL)
    return data


class Worker:
    """One training that waits for its turns."""

    def __init__(self, config: Path, data: Path):
        self.log_path = config.with_suffix(".log")
        answers, write_end = os.pipe()
        environ = {**os.environ, "STEP_TIMES_FD": str(write_end), "MS_SUBMODULE_LOG_v": "{PRE_ACT:1}"}
        command = [
            sys.executable, "-m", "mindswap", "run", str(PARTS / "train_in_turns.py"), "--config", str(config),
            "--run_mode", "train", "--train_dataset_dir", str(data), "--output_dir", str(config.with_suffix("")),
            "--num_samples", str(BATCH * (2 + WARM_UP + NUM_ROUNDS)),
        ]  # fmt: skip
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=config.parent, env=environ,
                pass_fds=(write_end,), text=True,
            )  # fmt: skip
        os.close(write_end)
        self.answers = os.fdopen(answers)

    def wait_until_ready(self) -> None:
        """Until the first step is done."""
        self._answer()

    def step_s(self) -> float:
        """Train one step; its seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())

    def finish(self) -> str:
        """End the training; all that it printed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        return self.log_path.read_text(errors="replace")

    def _answer(self) -> str:
        line = self.answers.readline()
        if not line:
            sys.exit(f"the training failed:\n{self.log_path.read_text(errors='replace')[-3000:]}")
        return line


def relative_times(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Step times relative to the first variant in the same round: median over the rounds."""
    first = next(iter(rounds[0]))
    return {name: statistics.median(times[name] / times[first] for times in rounds) for name in rounds[0]}


def read_peak_bytes(log: str) -> int:
    """Peak of the memory pool that MindSpore logs when it ends, to the MiB.

    Raises:
        ValueError: if it is not there.
    """
    found = PEAK.findall(log)
    if not found:
        raise ValueError("MindSpore did not log the state of its memory pool")
    return int(found[-1]) * MIB


def format_comparison(simulated: Mapping[str, DecisionCosts], measured: Mapping[str, DecisionCosts]) -> str:
    """Both next to each other, relative to the first variant, and their differences."""
    first = next(iter(simulated))
    header = (
        "", "MiB simulated", "measured", "relative simulated", "measured", "difference",
        "ms simulated", "measured", "relative simulated", "measured", "difference",
    )  # fmt: skip
    rows = []
    for name, ours in simulated.items():
        real = measured[name]
        memory = [side[name].activation_bytes / side[first].activation_bytes for side in (simulated, measured)]
        rows.append(
            [
                name,
                *(f"{figures.activation_bytes / MIB:.0f}" for figures in (ours, real)),
                *_compared(*memory),
                f"{ours.step_ms:.0f}",
                f"{real.step_ms:.0f}",
                *_compared(ours.relative_time, real.relative_time),
            ]
        )
    return format_table(header, rows)


def _compared(simulated: float, measured: float) -> list[str]:
    return [f"{simulated:.3f}", f"{measured:.3f}", f"{simulated - measured:+.3f}"]


if __name__ == "__main__":
    sys.exit(main())
