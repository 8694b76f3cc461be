"""Ctrl-C while `mindswap plan` searches, as its user does it: in a terminal, on Llama2-70B in 8 pipeline stages."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios

import pytest

from tests import forked
from tests.adapters.graphs import ROOT

pytestmark = pytest.mark.mindspore

CONFIG = ROOT / "benchmarks" / "models" / "llama2_13b.yaml"
BUDGET_GIB = 52  # "swap everything" fits, if the host has room: there is a plan from the first simulation on
SEARCHES = b"planning: "  # the progress bar, which only simulations of the search draw
IS_TOLD = b"press Ctrl-C again to stop at once"
WINDOW = (24, 100)  # in one of no size no bar is drawn


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    """With the captured model in the cache, so that the search is what takes the time."""
    environ = {**os.environ, "MINDSWAP_CACHE": str(tmp_path_factory.mktemp("cache"))}
    assert mindswap(environ, "simulate", "--json", CONFIG).returncode == 0
    return environ


def mindswap(environ, *words) -> subprocess.CompletedProcess:
    command = ["-m", "mindswap", *map(str, words)]
    return forked.run(command, env=environ, timeout=1200)


class Terminal:
    """`mindswap plan` with a terminal as its stderr."""

    def __init__(self, environ, target):
        self.reader, writer = pty.openpty()
        termios.tcsetwinsize(writer, WINDOW)
        command = ["plan", str(CONFIG), "--memory", f"{BUDGET_GIB}GiB", "--host-memory", "8TiB", "-o", str(target)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mindswap", *command], env=environ, stdout=subprocess.PIPE, stderr=writer, text=True
        )
        os.close(writer)
        self.shown = b""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self.reader)

    def wait_for(self, words: bytes) -> None:
        while words not in self.shown:
            self._read()

    def finish(self) -> tuple[int, str]:
        """Exit code and output."""
        out, _ = self.process.communicate(timeout=1200)
        return self.process.returncode, out

    def _read(self) -> None:
        try:
            self.shown += os.read(self.reader, 4096)
        except OSError:  # the process has ended
            raise AssertionError(f"never shown; what was: {self.shown!r}") from None


def test_the_first_ctrl_c_gives_the_best_plan_so_far(environ, tmp_path):
    target = tmp_path / "planned.yaml"
    with Terminal(environ, target) as terminal:
        terminal.wait_for(SEARCHES)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for(IS_TOLD)
        code, out = terminal.finish()
    assert code == 0
    assert re.search(r"search +interrupted after \d+ simulations?: a longer search", out)
    assert b"Traceback" not in terminal.shown
    assert mindswap(environ, "check", target).returncode == 0
    simulated = json.loads(mindswap(environ, "simulate", "--json", target).stdout)
    assert 0 < simulated["peak_bytes"] <= BUDGET_GIB * 2**30


def test_the_second_ctrl_c_ends_at_once_and_leaves_nothing(environ, tmp_path):
    with Terminal(environ, tmp_path / "planned.yaml") as terminal:
        terminal.wait_for(SEARCHES)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for(IS_TOLD)
        terminal.process.send_signal(signal.SIGINT)
        code, out = terminal.finish()
    assert (code, out) == (130, "")
    assert b"Traceback" not in terminal.shown
    assert list(tmp_path.iterdir()) == []
