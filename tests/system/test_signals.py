"""Signals that end a program: none is lost, none interrupts cleanup, and what the caller ignores stays ignored."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from mindswap.errors import LaunchError, StoppedBySignal
from mindswap.system.signals import ENDING_SIGNALS, REPEAT_S, held_signals, signals_raise
from tests.adapters.graphs import ROOT


@pytest.fixture(autouse=True)
def _none_is_ignored():
    """Whatever started the tests, nohup for example."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def wait(seconds: float) -> None:
    """Return to the interpreter all the time, as a program does that computes."""
    limit_s = time.monotonic() + seconds
    while time.monotonic() < limit_s:
        time.sleep(0.01)


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_is_an_exception_with_its_exit_code(number):
    with pytest.raises(StoppedBySignal) as stop, signals_raise():
        signal.raise_signal(number)
    assert stop.value.exit_code == stop.value.code == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL


class Finalizer:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def in_a_finalizer():
    Finalizer()  # Python drops what is raised in it


def in_a_bare_except():
    with suppress(BaseException):  # as libraries do
        signal.raise_signal(signal.SIGTERM)


def in_a_hook_of_fork():
    """What happened while workers were started: the child ran before the parent had come back from its fork."""
    code = (
        "import os, signal, subprocess, sys, time\n"
        "from mindswap.system.signals import signals_raise\n"
        "with signals_raise():\n"
        f"    os.register_at_fork({{}}=lambda: signal.raise_signal({int(signal.SIGTERM)}))\n"
        "    subprocess.Popen(['true'], preexec_fn=lambda: None).wait()\n"
        "    time.sleep(60)\n"
    )
    for moment in ("before", "after_in_parent"):
        done = subprocess.run([sys.executable, "-c", code.format(moment)], cwd=ROOT, timeout=50, stderr=subprocess.PIPE)
        assert done.returncode == 128 + signal.SIGTERM, done.stderr
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("swallow", [in_a_finalizer, in_a_bare_except, in_a_hook_of_fork])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_swallowed_is_raised_repeatedly(swallow):
    begin_s = time.monotonic()
    with pytest.raises(StoppedBySignal), signals_raise():
        swallow()
        begin_s = time.monotonic()
        wait(60)
    assert time.monotonic() - begin_s < 60


def test_an_error_that_a_signal_brings_about_is_the_signal():
    """As MindSpore wraps what a callback of its compiler raises."""
    with pytest.raises(StoppedBySignal) as stop, signals_raise():
        try:
            signal.raise_signal(signal.SIGHUP)
        except BaseException as error:
            raise RuntimeError("wrapped") from error
    assert stop.value.exit_code == 128 + signal.SIGHUP


def test_errors_without_a_signal_stay_what_they_are():
    with pytest.raises(LaunchError), signals_raise():
        raise LaunchError("x")


@pytest.mark.parametrize("second", ENDING_SIGNALS)
def test_nothing_interrupts_cleanup(second):
    done = []
    with pytest.raises(StoppedBySignal) as stop, signals_raise():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(second)
            wait(3 * REPEAT_S)  # nor does the first one, which is repeated
            done.append(True)
    assert done and stop.value.exit_code == 128 + signal.SIGTERM


def test_held_signals_arrive_afterwards():
    done = []
    with pytest.raises(StoppedBySignal), signals_raise():
        with held_signals():
            signal.raise_signal(signal.SIGINT)
            done.append("held")
        done.append("never")
    assert done == ["held"]


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_what_the_caller_ignores_stays_ignored(number):
    signal.signal(number, signal.SIG_IGN)
    with signals_raise():
        signal.raise_signal(number)
        wait(0.05)
    assert signal.getsignal(number) == signal.SIG_IGN


def test_after_the_end_nothing_is_repeated():
    with pytest.raises(StoppedBySignal), signals_raise():
        signal.raise_signal(signal.SIGTERM)
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
    wait(2 * REPEAT_S)
    assert not heard


def test_a_signal_at_any_moment_leaves_no_folder(tmp_path):
    """Between any two steps of Python: 40 times, each time somewhat later."""
    code = (
        "import signal, sys, threading, time\n"
        "from mindswap.system.scratch import scratch_folder\n"
        "from mindswap.system.signals import signals_raise\n"
        "from mindswap.errors import StoppedBySignal\n"
        "import os\n"
        "delay = 0.0\n"
        "for _ in range(40):\n"
        "    delay += 0.0002\n"
        "    try:\n"
        "        with signals_raise():\n"
        "            threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()\n"
        "            while True:\n"
        "                with scratch_folder('x') as folder:\n"
        "                    (folder / 'file').touch()\n"
        "    except StoppedBySignal:\n"
        "        pass\n"
        "print(os.listdir(os.environ['TMPDIR']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=100, capture_output=True, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[]\n", "")
