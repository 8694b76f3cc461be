"""Swap that is executed: `mindswap run` trains a small Llama and Qwen3 in PyNative mode on CPU, and activations move.

    python tools/demo_pynative.py FOLDER    # data and logs go there

In graph mode the CPU backend cannot offload, so there the compiled graph is the proof. In PyNative mode mindswap moves
the memory itself: the storages of saved tensors leave the process's own memory for shared memory and come back. With
`mindswap.audit_swap: True` what is given back is filled with NaN first, so one byte too few would show in the losses.
"""

import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from demo import CONFIGS, LOSS, ROOT, environment, free_port

from mindswap.report.tables import format_table

QWEN3 = ROOT / "configs" / "qwen3" / "cpu" / "pynative.yaml"
NUM_STEPS = 3
PEAK_KEYS = ("peak_without_swap_bytes", "peak_device_bytes", "predicted_peak_bytes")


@dataclass(frozen=True)
class Job:
    """One training with swap, and the name of the one that it is compared with.

    Attributes:
        name: of the row.
        config: of the training.
        num_workers: under msrun if more than one.
        reference: name of a job; "" for one without swap.
    """

    name: str
    config: Path
    num_workers: int = 1
    reference: str = ""


LLAMA = CONFIGS / "case4_swap_and_recompute.yaml"
JOBS = (
    Job("llama_off", LLAMA, 2),
    Job("case4_swap_and_recompute", LLAMA, 2, "llama_off"),
    Job("qwen3_off", QWEN3),
    Job("qwen3_op_swap", QWEN3, 1, "qwen3_off"),
)


@dataclass(frozen=True)
class Run:
    """Record of a training: losses of rank 0, and the swap report of each rank."""

    losses: list[float]
    reports: list[dict]


def main(folder: Path) -> int:
    """Train without swap and with it; exit code 0 if every check holds."""
    folder.mkdir(parents=True, exist_ok=True)
    make_data(folder)
    with ThreadPoolExecutor(2) as pool:  # most of a small training is one thread
        runs = dict(zip([job.name for job in JOBS], pool.map(lambda job: train(folder, job), JOBS), strict=True))
    rows, failures = [], []
    for job in JOBS:
        if not job.reference:
            continue
        losses, reports = runs[job.name].losses, runs[job.name].reports
        checks = {
            "loss falls": losses[-1] < losses[0],
            "losses as without swap": losses == runs[job.reference].losses,
            "bytes back": all(report["offloaded_bytes"] == report["prefetched_bytes"] > 0 for report in reports),
            "as predicted": all(report["is_as_predicted"] for report in reports),
            "every step but the first swapped": all(report["num_passes"] == NUM_STEPS - 1 for report in reports),
            "all ranks": len(reports) == job.num_workers,
        }
        failures += [f"{job.name}: {check}" for check, holds in checks.items() if not holds]
        report = reports[0]
        out, back = (report[key] // report["num_passes"] for key in ("offloaded_bytes", "prefetched_bytes"))
        rows.append(
            [
                job.name,
                str(job.num_workers),
                f"{losses[0]:.3f} -> {losses[-1]:.3f}",
                "yes" if checks["losses as without swap"] else "NO",
                *map(kib, (out, back, *(report[key] for key in PEAK_KEYS))),
            ]
        )
    header = [
        "PyNative, executed", "workers", "loss", "as without swap", "KiB out", "KiB back",
        "peak without swap", "peak", "predicted",
    ]  # fmt: skip
    print(format_table(header, rows))
    print(
        f"{NUM_STEPS} steps of `mindswap run` on CPU; the first is recorded, the others swap. KiB out and back are of\n"
        "one step, peaks are KiB of saved activations that are on the device at once."
    )
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def make_data(folder: Path) -> None:
    """Samples of both forms, from the text of the licence."""
    text = folder / "license.txt"
    text.write_text((ROOT / "LICENSE").read_text("utf-8"), "utf-8")
    for name, options in (("legacy", []), ("newer", ["--newer-model"])):
        words = ["prepare-data", str(text), "--output", str(folder / f"{name}.mindrecord"), "--seq-length", "64"]
        run_mindswap([*words, *options, "--overwrite"], folder)


def train(folder: Path, job: Job) -> Run:
    """Run one training, under msrun if it has several workers."""
    print(f"[demo] PyNative mode: {job.name}, workers: {job.num_workers} ...", flush=True)
    data, output = "newer" if job.config == QWEN3 else "legacy", folder / job.name
    words = [
        "run", "--config", str(job.config), "--mode", "1", "--run_mode", "train",
        "--use_parallel", str(job.num_workers > 1), "--parallel_config.data_parallel", str(job.num_workers),
        "--train_dataset_dir", str(folder / f"{data}.mindrecord"), "--output_dir", str(output),
        "--num_samples", str(2 * NUM_STEPS), "--mindswap.audit_swap", "True",
    ]  # fmt: skip
    if not job.reference:
        words += ["--swap_config.swap", "False", "--recompute_config.select_recompute", "False"]
    log = run_mindswap(words, folder, job.num_workers, output / "msrun")
    reports = [json.loads(path.read_text()) for path in sorted((output / "swap").glob("rank_*.json"))]
    return Run([float(loss) for loss in LOSS.findall(log)], reports)


def run_mindswap(words: list[str], folder: Path, num_workers: int = 1, log_dir: Path | None = None) -> str:
    """Run a command of mindswap; gives the output, of rank 0 where there are several."""
    command = [sys.executable, "-m", "mindswap", *words]
    if num_workers > 1:
        order = shlex.join(["run_mindformer.py", *words[1:]])
        command = [
            "bash", str(ROOT / "scripts" / "msrun_launch.sh"), order,
            str(num_workers), str(free_port()), str(log_dir), "True", "300",
        ]  # fmt: skip
    result = subprocess.run(
        command, cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if result.returncode != 0:
        sys.exit(f"mindswap {' '.join(words)} failed:\n{result.stdout[-3000:]}")
    return (log_dir / "worker_0.log").read_text(errors="replace") if num_workers > 1 and log_dir else result.stdout


def kib(size_bytes: int) -> str:
    """Bytes as KiB."""
    return f"{size_bytes / 1024:.1f}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
