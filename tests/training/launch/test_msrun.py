import sys
from pathlib import Path

import pytest

from mindswap.errors import LaunchError
from mindswap.training.launch import msrun
from mindswap.training.launch.arguments import Job


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
    with pytest.raises(LaunchError, match="pip install mindspore==2.9.0"):
        msrun.find_msrun()
