"""The four cases of the specification: on MindSpore's Ascend backend without a card, and trained on CPU.

First each case as it is written, four layers of 7B on 8 ranks (`demo_ascend.py`). Then small models are trained on CPU
for real: log lines of every worker, losses as with swap off; the graph that the frontend compiles for them is compared
with what they ask for. `--cpu-only` leaves out the first part.
"""

import itertools
import os
import pydoc_data.topics
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from demo_ascend import show_ascend

import mindswap
from mindswap.report.tables import format_table
from mindswap.system.heartbeat import heartbeat

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs" / "llama2_7b" / "cpu"
OUTPUT = ROOT / "output" / "demo"
NUM_SAMPLES = 16  # of each worker: 8 steps of 2 samples
LOSS = re.compile(r"loss:\[(\d+\.\d+)/")

ATTENTION_LINES = [
    "Set op_swap at layer 0: .attention, value=20",
    "Set op_swap at layer 1: .attention, value=20, .feed_forward, value=15",
    "Set op_swap at layer 2: .attention, value=20, .feed_forward, value=15",
    "Set op_swap at layer 3: .attention, value=10",
]
# Case -> the lines of the specification, in order.
CASES = {
    "case1_default_swap": [f"Set op_swap at layer {i}: attention.flash_attention, value=10" for i in range(4)],
    "case2_layer_swap": [f"Set layer swap at layer {i} and value is: 20" for i in (0, 3)],
    "case3_op_swap": ATTENTION_LINES,
    "case4_swap_and_recompute": [
        "Set select recompute at layer 0: feed_forward",
        *ATTENTION_LINES[:3],
        "Set select recompute at layer 3: feed_forward",
        ATTENTION_LINES[3],
    ],
}
NUM_WORKERS = 2
# The cases on Ascend, samples, swap off, training and graph of each case, PyNative mode.
NUM_PARTS = 1 + 2 + 2 * len(CASES) + 1
PARTS = itertools.count(1)
ENVIRON = dict(os.environ)  # MindSpore adds to it when it compiles here, which is nothing for trainings
STARTED_S = time.monotonic()
DOING = ["starting"]  # the part that runs

# Columns of the tables; no row is wider than a terminal of 120 columns.
TRAINED = ["case", "workers", "log lines", "loss", "as swap off (nothing is swapped on CPU)", "graph as asked"]
COMPILED = ["case", "MoveTo pairs per layer", "KiB swapped per layer", "KiB kept without swap", "KiB kept"]


@dataclass(frozen=True)
class Run:
    """One training: losses of worker 0, and the `Set ...` lines of each worker."""

    losses: list[float]
    lines: list[list[str]]


def main() -> int:
    """Run the demo; exit code 0 if every check holds."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    failures = []
    if "--cpu-only" not in sys.argv[1:]:
        say(f"{len(CASES)} cases and swap off on the Ascend backend without a card: 8 ranks, rank 0 ...")
        failures += show_ascend(CASES, OUTPUT / "ascend")
    data = prepare_data()
    reference = train("swap_off", CONFIGS / "case1_default_swap.yaml", data, ("--swap_config.swap", "False"))
    trained, compiled = [], []
    for case, expected_lines in CASES.items():
        config = CONFIGS / f"{case}.yaml"
        run = train(case, config, data)
        graph = verify(config)
        matching_workers = sum(lines == expected_lines for lines in run.lines)
        checks = {
            "log lines": matching_workers == NUM_WORKERS,
            "loss falls": run.losses[-1] < run.losses[0],
            "losses as with swap off": run.losses == reference.losses,
            "graph as asked": all(layer["ok"] for layer in graph["layers"]),
        }
        failures += [f"{case}: {name}" for name, holds in checks.items() if not holds]
        layers = graph["layers"]
        trained.append(
            [
                case,
                str(NUM_WORKERS),
                f"{matching_workers}/{NUM_WORKERS}",
                f"{run.losses[0]:.3f} -> {run.losses[-1]:.3f}",
                "yes" if checks["losses as with swap off"] else "NO",
                "yes" if checks["graph as asked"] else "NO",
            ]
        )
        compiled.append(
            [
                case,
                " ".join(str(layer["num_pairs"]) for layer in layers),
                " ".join(kib(layer["swapped_bytes"]) for layer in layers),
                " ".join(kib(layer["kept_before_bytes"]) for layer in layers),
                " ".join(kib(layer["kept_bytes"]) for layer in layers),
            ]
        )
    print_table(TRAINED, trained)
    print_table(COMPILED, compiled)
    print(
        f"\nsteps: {len(run.losses)}, logs: {OUTPUT.relative_to(ROOT)}/*/worker_*.log, "
        f"{time.monotonic() - STARTED_S:.0f} s"
    )
    print(
        "Trained on CPU for real. The CPU backend cannot offload: the MoveTo pairs and bytes are read from\n"
        "the graph that MindSpore's own frontend compiles for these configurations with lazy_inline on.\n"
        "No NPU was there."
    )
    say("mindswap run in PyNative mode, where the swap is executed ...")
    executed = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "demo_pynative.py"), str(OUTPUT / "pynative")],
        capture_output=True, text=True, cwd=OUTPUT, env=environment(),
    )  # fmt: skip
    print("\n" + "".join(line for line in executed.stdout.splitlines(True) if not line.startswith("[demo]")))
    if executed.returncode != 0:
        failures.append(f"swap in PyNative mode:\n{executed.stdout[-2000:]}{executed.stderr[-3000:]}")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def prepare_data() -> Path:
    """The help texts of CPython itself as training samples."""
    text = OUTPUT / "pydoc_topics.txt"
    text.write_text("\n\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    data = OUTPUT / "text.mindrecord"
    run_command("text to samples", ["prepare-data", str(text), "--output", str(data), "--seq-length", "64"])
    return data


def train(name: str, config: Path, data: Path, options: tuple[str, ...] = ()) -> Run:
    """Train one configuration under msrun through the launcher of the package."""
    log_dir = OUTPUT / name
    order = [
        "run_mindformer.py", "--config", str(config), "--run_mode", "train", "--use_parallel", "True",
        "--train_dataset_dir", str(data), "--num_samples", str(NUM_SAMPLES), "--output_dir", str(log_dir / "output"),
        "--parallel_config.data_parallel", str(NUM_WORKERS), *options,
    ]  # fmt: skip
    command = [
        "bash", str(ROOT / "scripts" / "msrun_launch.sh"), shlex.join(order),
        str(NUM_WORKERS), str(free_port()), str(log_dir), "True", "300",
    ]  # fmt: skip
    say(f"training {name} with {NUM_WORKERS} workers ...")
    result = subprocess.run(command, cwd=OUTPUT, capture_output=True, text=True, env=environment())
    if result.returncode != 0:
        sys.exit(
            f"training {name} failed with exit code {result.returncode}:\n{(result.stdout + result.stderr)[-3000:]}"
        )
    logs = [(log_dir / f"worker_{rank}.log").read_text(errors="replace") for rank in range(NUM_WORKERS)]
    lines = [[line.split(" - INFO - ")[1] for line in log.splitlines() if " - INFO - Set " in line] for log in logs]
    return Run([float(loss) for loss in LOSS.findall(logs[0])], lines)


def verify(config: Path) -> dict:
    """What is in the compiled graph of a configuration: `mindswap verify --json`."""
    say(f"compiling {config.stem} ...")
    return dict(mindswap.verify(config).data)  # in this process: MindSpore is imported once for all cases


def run_command(title: str, arguments: list[str]) -> str:
    """Run one mindswap command and give its output."""
    say(f"{title} ...")
    command = [sys.executable, "-m", "mindswap", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=OUTPUT, env=environment())
    if result.returncode != 0:
        sys.exit(f"mindswap {' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def environment() -> dict[str, str]:
    """This Python first in the path: msrun starts its workers with `python`."""
    folder = str(Path(sys.executable).parent)
    return {**ENVIRON, "PATH": f"{folder}{os.pathsep}{ENVIRON['PATH']}", "PYTHON": sys.executable}


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def kib(size_bytes: int) -> str:
    """Bytes as whole KiB."""
    return str(round(size_bytes / 1024))


def say(text: str) -> None:
    """One line of progress: which part begins, of how many, and the seconds so far."""
    DOING[:] = [text.removesuffix(" ...")]
    print(f"[demo] {next(PARTS)}/{NUM_PARTS} {text} ({time.monotonic() - STARTED_S:.0f} s so far)", flush=True)


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Columns as wide as their widest cell."""
    print("\n" + format_table(header, rows))


if __name__ == "__main__":
    with heartbeat(lambda: DOING[0], sys.stderr.write):
        sys.exit(main())
