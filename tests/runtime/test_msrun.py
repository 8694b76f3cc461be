import os
import socket
import sys
from pathlib import Path

import pytest

from mindswap.errors import LaunchError
from mindswap.runtime import msrun
from mindswap.runtime.launcher_arguments import Job
from mindswap.runtime.msrun import (
    RUN_DIR_BYTES,
    archive_old_logs,
    check_port,
    describe_full,
    failure_report,
    require_disk_space,
)


def test_one_machine_needs_no_address():
    job = Job("x", 8, 8, "10.0.0.7", 8118, 0, "logs", True, 300)
    assert msrun.msrun_arguments(job, "L", ["python", "-m", "x"], bind_core=False) == [
        "--worker_num=8", "--local_worker_num=8", "--master_port=8118", "--log_dir=L", "--join=True",
        "--cluster_time_out=300", "--", "python", "-m", "x",
    ]  # fmt: skip


def test_several_machines_with_cards():
    job = Job("x", 16, 8, "10.0.0.7", 8118, 1, "logs", False, 300)
    assert msrun.msrun_arguments(job, "L", ["python"], bind_core=True) == [
        "--bind_core=True", "--worker_num=16", "--local_worker_num=8", "--master_addr=10.0.0.7", "--master_port=8118",
        "--node_rank=1", "--log_dir=L", "--join=False", "--cluster_time_out=300", "--", "python",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"LOG_MF_PATH": "/w/output/log"}),
        ({"MF_LOG_SUFFIX": ""}, {"LOG_MF_PATH": "/w/output/log"}),
        ({"MF_LOG_SUFFIX": "a"}, {"LOG_MF_PATH": "/w/output/log_a"}),
        ({"MF_LOG_SUFFIX": "a", "LOG_MF_PATH": "/x"}, {"LOG_MF_PATH": "/x"}),
        ({"LOG_MF_PATH": ""}, {"LOG_MF_PATH": "/w/output/log"}),
        ({"PLOG_REDIRECT_TO_OUTPUT": "False"}, {"ASCEND_PROCESS_LOG_PATH": None}),
        ({"PLOG_REDIRECT_TO_OUTPUT": "True", "MF_LOG_SUFFIX": "a"}, {"ASCEND_PROCESS_LOG_PATH": "/w/output/plog_a"}),
    ],
)
def test_log_variables_are_those_of_upstream(given, expected):
    environment = msrun.worker_environment(given, Path("/w"))
    assert {name: environment.get(name) for name in expected} == expected
    assert msrun.log_folder(Job("x", log_dir="l"), given) == Path("l_a" if given.get("MF_LOG_SUFFIX") else "l")


def test_workers_find_this_python_first():
    path = msrun.worker_environment({"PATH": "/bin"}, Path("/w"))["PATH"]
    assert path == f"{Path(sys.executable).parent}:/bin"


def test_python_of_another_name(monkeypatch, tmp_path):
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    assert msrun.find_python() == "python3"
    (tmp_path / "python3.11").write_text("another")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3.11"))
    with pytest.raises(LaunchError, match="lacks"):
        msrun.find_python()


def test_without_mindspore_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"pip install mindspore==2\.9\.0"):
        msrun.find_msrun()


# Logs.


def write(folder, **logs):
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_logs_of_an_earlier_run_with_more_workers_go_aside(tmp_path):
    write(tmp_path, worker_0="a", worker_1="b", worker_9="c", scheduler="d", worker_x="e", other="f")
    archive_old_logs(tmp_path, range(2), 2, with_scheduler=True)
    assert names(tmp_path) == [
        "other.log", "scheduler.log.old", "worker_0.log.old", "worker_1.log.old", "worker_9.log.old", "worker_x.log",
    ]  # fmt: skip


def test_logs_of_other_machines_of_the_job_stay(tmp_path):
    write(tmp_path, worker_0="node 0, just started", worker_2="old", worker_4="old", scheduler="node 0")
    archive_old_logs(tmp_path, range(2, 4), 4, with_scheduler=False)
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


# Network.


@pytest.fixture(params=["127.0.0.1", "0.0.0.0"])
def used_port(request):
    with socket.create_server((request.param, 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use_is_named_with_a_free_one(used_port):
    with pytest.raises(LaunchError, match=f"MASTER_PORT {used_port} of 127.0.0.1 is in use\n.* is free") as error:
        check_port("127.0.0.1", used_port)
    check_port("127.0.0.1", int(str(error.value).split("fix:")[1].split()[0]))


def test_the_free_port_is_given_as_it_is_typed(used_port):
    with pytest.raises(LaunchError, match=r"fix:     add --master_port=(\d+) \(ss -ltnp") as error:
        check_port("127.0.0.1", used_port, fix="add --master_port=")
    assert f"MASTER_PORT {used_port}" in str(error.value)


def test_a_port_is_free_again_at_once(used_port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        connection, _ = server.accept()
        connection.close()  # the server's side closes first and waits (TIME_WAIT)
        client.close()
    check_port("127.0.0.1", port)


def test_ports_of_other_machines_are_not_checked(used_port):
    check_port("203.0.113.1", used_port)  # TEST-NET-3: never an address of this machine


def test_an_unknown_host():
    with pytest.raises(LaunchError, match=r"MASTER_ADDR is 'no\.such\.host\.invalid'"):
        check_port("no.such.host.invalid", 8118)


# Room.


class Status:
    """What `statvfs` says: 10 of 100 blocks of 4 KiB are free."""

    f_bavail, f_frsize, f_blocks, f_files, f_favail = 10, 4096, 100, 50, 7


@pytest.fixture
def disk(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "statvfs", lambda place: asked.append(place) or Status)
    return asked


def test_a_folder_that_is_not_there_yet_is_on_the_file_system_of_the_one_above(disk, tmp_path):
    assert describe_full(tmp_path / "run" / "logs", 40960, "a plan") == ""
    assert disk == [tmp_path]


def test_without_an_inode_nothing_is_free(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(Status, "f_favail", 0)
    assert "0 B of 400.0 KiB are free" in describe_full(tmp_path, 1, "a plan")


def test_what_is_missing_is_said(disk, tmp_path):
    assert describe_full(tmp_path, 40960, "a plan") == ""
    text = describe_full(tmp_path, 40960 + 1024, "a plan")
    assert text == f"{tmp_path}: 40.0 KiB of 400.0 KiB are free on its file system; a plan needs 41.0 KiB, 1.0 KiB more"


def test_a_run_stops_before_anything_is_planned(disk, tmp_path, monkeypatch):
    with pytest.raises(LaunchError, match="make room there"):
        require_disk_space(tmp_path)
    monkeypatch.setattr(Status, "f_bavail", RUN_DIR_BYTES // 4096)
    require_disk_space(tmp_path)
