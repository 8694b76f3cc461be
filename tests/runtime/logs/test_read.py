"""Files: whatever lies where a log should be is a finding, never a traceback."""

import os
import resource
from pathlib import Path

import pytest

from mindswap.errors import LogError
from mindswap.runtime.logs import read
from mindswap.runtime.logs.read import read_worker_log, read_worker_logs
from tests.runtime.logs.samples import EXPECTED, START, TRAIN, log_text


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


# The log of a process that msrun did not start, as MindFormers writes it.
RANK_LOG = """\
[INFO] 2026-11-29 23:38:36,161 [/x/apply.py:63] train: Set op_swap at layer 0: .attention, value=20
[INFO] 2026-11-29 23:38:41,165 [mindformers/core/callback/callback.py:747] print_output_info: { Epoch:[  1/  1], \
step:[    2/    2], loss:[5.562471/5.562471], per_step_time: 8059ms, lr: 0.002
[INFO] 2026-11-29 23:38:41,736 [mindformers/trainer/base_trainer.py:1689] training_process: \
.........Training Over!.............
"""


@pytest.mark.parametrize("given", ["output", "output/log", "output/log/rank_0", "output/log/rank_0/info.log"])
def test_a_single_process_has_the_log_of_its_rank(tmp_path, given):
    folder = tmp_path / "output/log/rank_0"
    folder.mkdir(parents=True)
    (folder / "info.log").write_text(RANK_LOG)
    (folder / "error.log").write_text("")
    (log,) = read_worker_logs(tmp_path / given)
    assert (log.worker, log.last_step, log.is_finished) == (0, "2/2", True)
    assert [line.text for line in log.set_lines] == ["Set op_swap at layer 0: .attention, value=20"]


def test_ranks_have_their_numbers(tmp_path):
    for rank in (0, 10, 2):
        (tmp_path / f"log/rank_{rank}").mkdir(parents=True)
        (tmp_path / f"log/rank_{rank}/info.log").write_text(RANK_LOG)
    (tmp_path / "log/rank_x").mkdir()
    assert [log.worker for log in read_worker_logs(tmp_path)] == [0, 2, 10]
    assert [log.worker for log in read_worker_logs(tmp_path / "log/rank_10")] == [10]


def test_logs_of_workers_go_before_those_of_ranks(tmp_path):
    """MindFormers writes its own beside those of msrun; one of them is enough."""
    (tmp_path / "log/rank_0").mkdir(parents=True)
    (tmp_path / "log/rank_0/info.log").write_text(RANK_LOG)
    (tmp_path / "worker_0.log").write_text("")
    assert [log.is_finished for log in read_worker_logs(tmp_path)] == [False]


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
    with pytest.raises(LogError, match="is not a folder"):
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
    log = read_worker_log(path, 0)
    assert [line.text for line in log.set_lines] == [lines[0] for lines in EXPECTED]
    assert log.oom_events[0].requested_bytes == 64
    assert (log.is_finished, log.size_bytes) == (True, path.stat().st_size)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 8 << 10


def write_nodes(folder, numbers_by_node):
    for node, numbers in numbers_by_node.items():
        (folder / node).mkdir()
        for number in numbers:
            (folder / node / f"worker_{number}.log").write_text(log_text())


def test_a_folder_for_each_node_with_numbers_over_all_nodes(tmp_path):
    write_nodes(tmp_path, {"node_0": (0, 1), "node_1": (2, 3), "node_10": (4, 5)})
    (tmp_path / "scheduler.log").write_text("")
    assert [(log.worker, log.node) for log in read_worker_logs(tmp_path)] == [
        (0, "node_0"), (1, "node_0"), (2, "node_1"), (3, "node_1"), (4, "node_10"), (5, "node_10"),
    ]  # fmt: skip


def test_nodes_that_each_begin_at_0(tmp_path):
    """msrun without --node_rank; the number of the folder says which node it is."""
    write_nodes(tmp_path, {"node_1": (0, 1), "node_0": (0, 1)})
    assert [(log.worker, log.node) for log in read_worker_logs(tmp_path)] == [
        (0, "node_0"), (1, "node_0"), (2, "node_1"), (3, "node_1"),
    ]  # fmt: skip


def test_two_logs_of_one_worker(tmp_path):
    write_nodes(tmp_path, {"node_0": (0, 1), "node_1": (1, 2)})
    with pytest.raises(LogError, match=r"node_0/worker_1\.log and .*node_1/worker_1\.log are of the same worker"):
        read_worker_logs(tmp_path)


def test_several_processes_read_the_same_as_one(tmp_path, monkeypatch):
    write_nodes(tmp_path, {f"node_{node}": (2 * node, 2 * node + 1) for node in range(5)})
    (tmp_path / "node_3" / "worker_6.log").unlink()
    (tmp_path / "node_3" / "worker_6.log").mkdir()
    told = []
    alone = read_worker_logs(tmp_path)
    monkeypatch.setattr(read, "MIN_PARALLEL_BYTES", 0)
    assert read_worker_logs(tmp_path, lambda *numbers: told.append(numbers)) == alone
    assert told == [(number, 10) for number in range(1, 11)]
    assert [log.problem for log in alone if log.problem] == ["is a folder"]


@pytest.mark.parametrize(
    "line",
    [
        "mindswap: error: no such file",
        "mindswap：错误：没有这个文件",
        "x.yaml:3:1: 错误: swap_config",
        "mindswap：程序缺陷：KeyError：1",
    ],
)
def test_the_last_error_is_found_in_both_languages(line):
    """Workers have the locale of the user."""
    assert read.find_last_error(["started", line, "    fix:     delete it"]) == line
