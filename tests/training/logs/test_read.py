"""Files: whatever lies where a log should be is a finding, never a traceback."""

import os
import resource
import time
from pathlib import Path

import pytest

from mindswap.errors import LogError
from mindswap.training.logs.read import read_worker_log, read_worker_logs
from tests.training.logs.samples import EXPECTED, START, TRAIN, log_text


def test_the_logs_of_a_run_by_number(tmp_path):
    for worker in (10, 2, 0):
        (tmp_path / f"worker_{worker}.log").write_text(log_text())
    for other in ("scheduler.log", "worker_3.log.old", "worker_x.log", "worker_.log", "notes.txt"):
        (tmp_path / other).write_text("Set op_swap at layer 0: .x, value=1\n")
    logs = read_worker_logs(tmp_path)
    assert [log.worker for log in logs] == [0, 2, 10]
    assert {(log.last_step, log.last_error, log.is_finished, log.problem) for log in logs} == {("40/40", "", True, "")}


def test_the_last_error(tmp_path):
    path = tmp_path / "worker_0.log"
    path.write_text(log_text(end=["Traceback (most recent call last):\n", "ValueError: no\n"]))
    assert read_worker_log(path, 0).last_error == "ValueError: no"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Path.mkdir, "is a folder"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
        (lambda path: path.symlink_to("nowhere"), "cannot be read: No such file or directory"),
        (lambda path: path.write_bytes(b""), ""),
    ],
)
def test_no_log(tmp_path, make, problem):
    make(tmp_path / "worker_0.log")
    (log,) = read_worker_logs(tmp_path)
    assert log.problem == problem


def test_no_permission(tmp_path, monkeypatch):
    (tmp_path / "worker_0.log").write_text(log_text())

    def no_permission(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", no_permission)  # root may read everything
    assert read_worker_logs(tmp_path)[0].problem == "cannot be read: Permission denied"


def test_no_folder(tmp_path):
    with pytest.raises(LogError, match="no such folder"):
        read_worker_logs(tmp_path / "none")
    (tmp_path / "worker_0.log").write_text("")
    with pytest.raises(LogError, match="is no folder"):
        read_worker_logs(tmp_path / "worker_0.log")


def test_a_large_log_in_bounded_memory(tmp_path):
    """50 MB, most of it steps of the training; the lines that matter at both ends and a failure in the middle."""
    failure = "RuntimeError: Memory isn't enough and alloc failed, kernel name: x, alloc size: 64B.\n"
    step = "".join(TRAIN[1:]) + START[2]
    path = tmp_path / "worker_0.log"
    with path.open("w") as file:
        file.write(log_text(train=[], end=[]))
        for part in range(50):
            file.write(step * (1_000_000 // len(step)))
            if part == 25:
                file.write(failure)
        file.write(log_text([], train=[]))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    log = read_worker_log(path, 0)
    seconds = time.process_time() - start
    assert [line.text for line in log.set_lines] == [lines[0] for lines in EXPECTED]
    assert log.oom_events[0].requested_bytes == 64
    assert (log.is_finished, log.size_bytes) == (True, path.stat().st_size)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 8 << 10
    assert seconds < 5  # 10 MB/s; benchmarks/log_speed.py measures it
