"""Compare the policy with the logs of the workers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from mindswap.config.problem import Level
from mindswap.files import package_data
from mindswap.policy.wording import name_indices
from mindswap.runtime.logs.oom import MemoryStatistics, SetLine, WorkerLog, parse_set_line, without_header


@dataclass(frozen=True)
class LogFinding:
    """Finding in the logs of one or more workers."""

    workers: tuple[int, ...]  # numbers of the workers with this finding; empty if it is about the run
    level: Level  # ERROR: the run did not follow the policy, or the logs cannot show whether it did
    message: str
    fix: str = ""  # "" if there is none


# Limit of missing logs that a finding names, because the number in a file name can be arbitrarily large.
MAX_NAMED = 10_000
# Level, message and fix of a finding, the key by which workers are grouped.
_Message = tuple[Level, str, str]


def _message(name: str, **values: object) -> _Message:
    """Format the finding of this name in `data/logs/findings.yaml`."""
    text = package_data("logs/findings.yaml")[name]
    return Level(text["level"]), text["message"].format(**values), text.get("fix", "")


@dataclass(frozen=True)
class LogReport:
    """Comparison of the logs of a run with the policy."""

    num_workers: int  # workers whose logs were read
    findings: tuple[LogFinding, ...]  # errors first, one for all workers that share it
    # worker -> memory statistics, if it logged any
    memory: Mapping[int, MemoryStatistics] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)  # worker -> folder of its node, if each node has one
    num_stages: int = 1  # pipeline stages, each with the same number of consecutive workers
    predicted_peak_bytes: int | None = None  # predicted peak memory to compare with the measured one

    def stage(self, worker: int) -> int:
        """Return the pipeline stage of a worker: MindSpore assigns consecutive ranks to each stage."""
        return worker * self.num_stages // max(self.num_workers, 1)

    @property
    def is_ok(self) -> bool:
        """Return whether every worker logged the full policy, without errors."""
        return all(finding.level is not Level.ERROR for finding in self.findings)

    def difference_bytes(self, measured: MemoryStatistics) -> int | None:
        """Return measured peak (without fragments) minus predicted peak in bytes; None if either is unknown."""
        if measured.used_peak_bytes is None or self.predicted_peak_bytes is None:
            return None
        return measured.used_peak_bytes - self.predicted_peak_bytes


def compare_logs(
    expected: Sequence[Sequence[str]],
    logs: Sequence[WorkerLog],
    predicted_peak_bytes: int | None = None,
    num_stages: int = 1,
) -> LogReport:
    """Compare the logs of all workers with the expected lines.

    Args:
        expected: lines of each layer, from `policy.applied.format_log_lines`.
        logs: the logs of the workers.
        predicted_peak_bytes: simulated peak memory; None if unknown.
        num_stages: number of pipeline stages.

    Returns:
        The findings, and the measured memory.
    """
    expected_lines = {line.text: line for lines in expected for line in map(parse_set_line, lines) if line}
    is_any_finished = any(log.is_finished for log in logs)
    # Workers with equal findings are grouped.
    workers: dict[_Message, list[int]] = {}
    for log in logs:
        for message in _examine(log, expected_lines, is_any_finished):
            workers.setdefault(message, []).append(log.worker)
    findings = [*_find_missing_logs(logs)]
    findings += [LogFinding(tuple(sorted(set(same))), *message) for message, same in workers.items()]
    memory = {log.worker: log.memory for log in logs if log.memory != MemoryStatistics()}
    order = list(Level)
    errors_first = tuple(sorted(findings, key=lambda finding: order.index(finding.level)))
    nodes = {log.worker: log.node for log in logs if log.node}
    # If logs are missing, the stage of a worker is unknown.
    has_all_workers = not logs or (max(log.worker for log in logs) == len(logs) - 1 and len(logs) % num_stages == 0)
    stages = num_stages if has_all_workers else 1
    return LogReport(len(logs), errors_first, memory, nodes, stages, predicted_peak_bytes)


def _find_missing_logs(logs: Sequence[WorkerLog]) -> Iterator[LogFinding]:
    """Report missing logs by gaps in the worker numbers, because the number of workers is unknown."""
    present = {log.worker for log in logs}
    if not present:
        yield LogFinding((), *_message("no-logs"))
    elif missing := tuple(islice((n for n in range(min(present), max(present)) if n not in present), MAX_NAMED)):
        yield LogFinding(missing, *_message("no-log"))
    elif min(present):
        yield LogFinding(tuple(range(min(present))[:MAX_NAMED]), *_message("no-log-here"))


def _examine(log: WorkerLog, expected_lines: dict[str, SetLine], is_any_finished: bool) -> Iterator[_Message]:
    if log.problem:
        yield _message("unreadable", problem=log.problem)
    elif not log.size_bytes and not log.set_lines:
        yield _message("empty")
    else:
        yield from _compare_lines(log, expected_lines)
        yield from _examine_run(log, is_any_finished)


def _compare_lines(log: WorkerLog, expected_lines: dict[str, SetLine]) -> Iterator[_Message]:
    """Compare the `Set ...` lines with those of the policy."""
    # If unmatched pieces remain, a line joined from pieces may be wrong.
    reliable = [line for line in log.set_lines if not (line.is_repaired and log.broken_lines)]
    logged = {line.text: line for line in reliable if not line.is_upstream}
    if log.has_upstream_swap or len(logged) < len(reliable):
        yield _message("upstream", also=", mindswap's are there too" if logged else "")
        if not logged:
            return
    has_started = bool(log.is_finished or log.last_step)
    if expected_lines and not logged and not log.broken_lines and has_started:
        yield _message("nothing-set")
        return
    missing = [line for text, line in expected_lines.items() if text not in logged]
    unexpected = [line for text, line in logged.items() if text not in expected_lines]
    yield from _compare_settings(missing, unexpected, has_started)
    if log.broken_lines:
        yield _message("broken" if missing else "broken-beside", piece=log.broken_lines[0])
    if log.num_lines_left_out:
        yield _message("too-many", count=log.num_lines_left_out)


def _compare_settings(
    missing: Sequence[SetLine], unexpected: Sequence[SetLine], has_started: bool
) -> Iterator[_Message]:
    """Report settings with another value than in the policy, additional settings, and missing settings."""
    wanted_of_setting: dict[_Setting, SetLine] = {}
    for line in missing:
        wanted_of_setting.setdefault(_setting(line), line)
    different = [line for line in unexpected if _setting(line) in wanted_of_setting]
    if different:
        first = different[0]
        wanted_text = wanted_of_setting[_setting(first)].text
        yield _message("other-policy", layers=_layers(different), logged=first.text, asked=wanted_text)
    if additional := [line for line in unexpected if _setting(line) not in wanted_of_setting]:
        yield _message("more", layers=_layers(additional), logged=additional[0].text)
    logged_settings = set(map(_setting, different))
    if absent := [line for line in missing if _setting(line) not in logged_settings]:
        yield _message("gone" if has_started else "not-yet", layers=_layers(absent), asked=absent[0].text)


_Setting = tuple[int, str]  # layer index and title of a `Set ...` line


def _setting(line: SetLine) -> _Setting:
    return line.layer_index, line.title


def _layers(lines: Sequence[SetLine]) -> str:
    return name_indices("layer", (line.layer_index for line in lines))


def _examine_run(log: WorkerLog, is_any_finished: bool) -> Iterator[_Message]:
    """Report findings about the run: lazy_inline, memory, and how it ended."""
    if log.num_offload_warnings:
        yield _message("dropped-on-cpu" if log.is_cpu_run else "dropped")
    elif log.is_cpu_run:
        yield _message("on-cpu")
    elif log.set_lines and not log.has_upstream_swap and not log.is_lazy_inline_on:
        yield _message("no-lazy-inline")
    at = f" at step {log.last_step}" if log.last_step else " before the first step"
    if log.oom_events:
        event = max(log.oom_events, key=lambda event: (not event.is_host, event.requested_bytes or 0))
        size = f", asked for {event.requested_bytes} bytes" if event.requested_bytes is not None else ""
        memory = "host" if event.is_host else "device"
        name = "memory-was-short" if log.is_finished else "out-of-memory"
        yield _message(name, where=memory, form=event.form, size=size, text=event.text)
    elif log.is_finished:
        return
    elif log.last_error:
        yield _message("failed", at=at, error=without_header(log.last_error))
    else:
        cut = ", in the middle of a line" if log.is_cut_off else ""
        name = "cut-off" if is_any_finished else "unfinished" if log.last_step else "not-begun"
        yield _message(name, at=at + cut)
