"""Policy against what the workers logged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mindswap.config.problem import Level
from mindswap.policy.words import name_indices
from mindswap.training.logs.oom import MemoryStatistics, SetLine, WorkerLog, parse_set_line, without_header

_RUN_WITH_PLUGIN = "put `mindswap run` in front of the script: mindswap run run_mindformer.py --config ..."
_READ_WHOLE = "wait for the end of the run, or copy the whole log, and verify again"
_OTHER_FILE = "was this run started with this configuration? Every worker must read the same file"
_MORE_SWAP = "swap or recompute more, or lower the batch size; the memory statistics say how much is missing"
_LAZY_INLINE = (
    "lazy_inline must be on: start with `mindswap run`, which switches it on, and do not set disable_lazy_inline"
)


@dataclass(frozen=True)
class LogFinding:
    """One thing found in the logs."""

    workers: tuple[int, ...]  # numbers of the workers whose logs say the same; empty for all of them together
    level: Level  # an error means that the run did not do what the policy asks, or that this cannot be seen
    message: str  # what is wrong
    fix: str = ""  # what to do; "" if nothing


# Level, message and fix of a finding, before it is known who shares it.
_Said = tuple[Level, str, str]


@dataclass(frozen=True)
class LogReport:
    """The logs of a run against the policy."""

    num_workers: int  # workers whose logs were read
    findings: tuple[LogFinding, ...]  # errors first; workers with the same finding in one
    # of the workers that printed statistics, by their number
    memory: Mapping[int, MemoryStatistics] = field(default_factory=dict)
    nodes: Mapping[int, str] = field(default_factory=dict)  # worker -> folder of its node, where each node has one
    num_stages: int = 1  # pipeline stages, each of as many workers in a row
    predicted_peak_bytes: int | None = None  # what the measured peak is compared with

    def stage(self, worker: int) -> int:
        """Pipeline stage of a worker: MindSpore gives each stage as many ranks in a row."""
        return worker * self.num_stages // max(self.num_workers, 1)

    @property
    def is_ok(self) -> bool:
        """Every worker logged the policy, whole and without an error."""
        return all(finding.level is not Level.ERROR for finding in self.findings)

    def difference_bytes(self, measured: MemoryStatistics) -> int | None:
        """Measured peak, without fragments, minus the predicted one; None without either."""
        if measured.used_peak_bytes is None or self.predicted_peak_bytes is None:
            return None
        return measured.used_peak_bytes - self.predicted_peak_bytes


def compare_logs(
    expected: Sequence[Sequence[str]],
    logs: Sequence[WorkerLog],
    predicted_peak_bytes: int | None = None,
    num_stages: int = 1,
) -> LogReport:
    """Compare what every worker logged with the lines of each layer that `policy.applied` gives."""
    wanted = {line.text: line for lines in expected for line in map(parse_set_line, lines) if line}
    is_any_finished = any(log.is_finished for log in logs)
    # Workers of which the same is said are one finding.
    workers: dict[_Said, list[int]] = {}
    for log in logs:
        for said in _examine(log, wanted, is_any_finished):
            workers.setdefault(said, []).append(log.worker)
    found = [*_find_missing_logs(logs)]
    found += [LogFinding(tuple(sorted(set(same))), *said) for said, same in workers.items()]
    memory = {log.worker: log.memory for log in logs if log.memory != MemoryStatistics()}
    order = list(Level)
    errors_first = tuple(sorted(found, key=lambda finding: order.index(finding.level)))
    nodes = {log.worker: log.node for log in logs if log.node}
    # With a log missing, which stage a worker is of is not known.
    is_whole = not logs or max(log.worker for log in logs) == len(logs) - 1 and len(logs) % num_stages == 0
    stages = num_stages if is_whole else 1
    return LogReport(len(logs), errors_first, memory, nodes, stages, predicted_peak_bytes)


def _find_missing_logs(logs: Sequence[WorkerLog]) -> Iterator[LogFinding]:
    """A gap in the numbers shows a missing log; how many workers there were is not known."""
    present = {log.worker for log in logs}
    if not present:
        fix = "give the folder that holds worker_0.log, ..."
        yield LogFinding((), Level.ERROR, "no log of a worker in this folder", fix)
    elif missing := tuple(sorted(set(range(min(present), max(present) + 1)) - present))[:10_000]:
        fix = "collect the logs of all machines in one folder; was it started?"
        yield LogFinding(missing, Level.ERROR, "no log", fix)
    elif min(present):
        before = tuple(range(min(present)))[:10_000]
        yield LogFinding(before, Level.WARNING, "no log here: did they run on another machine?")


def _examine(log: WorkerLog, wanted: dict[str, SetLine], is_any_finished: bool) -> Iterator[_Said]:
    if log.problem:
        yield Level.ERROR, f"its log {log.problem}", ""
    elif not log.size_bytes and not log.set_lines:
        yield Level.ERROR, "its log is empty", "did the worker start? " + _READ_WHOLE
    else:
        yield from _compare_lines(log, wanted)
        yield from _examine_run(log, is_any_finished)


def _compare_lines(log: WorkerLog, wanted: dict[str, SetLine]) -> Iterator[_Said]:
    """The `Set ...` lines against those of the policy."""
    # With pieces left over, a line put together from pieces may be one that nobody wrote.
    sure = [line for line in log.set_lines if not (line.is_repaired and log.broken_lines)]
    own = {line.text: line for line in sure if not line.is_upstream}
    has_upstream = log.has_upstream_swap or len(own) < len(sure)
    if has_upstream:
        also = ", mindswap's are there too" if own else ""
        message = f"MindFormers handled swap_config by itself: its `Set` lines prove no effect{also}"
        yield Level.ERROR, message, _RUN_WITH_PLUGIN
        if not own:
            return
    has_started = bool(log.is_finished or log.last_step)
    if wanted and not own and not log.broken_lines and has_started:
        yield Level.ERROR, "trained, but nothing was set on any layer: mindswap was not there", _RUN_WITH_PLUGIN
        return
    missing = [line for text, line in wanted.items() if text not in own]
    foreign = [line for text, line in own.items() if text not in wanted]
    other = [line for line in foreign if any(_is_same_place(line, asked) for asked in missing)]
    if other:
        asked = next(asked for asked in missing if _is_same_place(other[0], asked))
        message = f"another policy in {_layers(other)}: logged '{other[0].text}', asked for '{asked.text}'"
        yield Level.ERROR, message, _OTHER_FILE
    if extra := [line for line in foreign if line not in other]:
        yield Level.ERROR, f"more than the policy asks for in {_layers(extra)}: '{extra[0].text}'", _OTHER_FILE
    if gone := [line for line in missing if not any(_is_same_place(line, there) for there in other)]:
        where = "it ends before they came" if not has_started else "they were lost or never came"
        yield Level.ERROR, f"no line for {_layers(gone)}, as '{gone[0].text}': {where}", _READ_WHOLE
    if log.broken_lines:
        judged = (Level.ERROR, "let every worker write a log of its own") if missing else (Level.WARNING, "")
        yield judged[0], f"broken by another line or cut off: '{log.broken_lines[0]}'", judged[1]
    if log.num_lines_left_out:
        yield Level.ERROR, f"{log.num_lines_left_out} more `Set` lines, too many to compare", ""


def _is_same_place(first: SetLine, second: SetLine) -> bool:
    return (first.layer_index, first.title) == (second.layer_index, second.title)


def _layers(lines: Sequence[SetLine]) -> str:
    return name_indices("layer", (line.layer_index for line in lines))


def _examine_run(log: WorkerLog, is_any_finished: bool) -> Iterator[_Said]:
    """Findings about the run: lazy_inline, memory, its end."""
    if log.num_offload_warnings:
        level, fix = (Level.NOTE, "") if log.is_cpu_run else (Level.ERROR, _LAZY_INLINE)
        yield level, "the compiler dropped offloads, because they are outside a lazy_inline cell", fix
    elif log.is_cpu_run:
        yield Level.NOTE, "ran on CPU, where nothing is offloaded", ""
    elif log.set_lines and not log.has_upstream_swap and not log.is_lazy_inline_on:
        yield Level.WARNING, "does not say that lazy_inline is on, without which nothing is offloaded", ""
    yield from _examine_oom(log)
    if log.is_finished:
        return
    at = f" at step {log.last_step}" if log.last_step else " before the first step"
    if log.last_error and not log.oom_events:
        yield Level.ERROR, f"failed{at}: {without_header(log.last_error)}", ""
    elif not log.oom_events:
        cut = ", in the middle of a line" if log.is_cut_off else ""
        if is_any_finished:
            yield Level.ERROR, f"its log ends{at}{cut}, while others finished: it is cut off", _READ_WHOLE
        elif not log.last_step:
            yield Level.ERROR, f"its log ends{at}{cut}: still running, or cut off", _READ_WHOLE
        else:
            yield Level.WARNING, f"not finished: its log ends{at}{cut}", ""


def _examine_oom(log: WorkerLog) -> Iterator[_Said]:
    if not log.oom_events:
        return
    event = max(log.oom_events, key=lambda event: (not event.is_host, event.requested_bytes or 0))
    memory = "host memory" if event.is_host else "device memory"
    size = f", asked for {event.requested_bytes} bytes" if event.requested_bytes is not None else ""
    if log.is_finished:
        yield Level.WARNING, f"{memory} was short once, and the run went on: {event.text}", ""
    else:
        yield Level.ERROR, f"out of {memory} ({event.form}{size}): {event.text}", _MORE_SWAP
