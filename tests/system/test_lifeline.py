import os
import signal
import subprocess
import sys
import time

import pytest

from mindswap.errors import LaunchError
from mindswap.system.children import hold_lifeline, lifeline
from mindswap.system.process_tree import stop_processes
from mindswap.system.signals import LIFELINE
from tests.runtime.attempt.conftest import ROOT, wait_for

HOLD = "import os, time; from mindswap.system.children import hold_lifeline; hold_lifeline(os.environ); {}"
SLEEP = "print('held', flush=True); time.sleep(600)"
# As a compiler that never gives the interpreter back: no handler and no thread of Python runs any more.
NO_PYTHON = "import ctypes; print('held', flush=True); ctypes.PyDLL(None).sleep(600)"


def start(code, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.mark.parametrize("busy_with", [SLEEP, NO_PYTHON])
def test_a_worker_ends_when_the_pipe_closes(busy_with):
    with lifeline() as name:
        worker = start(HOLD.format(busy_with), **{LIFELINE: name})
        assert worker.stdout.readline() == "held\n"
        time.sleep(0.1)
        assert worker.poll() is None
    assert worker.wait(timeout=60) == -signal.SIGKILL
    worker.stdout.close()


def test_a_worker_that_starts_too_late_does_not_train():
    with lifeline() as name:
        pass
    with pytest.raises(LaunchError, match="the run that this worker belongs to has ended"):
        hold_lifeline({LIFELINE: name})


def test_without_a_run_nothing_is_held():
    hold_lifeline({})


def test_a_child_ends_with_its_parent():
    """The parent starts a child that sleeps, says its number, and is killed."""
    code = (
        "import subprocess, time; from mindswap.system.children import tie_to_parent;"
        "child = subprocess.Popen(['sleep', '600'], preexec_fn=tie_to_parent()); print(child.pid, flush=True);"
        "time.sleep(600)"
    )
    parent = start(code)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()

    def is_gone():
        try:
            return open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0] == "Z"  # noqa: PTH123
        except OSError:
            return True

    wait_for(is_gone)


def test_a_child_of_a_parent_that_is_gone_does_not_start(tmp_path):
    """In a process of its own: one that adopts orphans, as another test made this one, is their parent again."""
    outlive = (
        "import os, subprocess, sys, time\n"
        "from mindswap.system.children import tie_to_parent; tie = tie_to_parent()\n"
        "def outlive_the_parent():\n"
        "    if os.fork(): os._exit(0)\n"
        "    time.sleep(0.2)\n"
        "    {}\n"
        "subprocess.Popen(['touch', sys.argv[1]], preexec_fn=outlive_the_parent).wait(timeout=60)\n"
        "time.sleep(0.5)"
    )
    tied, untied = tmp_path / "tied", tmp_path / "untied"
    for path, last in ((tied, "tie()"), (untied, "pass")):
        subprocess.run([sys.executable, "-c", outlive.format(last), path], cwd=ROOT, check=True, timeout=120)
    assert (untied.exists(), tied.exists()) == (True, False)


def test_what_no_signal_ends_is_given_up():
    child = subprocess.Popen(["true"])
    child.wait()
    begin_s = time.monotonic()
    assert stop_processes(lambda: [child.pid], grace_s=0.1, limit_s=0.2) == 1
    assert 0.3 <= time.monotonic() - begin_s < 60  # what it waited for would last forever
