"""The loop around the real msrun with two workers; the training itself is a stub (stub_training.py)."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mindswap.runtime.msrun import free_port
from tests.runtime.attempt.conftest import ROOT, finish, wait_for

pytestmark = pytest.mark.mindspore


@pytest.fixture
def command():
    return [
        "msrun", "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", "--log_dir=ignored",
        "python", "-m", "mindswap", "run", "--config", "c.yaml", "--use_parallel", "True",
    ]  # fmt: skip


@pytest.fixture
def slow(place):
    """Long enough to be hit in the middle."""
    place.stub |= {"step_s": 0.2, "num_steps": 30}
    return place


def ranks(place):
    """Process of each worker."""
    return {int(env[b"RANK_ID"]): pid for pid, env in place.workers() if env.get(b"MS_ROLE") == b"MS_WORKER"}


def in_the_middle(place, attempt=1):
    """Both workers have logged four steps, of which one was saved."""
    wait_for(lambda: all(place.log(attempt, rank).count("step:[") >= 4 for rank in (0, 1)))


def test_one_worker_out_of_memory_stops_all_and_all_go_on(place, command):
    """In a run directory whose name no shell may read."""
    place.run_dir = place.folder / "a run $(touch evil)"
    place.stub["oom"] = {"recompute": 6}
    code, out = place.run(command=command)
    assert code == 0, out
    assert "ran out of memory at step 5, 1.0 GiB were missing" in out
    assert "attempt 2: from the checkpoint of step 4" in out
    assert place.steps(2) == (5, 12) and "step:[   12" in place.log(2, worker=1)
    assert not Path(place.folder, "evil").exists()


def test_whoever_is_killed_all_go_on(slow, command):
    """One worker, then all of them, then msrun itself, each in an attempt of its own."""
    process = slow.start(command=command)
    in_the_middle(slow)
    os.kill(ranks(slow)[1], signal.SIGKILL)
    in_the_middle(slow, 2)
    for pid in ranks(slow).values():
        os.kill(pid, signal.SIGKILL)
    in_the_middle(slow, 3)
    os.kill(next(pid for pid, env in slow.workers() if b"MS_ROLE" not in env), signal.SIGKILL)
    code, out = finish(process)
    assert code == 0, out
    assert re.search(r"worker 1 was killed by SIGKILL.*worker [01] was killed by SIGKILL.*msrun was killed", out, re.S)
    assert slow.outcomes() == ["killed", "killed", "killed", "finished"] and slow.steps(4)[1] == 30


def test_supervisor_killed(slow, command):
    """The workers have msrun for a parent, which knows nothing of it; the kernel ends them all."""
    process = slow.start(command=command)
    in_the_middle(slow)
    process.kill()
    process.communicate(timeout=300)
    wait_for(lambda: not slow.workers())
    slow.stub["step_s"] = 0.01
    code, out = slow.run(command=command)
    assert code == 0, out
    assert slow.outcomes() == ["interrupted", "finished"]


def test_ctrl_c(slow, command):
    process = slow.start(command=command)
    in_the_middle(slow)
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert not slow.workers()


def test_a_port_in_use_stops_before_anything_starts(place, command):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, out = place.run(command=[*command[:3], f"--master_port={port}", *command[4:]])
    assert code == 1
    assert f"mindswap: error: MASTER_PORT {port} of 127.0.0.1 is in use\n    fix:     " in out
    assert not list(place.run_dir.glob("attempt_*"))


def test_the_launcher_script_takes_the_flag(place):
    """It finds the planner of the package, so this looks no further than to what is refused before it is asked."""
    text = (place.folder / "c.yaml").read_text().replace("swap: False", "swap: True")
    (place.folder / "c.yaml").write_text(text)
    words = ["--adaptive-memory-optimization", "--memory", "4GiB", "--config c.yaml", "2", str(free_port()), "logs"]
    result = subprocess.run(
        ["bash", str(ROOT / "scripts/msrun_launch.sh"), *words, "True", "60"], cwd=place.folder, capture_output=True,
        text=True, env={**os.environ, "PYTHON": sys.executable}, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "c.yaml:9:21: error: swap_config.swap: True: set by hand" in result.stderr
