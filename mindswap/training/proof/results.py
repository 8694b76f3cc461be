"""What the runs of a proof left behind -> plain data."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindswap.training.logs.read import read_worker_logs
from mindswap.training.logs.step_report import ReportedStep, parse_steps
from mindswap.training.proof.children import Answer
from mindswap.training.proof.model import Fit, MeasuredRun, Simulated, VerifiedEffect, Worker
from mindswap.training.proof.overlap import Overlap, trace_overlap

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
