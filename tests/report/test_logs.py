"""Of ten thousand workers a table helps nobody: who differs, by stage and node, and the first difference."""

from mindswap.report.logs import format_logs
from mindswap.training.logs.compare import FindingLevel, LogFinding, LogReport
from mindswap.training.logs.oom import MemoryStatistics

NODES = {worker: f"node_{worker // 8}" for worker in range(64)}


def said(workers, message, fix=""):
    return LogFinding(tuple(workers), FindingLevel.ERROR, message, fix)


def report(findings=(), memory=None, **options):
    return LogReport(64, tuple(findings), memory or {}, **{"nodes": NODES, "num_stages": 4, **options})


def test_workers_of_one_stage_and_node():
    text = format_logs(report([said(range(16, 24), "no line for layer 3", "wait")]))
    assert text.splitlines()[:2] == ["workers 16-23 in stage 1, node_2: error: no line for layer 3", "    fix: wait"]


def test_every_stage_and_node_goes_without_saying():
    assert format_logs(report([said(range(64), "its log is empty")])).startswith(
        "workers 0-63: error: its log is empty\n"
    )


def test_workers_scattered_over_the_run_are_counted():
    text = format_logs(report([said(range(0, 64, 4), "its log is empty")]))
    assert text.startswith("16 workers (0, 4, 8, 12, 16, 20, 24, 28 and 8 more): error: its log is empty\n")


def test_findings_that_differ_in_a_number_only_are_one():
    findings = [said([worker], f"failed at step {worker}/40: no space") for worker in range(2, 9)]
    first, verdict = format_logs(report(findings)).splitlines()
    assert first == (
        "workers 2-8 in stage 0, node_0, node_1: error: failed at step 2/40: no space "
        "(worker 2; the others with other numbers)"
    )
    assert verdict.startswith("logs of 64 workers do NOT")


def test_three_findings_are_shown_one_by_one():
    findings = [said([worker], f"failed at step {worker}/40") for worker in (2, 3, 4)]
    assert len(format_logs(report(findings)).splitlines()) == 4


def test_memory_of_many_workers_is_the_highest_of_each_stage():
    memory = {worker: MemoryStatistics(used_peak_bytes=(1000 - worker) << 30) for worker in range(64)}
    rows = [line.split() for line in format_logs(report(memory=memory)).splitlines()[2:6]]
    assert [row[:5] for row in rows] == [
        ["workers", "0-15", "in", "stage", "0,"], ["workers", "16-31", "in", "stage", "1,"],
        ["workers", "32-47", "in", "stage", "2,"], ["workers", "48-63", "in", "stage", "3,"],
    ]  # fmt: skip
    assert [float(row[row.index("GiB") - 1]) for row in rows] == [1000, 984, 968, 952]


def test_without_nodes_and_stages_nothing_is_added():
    text = format_logs(report([said([3], "its log is empty")], nodes={}, num_stages=1))
    assert text.startswith("worker 3: error: its log is empty\n")
