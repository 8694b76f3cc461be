"""Variables that a shell or a pod was left with do not reach what this package runs and reads."""

import os
import threading
from pathlib import Path

from mindswap.environment import package_environment, readable_environment, replaced_environment, user_environment

# What each does to a process of the package is in tests/test_hostile_environment.py.
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
    "MINDSWAP_PROGRESS": "0",
}  # fmt: skip
OURS = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}


def test_only_listed_variables_of_the_libraries_pass():
    assert package_environment(LEFT_BY_OTHERS | OF_USE) == OF_USE | OURS


def test_folders_are_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = package_environment({"MINDSWAP_CACHE": "c", "XDG_CACHE_HOME": "./x", "TMPDIR": "/t", "HOME": "h"})
    kept = {name: found[name] for name in ("MINDSWAP_CACHE", "XDG_CACHE_HOME", "TMPDIR", "HOME")}
    assert kept == {
        "MINDSWAP_CACHE": f"{tmp_path}/c", "XDG_CACHE_HOME": f"{tmp_path}/x", "TMPDIR": "/t", "HOME": f"{tmp_path}/h"
    }  # fmt: skip


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
