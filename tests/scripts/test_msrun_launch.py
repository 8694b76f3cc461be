"""The launcher as it is called: bash, a folder with a script, real processes."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.runtime.crashes import END
from mindswap.runtime.launcher_arguments import Job
from mindswap.runtime.msrun import msrun_arguments
from mindswap.system.process_tree import descendants
from tests.runtime.logs.samples import OVER, info

SCRIPT = Path(__file__).parents[2] / "scripts" / "msrun_launch.sh"
# In the folder of a worker this package comes first: `mindswap run SCRIPT ARGS` without the plugin.
STUB = """
import runpy, sys
assert sys.argv[1] == "run"
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TRAIN = """
import json, os, sys, time
rank, role = os.environ.get("RANK_ID", "0"), os.environ.get("MS_ROLE", "none")
with open(f"{role}_{rank}.json", "w") as file:
    json.dump({"argv": sys.argv[1:], "python": sys.executable, "log": os.environ["LOG_MF_PATH"]}, file)
print("training", rank, flush=True)
if "--fail" in sys.argv and role != "MS_SCHED" and rank == sys.argv[-1]:
    raise ValueError("boom at step 3")
if "--sleep" in sys.argv and role != "MS_SCHED":
    time.sleep(120)
"""
ARGUMENTS = [
    "--name",
    "a b.yaml",
    "it's",
    "$(touch evil)",
    "`touch evil`",
    "~",
    "*",
    "$HOME",
    ";",
    "--l",
    "--",
    "",
    "é\n",
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mindswap").mkdir()
    (tmp_path / "mindswap" / "__init__.py").touch()
    (tmp_path / "mindswap" / "__main__.py").write_text(STUB)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def start(folder, *words, **environment):
    environment = {**os.environ, "PYTHON": sys.executable, **environment}
    for name in ("MF_LOG_SUFFIX", "LOG_MF_PATH"):
        if name not in environment:
            environment.pop(name, None)
    return subprocess.Popen(
        ["bash", str(SCRIPT), *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def launch(folder, *words, **environment):
    with start(folder, *words, **environment) as process:
        out, _ = process.communicate(timeout=300)
    return process.returncode, out


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def wait_for(condition, timeout_s=300):
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def test_wrong_calls_print_the_usage_and_all_problems(folder):
    code, out = launch(folder, "nix.py 'open", "0", "80", "logs", "maybe", "60")
    assert code == 1
    assert out.startswith("usage: bash scripts/msrun_launch.sh EXECUTE_ORDER\n")
    errors = [line.split()[2] for line in out.splitlines() if line.startswith("mindswap: error: ")]
    assert errors == ["WORKER_NUM", "MASTER_PORT", "JOIN", "EXECUTE_ORDER:"]


@pytest.mark.parametrize("words", [[], ["train.py", "8", "8"]])
def test_wrong_counts(folder, words):
    code, out = launch(folder, *words)
    assert code == 1 and "allowed: 1, 2, 6 or 9" in out


def test_help(folder):
    code, out = launch(folder, "--help")
    assert code == 0 and out.startswith("usage:")


def test_one_worker_runs_without_msrun_and_logs(folder):
    code, out = launch(folder, shlex.join(["train.py", *ARGUMENTS]), "1", MF_LOG_SUFFIX="x")
    assert code == 0
    assert "WORKER_NUM is 1: python runs without msrun" in out
    assert "training 0\n" in out
    assert (folder / "output/msrun_log_x/worker_0.log").read_text() == "training 0\n"
    result = json.loads((folder / "none_0.json").read_text())
    assert result == {"argv": ARGUMENTS, "python": sys.executable, "log": f"{folder}/output/log_x"}
    assert not (folder / "evil").exists()


def test_one_worker_gives_its_exit_code(folder):
    (folder / "train.py").write_text("import sys; sys.exit(7)")
    code, out = launch(folder, "train.py", "1")
    assert code == 7 and "the training failed, exit code 7" in out


# A worker or the scheduler ends in a way of its own, once all workers have printed a line.
LATE = """
import os, sys, time
role = os.environ.get("MS_ROLE", "none") + os.environ.get("RANK_ID", "0") * (os.environ.get("MS_ROLE") != "MS_SCHED")
if role != "MS_SCHED":
    print({line!r}, flush=True)
if role == {role!r}:
    time.sleep({wait_s})
    {act}
elif role == "MS_WORKER0" and {role!r} == "MS_WORKER1":
    time.sleep(120)
"""
SEGFAULT = "os.kill(os.getpid(), 11)"


@pytest.mark.parametrize(
    ("line", "act", "code", "told"),
    [
        (END, SEGFAULT, 0, "mindswap: the worker crashed with SIGSEGV after the training was over: "),
        ("step 3", SEGFAULT, 128 + 11, "error: the training failed, exit code -11"),
        (info(OVER), SEGFAULT, 128 + 11, "error: the training failed, exit code -11"),
        (END, "sys.exit(7)", 7, "error: the training failed, exit code 7"),
        (END, "os.kill(os.getpid(), 9)", 128 + 9, "error: the training failed, exit code -9"),
    ],
    ids=["late crash", "crash", "crash of the script behind its training", "late error", "killed"],
)
def test_a_crash_after_the_end_is_no_failure(folder, line, act, code, told):
    (folder / "train.py").write_text(LATE.format(line=line, act=act, role="none0", wait_s=0))
    found, out = launch(folder, "train.py", "1")
    assert found == code and told in out


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("line", "role", "told"),
    [
        (END, "MS_WORKER1", "mindswap: a worker crashed with SIGSEGV after the training was over"),
        (END, "MS_SCHED", "mindswap: the scheduler of msrun failed after the training was over"),
        ("step 3", "MS_WORKER1", "mindswap: error: the training failed"),
    ],
    ids=["late crash", "late crash of the scheduler", "crash"],
)
def test_a_crash_below_msrun_after_the_end_is_no_failure(folder, line, role, told):
    """As seen in CI: rank 0 of 2 crashed in MindSpore's cluster library while it was being unloaded."""
    (folder / "train.py").write_text(LATE.format(line=line, act=SEGFAULT, role=role, wait_s=3))
    found, out = launch(folder, "train.py", "2", free_port(), "logs", "True", "60")
    assert told in out and found == (1 if "error" in told else 0), out
    assert ("exit with exception. Error code: -11" in out) == (role != "MS_SCHED")  # what msrun says is passed on
    assert not running_in(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_one_worker(folder, number):
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("ignored by all that nohup starts")
    process = start(folder, "train.py --sleep", "1")
    wait_for((folder / "none_0.json").exists)
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + number and "stopping all workers" in out
    assert not running_in(folder)


def running_in(folder):
    """Processes whose working folder is `folder`."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "cwd").readlink() == folder:
                found.append(place.name)
        except OSError:
            pass
    return found


def test_log_folder_that_cannot_be_made(folder):
    (folder / "logs").touch()
    code, out = launch(folder, "train.py", "1", "8118", "logs", "True", "60")
    assert code == 1 and "mindswap: error: LOG_DIR logs: File exists" in out


def test_descendants_are_found_also_below_children():
    with subprocess.Popen(["bash", "-c", "sleep 30 & wait"]) as process:
        wait_for(lambda: len(set(descendants())) >= 2)
        found = descendants()
        assert process.pid in found
        for pid in reversed(found):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.mindspore
def test_two_workers_get_the_arguments_unchanged(folder):
    logs = "my logs $(touch evil)"
    (folder / logs).mkdir()
    (folder / logs / "worker_5.log").write_text("old")
    order = shlex.join(["train.py", *ARGUMENTS])
    code, out = launch(folder, order, "2", "2", "127.0.0.1", free_port(), "0", logs, "True", "60")
    assert code == 0, out
    for name in ("MS_WORKER_0", "MS_WORKER_1", "MS_SCHED_0"):
        result = json.loads((folder / f"{name}.json").read_text())
        python = Path(result.pop("python"))  # `python` and `python3.11` of one environment are the same
        assert python.parent == Path(sys.executable).parent
        assert result == {"argv": ARGUMENTS, "log": f"{folder}/output/log"}
    assert (folder / logs / "worker_1.log").read_text() == "training 1\n"
    assert not (folder / logs / "worker_5.log").exists()
    assert not (folder / "evil").exists()


@pytest.mark.mindspore
def test_a_failed_worker_is_named_and_the_exit_code_comes_back(folder):
    code, out = launch(folder, "train.py --sleep --fail 1", "2", free_port(), "a $(touch evil)", "True", "60")
    assert code == 1
    assert "mindswap: error: the training failed\n    worker_1.log: ValueError: boom at step 3\n" in out
    assert not (folder / "evil").exists()
    assert not running_in(folder)


@pytest.mark.mindspore
def test_without_join_the_workers_go_on(folder):
    code, out = launch(folder, "train.py", "2", free_port(), "logs", "False", "60")
    assert code == 0
    assert "JOIN is False: 2 workers run in the background, see logs/worker_0.log" in out
    wait_for(lambda: (folder / "logs/worker_1.log").read_text() == "training 1\n")


@pytest.mark.mindspore
def test_a_port_in_use_stops_before_anything_starts(folder):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        code, out = launch(folder, "train.py", "2", port, "logs", "True", "60")
    assert code == 1
    assert f"mindswap: error: MASTER_PORT {port} of 127.0.0.1 is in use\n    fix:     " in out
    assert not (folder / "logs").exists()


@pytest.mark.mindspore
@pytest.mark.parametrize("join", ["True", "False"])
def test_ctrl_c_leaves_no_process(folder, join):
    process = start(folder, "train.py --sleep", "2", free_port(), "logs", join, "60")
    if join == "True":
        wait_for((folder / "MS_WORKER_1.json").exists)
    else:  # while msrun is starting them
        wait_for((folder / "logs/scheduler.log").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    if join == "False" and process.returncode == 0:
        pytest.skip("msrun was faster than the signal")
    assert process.returncode == 130
    assert not running_in(folder)


@pytest.mark.mindspore
def test_msrun_takes_no_argument_for_its_own(monkeypatch):
    from mindspore.parallel.cluster import run
    from mindspore.parallel.cluster.process_entity._utils import _generate_cmd_args_list

    @settings(max_examples=200)
    @given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
    def check(words):
        command = ["python", "-m", "mindswap", "run", "--l", "--join=x", *words]
        arguments = msrun_arguments(Job("x", 2, 2), "logs", command, bind_core=False)
        monkeypatch.setattr(sys, "argv", ["msrun", *arguments])
        args = run.get_args()
        assert _generate_cmd_args_list(args.task_script, args.task_script_args) == command
        assert (args.worker_num, args.log_dir, args.join) == (2, "logs", False)

    check()


@pytest.mark.parametrize("join", ["True", "False"])
def test_a_wrong_configuration_stops_before_any_worker_starts(folder, join):
    (folder / "bad.yaml").write_text("swap_config:\n  swap: True\n  layer_swap: 3\n")
    code, out = launch(folder, "train.py --config bad.yaml", "2", "8345", "logs", join, "60")
    assert code == 1
    assert "bad.yaml:3:15: error: swap_config.layer_swap" in out
    assert not (folder / "logs").exists()
