import pytest

from mindswap.training.launch.msrun import failure_report, put_old_logs_aside


def write(folder, **logs):
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_logs_of_an_earlier_run_with_more_workers_go_aside(tmp_path):
    write(tmp_path, worker_0="a", worker_1="b", worker_9="c", scheduler="d", worker_x="e", other="f")
    put_old_logs_aside(tmp_path, range(2), 2, with_scheduler=True)
    assert names(tmp_path) == [
        "other.log", "scheduler.log.old", "worker_0.log.old", "worker_1.log.old", "worker_9.log.old", "worker_x.log",
    ]  # fmt: skip


def test_logs_of_other_machines_of_the_job_stay(tmp_path):
    write(tmp_path, worker_0="node 0, just started", worker_2="old", worker_4="old", scheduler="node 0")
    put_old_logs_aside(tmp_path, range(2, 4), 4, with_scheduler=False)
    assert names(tmp_path) == ["scheduler.log", "worker_0.log", "worker_2.log.old", "worker_4.log.old"]


TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: boom\nafterwards\n'


def test_report_groups_equal_errors_and_names_the_missing(tmp_path):
    write(tmp_path, worker_0=TRACEBACK, worker_1=TRACEBACK, worker_2="fine\n", worker_4=TRACEBACK, scheduler=TRACEBACK)
    assert failure_report(tmp_path, range(5)).splitlines() == [
        "    workers 0-1, 4: ValueError: boom",
        "    worker_3.log: no log: this worker was not started",
        "    worker_2.log: no error in the log; msrun stops all workers when one fails",
        f"    logs: {tmp_path}",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "mindspore.common.MyError: deep",
        "KeyboardInterrupt",
        "[ERROR] ME(1:2,MainProcess):2026 no memory",
        "mindswap: error: no such file",
        "x.yaml:4:1: error: bad",
        "2026-11-21 00:52:22,754 - mindformers/log[x.py:31] - ERROR - bad",
    ],
)
def test_lines_that_count_as_errors(tmp_path, line):
    write(tmp_path, worker_0=f"start\nno Error: here\n{line}\nlater\n")
    assert failure_report(tmp_path, [0]).splitlines()[0] == f"    worker_0.log: {line}"


def test_a_traceback_counts_more_than_later_log_lines_and_long_lines_are_cut(tmp_path):
    write(tmp_path, worker_0=f"RuntimeError: {'x' * 999}\n[ERROR] shutting down\n")
    (line, _) = failure_report(tmp_path, [0]).splitlines()
    assert line.startswith("    worker_0.log: RuntimeError: xxx") and line.endswith("x ...") and len(line) < 350


def test_killed_workers(tmp_path):
    write(tmp_path, worker_0="step 1\n", worker_1="", scheduler="KeyError: 'x'\n")
    assert "scheduler.log: KeyError: 'x'" in failure_report(tmp_path, range(2))
    write(tmp_path, scheduler="fine")
    report = failure_report(tmp_path, range(2))
    assert "worker_1.log: its log is empty" in report and "no error in any log: was a worker killed" in report
