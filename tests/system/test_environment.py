"""Variables that a shell or a pod was left with do not reach what this package runs and reads."""

import os
import pwd
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mindswap.system.environment import (
    home_is_set,
    package_environment,
    readable_environment,
    replaced_environment,
    user_environment,
)

ROOT = Path(__file__).parents[2]
UNKNOWN_USER = ("unshare", "--user", "--map-user=12345", "--map-group=12345", "--")
# What each does to a process of the package is in tests/test_hostile_environments.py.
LEFT_BY_OTHERS = {
    "GLOG_v": "3", "GLOG_logtostderr": "0", "MS_SUBMODULE_LOG_v": "{RUNTIME_FRAMEWORK:4}", "VLOG_v": "1",
    "MINDSPORE_DUMP_CONFIG": "/nowhere.json", "MS_COMPILER_CACHE_ENABLE": "1", "MS_DEV_SAVE_GRAPHS": "1",
    "MS_SIMULATION_LEVEL": "3", "MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "8", "RANK_ID": "5", "RANK_SIZE": "8",
    "DEVICE_ID": "3", "RANK_TABLE_FILE": "/nowhere.json", "ASCEND_GLOBAL_LOG_LEVEL": "0", "STDOUT_DEVICES": "7",
    "ASCEND_RT_VISIBLE_DEVICES": "9", "PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error", "PYTHONIOENCODING": "ascii",
    "LC_MESSAGES": "zh_CN", "LANGUAGE": "zh",
}  # fmt: skip
# What a training has too, and where things are installed.
OF_USE = {
    "HOME": "/home/user", "PATH": "/bin", "PYTHONPATH": "/code", "MS_DEV_RUNTIME_CONF": "switch_inline:False",
    "HCCL_BUFFSIZE": "50", "MS_ALLOC_CONF": "enable_vmm:False", "ASCEND_HOME_PATH": "/usr/local/Ascend",
    "ASCEND_TENSOR_COMPILER_INCLUDE": "/usr/local/Ascend/include", "ASCEND_CACHE_PATH": "/disk/cache",
    "ASCEND_WORK_PATH": "/disk/work", "ASCEND_PROCESS_LOG_PATH": "/disk/log", "REGISTER_PATH": "/code/research",
    "MS_JIT_MODULES": "research", "MS_JIT_IGNORE_MODULES": "other", "MS_DEV_TENSOR_INDEX_BOOST": "1",
    "MS_CUSTOM_AOT_WHITE_LIST": "/code/operators",
    "MINDSWAP_PROGRESS": "0",
}  # fmt: skip
OURS = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}


def test_only_listed_variables_of_the_libraries_pass():
    assert package_environment(LEFT_BY_OTHERS | OF_USE) == OF_USE | OURS


def test_folders_are_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    relative = ("MINDSWAP_CACHE", "XDG_CACHE_HOME", "HOME", "REGISTER_PATH", "MS_CUSTOM_AOT_WHITE_LIST")
    names = (*relative, "ASCEND_CACHE_PATH", "ASCEND_WORK_PATH", "ASCEND_PROCESS_LOG_PATH")
    found = package_environment({"TMPDIR": "/t", **{name: f"./{name}" for name in names}})
    assert found == {"TMPDIR": "/t", **{name: f"{tmp_path}/{name}" for name in names}} | OURS


def test_a_training_whose_log_is_read_keeps_all_but_what_hides_it():
    hiding = {"GLOG_v", "GLOG_logtostderr", "MS_SUBMODULE_LOG_v", "STDOUT_DEVICES"}
    found = readable_environment(LEFT_BY_OTHERS | OF_USE)
    assert found.keys() == (LEFT_BY_OTHERS | OF_USE).keys() - hiding
    assert readable_environment({"GLOG_v": "0"}) == {"GLOG_v": "0"}


def test_variables_are_replaced_while_mindspore_is_used(monkeypatch):
    monkeypatch.setenv("MS_COMPILER_CACHE_ENABLE", "1")
    monkeypatch.setenv("GLOG_v", "3")
    before = dict(os.environ)
    with replaced_environment():
        assert not {"MS_COMPILER_CACHE_ENABLE", "GLOG_v"} & os.environ.keys()
        assert user_environment() == before
        with replaced_environment():
            assert user_environment() == before
        assert "GLOG_v" not in os.environ
        os.environ["TE_OF_IMPORT"] = "stays, as a library sets it for later"
        os.environ["LC_ALL"] = "so does this"
    monkeypatch.delenv("TE_OF_IMPORT")
    assert os.environ.pop("LC_ALL") == "so does this"
    before.pop("LC_ALL", None)
    assert os.environ == before


@pytest.mark.parametrize("given", [None, "", "/home/user", "relative"])
def test_a_home_is_set_only_where_there_is_none_and_only_meanwhile(given, monkeypatch):
    monkeypatch.delenv("HOME")
    if given is not None:
        monkeypatch.setenv("HOME", given)
    before = dict(os.environ)
    with home_is_set():
        assert os.environ["HOME"] == (given or pwd.getpwuid(os.getuid()).pw_dir)
    assert os.environ == before


def test_a_command_that_needs_no_home_works_without(tmp_path):
    """The user is unknown to the system, and the place for what such a user has is taken."""
    (tmp_path / "mindswap-user-12345").touch()
    environ = {name: text for name, text in os.environ.items() if name != "HOME"} | {"TMPDIR": str(tmp_path)}
    code = "import os; from mindswap.cli import main; code = main(['--version']); print(code, os.environ.get('HOME'))"
    command = [*UNKNOWN_USER, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=ROOT)
    assert done.stdout.splitlines()[1:] == ["0 None"], done.stderr


def test_children_of_other_threads_get_the_same_meanwhile(monkeypatch):
    """A dry run starts its processes while this one compiles: no thread may see variables that are half replaced."""
    for name, text in LEFT_BY_OTHERS.items():
        monkeypatch.setenv(name, text)
    expected, found, is_over = package_environment(), [], threading.Event()

    def look() -> None:
        while not is_over.is_set():
            found.append(package_environment())

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(50):
        with replaced_environment():
            pass
    is_over.set()
    thread.join()
    assert found and all(one == expected for one in found)
    assert Path.cwd()


def test_a_variable_that_a_library_set_is_there_the_next_time(monkeypatch):
    """MindFormers sets MS_DEV_JIT_SYNTAX_LEVEL once: the second compile of a newer model failed without it."""
    monkeypatch.setattr("mindswap.system.environment._set_by_libraries", {})
    monkeypatch.delenv("MS_OF_A_LIBRARY", raising=False)
    monkeypatch.setenv("MS_OF_THE_USER", "1")
    with replaced_environment():
        os.environ["MS_OF_A_LIBRARY"] = "0"
    with replaced_environment():
        assert os.environ["MS_OF_A_LIBRARY"] == "0" and "MS_OF_THE_USER" not in os.environ
    monkeypatch.delenv("MS_OF_A_LIBRARY", raising=False)
