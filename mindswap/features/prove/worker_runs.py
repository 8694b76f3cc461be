"""Run the workers of a proof, and read results of runs and commands."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindswap.errors import CostError
from mindswap.features.prove.proof import MeasuredRun, Simulated, Worker
from mindswap.files import replace_file
from mindswap.rules.machine.software import has_cards
from mindswap.runtime.attempt.command import TrainingCommand
from mindswap.runtime.attempt.model import Ended, Outcome
from mindswap.runtime.attempt.node import NodeTask
from mindswap.runtime.attempt.nodes import Nodes
from mindswap.runtime.attempt.ray_nodes import RayNodes
from mindswap.runtime.attempt.state import attempt_folder
from mindswap.runtime.logs.read import read_worker_logs
from mindswap.runtime.logs.step_report import ReportedStep, parse_steps
from mindswap.runtime.msrun import free_port, worker_log
from mindswap.runtime.ray_cluster import NodeLostError
from mindswap.simulator.profile.overlap import Overlap, trace_overlap
from mindswap.simulator.profile.trace import read_events

POLL_S = 0.3
REPORT_INTERVAL_S = 15.0
# Timeout of the workers' start.
CLUSTER_TIMEOUT_S = 300


@dataclass(frozen=True)
class RayPlace:
    """Ray cluster for the workers of a proof."""

    address: str  # address of the cluster
    num_nodes: int  # number of nodes, each with the same number of workers
    files: Mapping[Path, bytes] = field(default_factory=dict)  # files of this machine that the nodes need


def run_workers(source: Path, config: Path, folder: Path, num_workers: int, report_status: Callable[[str], None],
          cluster: RayPlace | None = None) -> int:  # fmt: skip
    """Run a training to its end, and report its progress. One worker runs without msrun.

    Args:
        source: the user's file, which must exist on all nodes of a cluster.
        config: configuration of this run.
        folder: working folder of the workers; logs are in `logs`.
        num_workers: workers over all nodes.
        report_status: function that prints a line for the user.
        cluster: Ray cluster to run on; None for this machine.

    Returns:
        Exit code of the training.
    """
    folder_path = folder.absolute()
    num_local = num_workers // (cluster.num_nodes if cluster else 1)
    options = ["--run_mode", "train", "--use_parallel", str(num_workers > 1)]
    options += ["--output_dir", str(folder_path / "output"), "--profile_output", str(folder_path)]
    msrun = [f"--worker_num={num_workers}", f"--local_worker_num={num_local}"]
    msrun += [f"--cluster_time_out={CLUSTER_TIMEOUT_S}", *(["--bind_core=True"] if has_cards() else [])]
    command = TrainingCommand(
        tuple(msrun) if num_workers > 1 else None, None, tuple(options), source.absolute(), num_workers, num_local,
        master_port=free_port(),
    )  # fmt: skip
    files = cluster.files if cluster else None
    task = NodeTask(command, folder_path, folder_path, folder_path, num_workers > 1, cluster is None, files=files)
    nodes = RayNodes(cluster.address, cluster.num_nodes, 0, task) if cluster else Nodes(task)
    nodes.connect()
    logs = attempt_folder(folder_path, 1)
    try:
        nodes.prepare(1, config.read_text("utf-8"), None, (), nodes.choose_port(may_differ=True))
        nodes.open(1)
        nodes.start()
        event = _watch(nodes, report_status)
        if cluster:
            _collect(nodes, logs)
    except NodeLostError as error:
        report_status(f"    {error}")
        return 1
    finally:
        nodes.stop_all()
        nodes.close()
        if logs.exists():
            logs.rename(folder_path / "logs")
    return 0 if event.outcome is Outcome.FINISHED else event.exit_code


def _watch(nodes: Nodes, report_status: Callable[[str], None]) -> Ended:
    """Wait for the end of the training, and return its reason."""
    reported_s, reported_step = time.monotonic(), 0
    while not nodes.is_over():
        time.sleep(POLL_S)
        progress = nodes.look()
        if time.monotonic() - reported_s >= REPORT_INTERVAL_S:
            reported_s = time.monotonic()
            if progress.step != reported_step or not progress.step:
                report_status(
                    f"    step {progress.step}/{progress.num_steps}" if progress.step else "    starting and compiling"
                )
            reported_step = progress.step
    event = nodes.explain()
    nodes.stop_all()
    return event


def _collect(nodes: Nodes, folder: Path) -> None:
    """Copy the logs of all nodes to the same path on this machine, unless it is on a shared disk."""
    for logs in nodes.ask("logs", lambda _: (1,)):
        for name, content in logs.items():
            if not (folder / name).exists():
                replace_file(folder / name, content)


# Results of the runs of a proof -> plain data.

KERNELS, TRACE = "kernel_details.csv", "trace_view.json"


def read_simulated(data: Mapping[str, Any]) -> Simulated:
    """Read the output of `mindswap simulate --json`."""
    first = data["stages"][0]
    events_ns = data["step_time_ns"] - sum(term["duration_ns"] for term in data["terms"])
    return Simulated(
        step_time_ns=data["step_time_ns"],
        peak_bytes=data["peak_bytes"],
        copy_ns=round((first["link_out_use"] + first["link_in_use"]) * events_ns),
        exposed_copy_ns=first["exposed_copy_out_ns"] + first["exposed_copy_in_ns"],
        copied_bytes=first["copied_out_bytes"] + first["copied_in_bytes"],
    )


def read_measured(folder: Path, exit_code: int, wall_s: float, is_profiled: bool = False) -> MeasuredRun:
    """Read the logs and the profile in the folder of a run."""
    logs = read_worker_logs(folder / "logs") if (folder / "logs").is_dir() else ()
    workers = tuple(
        Worker(
            log.worker,
            _read_steps(worker_log(folder / "logs" / log.node, log.worker)),
            log.memory.used_peak_bytes,
            log.memory.actual_peak_bytes,
        )
        for log in logs
    )
    is_short = any(not event.is_host for log in logs if not log.is_finished for event in log.oom_events)
    errors = [log.last_error for log in logs if log.last_error and not log.is_finished]
    profile, overlap = _read_profile(folder / "profile")
    error = errors[0] if errors else ""
    return MeasuredRun(
        exit_code=exit_code,
        wall_s=wall_s,
        workers=workers,
        is_out_of_memory=is_short,
        overlap=overlap,
        profile=profile,
        last_error=error,
        is_profiled=is_profiled,
    )


def _read_steps(log: Path) -> tuple[ReportedStep, ...]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        return parse_steps(lines)


def _read_profile(folder: Path) -> tuple[str | None, Overlap | None]:
    """Return the folder of a device profile and the overlap of its copies; None without kernels of a device."""
    kernel_files = sorted(folder.glob(f"**/{KERNELS}"))
    if not kernel_files:
        return None, None
    profile = kernel_files[0].parent
    try:
        return str(profile), trace_overlap(read_events(profile / TRACE))
    except CostError:
        return str(profile), None
