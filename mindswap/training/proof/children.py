"""Processes of a proof: other commands of mindswap, whose answers are JSON, and the workers of a run."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.errors import LaunchError
from mindswap.training.adaptive.watch import read_worker_exits
from mindswap.training.launch.msrun import free_port
from mindswap.training.launch.processes import child_environment, stop_descendants
from mindswap.training.logs.read import find_last_step, read_tail, read_worker_logs
from mindswap.training.logs.step_report import ReportedStep, parse_steps
from mindswap.training.proof.model import Fit, MeasuredRun, Simulated, VerifiedEffect, Worker
from mindswap.training.proof.overlap import Overlap, trace_overlap

POLL_S = 0.3
SAY_EVERY_S = 15.0
# Other workers have so long to say what went wrong.
GRACE_S = 5.0
# How long workers wait for each other to start.
CLUSTER_TIMEOUT_S = 300


@dataclass(frozen=True)
class Answer:
    """Answer of a command."""

    exit_code: int  # 0 and 1 come with data, if the command has any
    data: Any  # its JSON; None where it printed none
    error: str  # what it wrote to the standard error, last lines

    def require(self, what: str) -> Any:
        """The data. Raises LaunchError: there is none."""
        if self.data is None:
            raise LaunchError(f"{what}: {self.error or f'exit code {self.exit_code}'}")
        return self.data


def ask(words: Sequence[str], limit_s: float | None = None) -> Answer:
    """Run `mindswap WORDS` in a process of its own: it takes the memory of MindSpore with it when it ends.

    Raises:
        LaunchError: it took longer than `limit_s`, and was ended.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mindswap", *words], env={**child_environment(), "TQDM_DISABLE": "1"}, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", start_new_session=True,
            timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LaunchError(f"mindswap {words[0]} took longer than {limit_s:g} s") from None
    try:
        data = json.loads(done.stdout)
    except ValueError:
        data = None
    if isinstance(data, dict) and data.get("error") is not None:
        data = None  # it is on the standard error, too
    error = "\n".join(done.stderr.strip().splitlines()[-12:])
    return Answer(done.returncode, data, error.removeprefix("mindswap: error: "))


def train(config: Path, folder: Path, num_workers: int, say: Callable[[str], None]) -> int:
    """Run the workers to their end, and say how far they are; gives the exit code of the launcher.

    They run in `folder`, and leave there all that they write, their logs in `logs`. One worker runs without msrun.
    """
    place = folder.absolute()
    logs = place / "logs"
    order = [
        "--config", str(config.absolute()), "--run_mode", "train", "--use_parallel", str(num_workers > 1),
        "--output_dir", str(place / "output"), "--profile_output", str(place),
    ]  # fmt: skip
    job = [str(num_workers), str(free_port()), str(logs), "True", str(CLUSTER_TIMEOUT_S)]
    environment = {**child_environment(), "PYTHONUNBUFFERED": "1", "MS_MEMORY_STATISTIC": "1"}
    with (folder / "launcher.log").open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "mindswap.training.launch", shlex.join(order), *job], cwd=folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return _watch(process, folder / "launcher.log", logs / "worker_0.log", say)
        finally:
            stop_descendants()


def _watch(process: subprocess.Popen[bytes], launcher: Path, log: Path, say: Callable[[str], None]) -> int:
    """Wait for the end; a worker that failed ends the run, for which msrun may take minutes."""
    said_s, said = time.monotonic(), ""
    failed_s: float | None = None
    while (code := process.poll()) is None:
        time.sleep(POLL_S)
        now_s = time.monotonic()
        if failed_s is None and any(code for _, code in read_worker_exits("\n".join(read_tail(launcher)))):
            failed_s = now_s
        if failed_s is not None and now_s - failed_s > GRACE_S:
            return 1
        if now_s - said_s >= SAY_EVERY_S:
            said_s = now_s
            step = find_last_step(read_tail(log)) if log.exists() else ""
            if step != said or not step:
                say(f"    step {step}" if step else "    starting and compiling")
            said = step
    return code


# What the runs of a proof left behind -> plain data.

KERNELS, TRACE = "kernel_details.csv", "trace_view.json"


def read_simulated(data: Mapping[str, Any]) -> Simulated:
    """From `mindswap simulate --json`."""
    first = data["stages"][0]
    events_ns = data["step_time_ns"] - sum(term["duration_ns"] for term in data["terms"])
    return Simulated(
        step_time_ns=data["step_time_ns"],
        peak_bytes=data["peak_bytes"],
        copy_ns=round((first["link_out_use"] + first["link_in_use"]) * events_ns),
        exposed_copy_ns=first["exposed_copy_out_ns"] + first["exposed_copy_in_ns"],
        copied_bytes=first["copied_out_bytes"] + first["copied_in_bytes"],
    )


def read_effect(answer: Answer) -> VerifiedEffect:
    """From `mindswap verify --json --log`."""
    if answer.data is None:
        return VerifiedEffect(problem=answer.error or f"mindswap verify: exit code {answer.exit_code}")
    data = answer.data
    layers = data.get("layers") or []
    logs = data.get("logs")
    findings = [one for one in logs["findings"] if one["level"] != "note"] if logs else []
    # `ok` of the answer is that of graph and logs together.
    is_graph_ok = all(layer["ok"] for layer in layers) and bool(data["ok"] or (logs and not logs["ok"]))
    return VerifiedEffect(
        is_graph_ok=is_graph_ok if layers else None,
        num_pairs=sum(layer.get("num_pairs", 0) for layer in layers),
        swapped_bytes=sum(layer.get("swapped_bytes", 0) for layer in layers),
        are_logs_ok=logs["ok"] if logs else None,
        log_findings=tuple(f"{one['level']}: {one['message']}" for one in findings),
    )


def read_fits(data: Mapping[str, Any]) -> tuple[Fit, ...]:
    """From `mindswap calibrate --json`."""
    return tuple(
        Fit(
            one["name"],
            one["before"],
            one["fitted"] if one["is_accepted"] else None,
            one["objection"] or f"{one['num_samples']} samples",
        )
        for one in data["figures"]
    )


def read_measured(folder: Path, exit_code: int, wall_s: float) -> MeasuredRun:
    """The logs and the profile that a run left in its folder."""
    logs = read_worker_logs(folder / "logs") if (folder / "logs").is_dir() else ()
    workers = tuple(
        Worker(
            log.worker,
            _read_steps(folder / "logs" / f"worker_{log.worker}.log"),
            log.memory.used_peak_bytes,
            log.memory.actual_peak_bytes,
        )
        for log in logs
    )
    is_short = any(not event.is_host for log in logs if not log.is_finished for event in log.oom_events)
    errors = [log.last_error for log in logs if log.last_error and not log.is_finished]
    profile, overlap = _read_profile(folder / "profile")
    return MeasuredRun(exit_code, wall_s, workers, is_short, overlap, profile, errors[0] if errors else "")


def _read_steps(log: Path) -> tuple[ReportedStep, ...]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        return parse_steps(lines)


def _read_profile(folder: Path) -> tuple[str | None, Overlap | None]:
    """Folder of a profile with kernels of a device, and the overlap of its copies."""
    found = sorted(folder.glob(f"**/{KERNELS}"))
    if not found:
        return None, None
    place = found[0].parent
    try:
        data = json.loads((place / TRACE).read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return str(place), None
    events = data.get("traceEvents", []) if isinstance(data, dict) else data
    return str(place), trace_overlap(events if isinstance(events, list) else [])
