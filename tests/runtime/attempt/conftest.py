"""A folder with a stub training, and the real command running in it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

from mindswap.cli import main
from tests.runtime.attempt import run_by_hand

ROOT = Path(__file__).parents[3]
GIB = 1 << 30
CONFIG = """\
# A comment of the user.
output_dir: './output'
run_mode: train
context: {device_target: CPU}
callbacks:
  - type: CheckpointMonitor
model: {model_config: {num_layers: 4}}
recompute_config: {recompute: False}
swap_config: {swap: False}
"""
# The stand-in planner: recompute-all is said to be faster and larger, so that it is what a plan is loosened to.
POLICIES = [["keep", 2 * GIB, 400_000_000], ["recompute", 3 * GIB, 100_000_000]]


def wait_for(condition, timeout_s=300):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found
    return found


def run_in_fork(arguments, folder, environment):
    """`run_by_hand.py` in a fork of this process, so that it runs the modules that are here, changed ones too."""

    def run():
        code = 1
        try:
            os.closerange(3, 1 << 12)  # one of them keeps `Popen` waiting
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            os.environ.clear()
            os.environ.update(environment)
            code = run_by_hand.run(*arguments)
        except BaseException:  # noqa: BLE001 a fork never returns to pytest
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    return start([sys.executable], folder, preexec_fn=run)


def start(words, folder, **options):
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


class Place:
    """The folder of one test."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.package = folder / "stub" / "mindswap"
        self.package.mkdir(parents=True)
        # What the stub does not replace is of the real package.
        (self.package / "__init__.py").write_text(f"__path__.append({str(ROOT / 'mindswap')!r})\n")
        stub = (Path(__file__).parent / "stub_training.py").read_text()
        (self.package / "__main__.py").write_text(stub)
        (folder / "c.yaml").write_text(CONFIG)
        self.stub = {"num_steps": 12, "step_s": 0.02, "save_every": 2}
        self.run_dir = folder / "run"
        self.environment = {}

    def start(self, *options, policies=POLICIES, command=("--config", "c.yaml"), memory="4GiB"):
        words = ["--memory", memory, "--run-dir", str(self.run_dir), "--measured-steps", "4", *options]
        return self.start_words("--adaptive-memory-optimization", *words, "--", *command, policies=policies)

    def start_words(self, *words, policies=POLICIES):
        path = [str(self.package.parent), str(ROOT), *filter(None, [self.environment.get("EXTRA_PATH")])]
        environment = {**os.environ, **self.environment, "PYTHONPATH": ":".join(path), "STUB": json.dumps(self.stub)}
        environment.setdefault("POLL_S", "0.05")
        arguments = [json.dumps(policies), words]
        # MindSpore has threads, which no fork takes along; what is imported first has to be imported there.
        if "mindspore" not in sys.modules and "EXTRA_PATH" not in environment:
            return run_in_fork(arguments, self.folder, environment)
        return start([sys.executable, run_by_hand.__file__, arguments[0], *words], self.folder, env=environment)

    def run(self, *options, timeout_s=600, **arguments):
        """Exit code and output."""
        return finish(self.start(*options, **arguments), timeout_s)

    def workers(self):
        """Processes of the run, from the marker in their environment."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "environ").read_bytes().split(b"\0")
                if f"MINDSWAP_ADAPTIVE_RUN={self.run_dir}".encode() in words:
                    state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [(int(place.name), dict(w.split(b"=", 1) for w in words if b"=" in w))] * (state != "Z")
            except OSError:
                pass
        return found

    def log(self, attempt=1, worker=0):
        path = self.run_dir / f"attempt_{attempt}" / f"worker_{worker}.log"
        return path.read_text() if path.exists() else ""

    def steps(self, attempt=1):
        """First and last step of an attempt."""
        found = [int(part.split("/")[0]) for part in self.log(attempt).split("step:[")[1:]]
        return found[0], found[-1]

    def status(self):
        """What `mindswap status --json` prints."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["status", "--json", str(self.run_dir)]) == 0
        return json.loads(printed.getvalue())

    def outcomes(self):
        return [attempt["outcome"] for attempt in self.status()["attempts"]]


def finish(process, timeout_s=600):
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        raise
    assert "Traceback" not in out and "a bug" not in out, out
    return process.returncode, out


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    left = place.workers()
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "the run left processes behind"
