"""A signal ends a command with its children and scratch folders, at any moment; the exit code is 128 + its number."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mindswap.system.scratch import remove_abandoned
from tests import forked
from tests.adapters.graphs import QWEN3, ROOT

LLAMA = ROOT / "configs/llama2_7b/pretrain_llama2_7b.yaml"
MARK = "MINDSWAP_TEST_OF_SIGNALS"
# The command line, which gets the signal a while after Python first reports an event: from another process, as a thread
# waits for the compiler, which holds the interpreter.
PROGRAM = f"""
import os, sys, tempfile
number, moment, delay_s = sys.argv[1:4]
tempfile.tempdir = None
def watch(event, _):
    global moment
    if event == moment:
        moment = ""
        command = f"sleep {{delay_s}}; kill -{{number}} {{os.getpid()}}"
        os.posix_spawn("/bin/sh", ["sh", "-c", command], {{"PATH": os.environ["PATH"]}})
sys.addaudithook(watch)
os.chdir({str(ROOT)!r})
from mindswap.cli import main
sys.exit(main(sys.argv[4:]))
"""
AT_FIRST_FOLDER, WITH_CHILD = "tempfile.mkdtemp", "subprocess.Popen"
COMMANDS = {
    "simulate": ("simulate", QWEN3, "--no-cache"),
    "verify": ("verify", LLAMA, "--no-cache"),
    "inspect": ("inspect", QWEN3, "--no-cache"),
    "compare": ("compare", QWEN3, "--no-cache"),
    "plan": ("plan", QWEN3, "-o", "{folder}/plan.yaml"),
    "plan with processes": ("plan", QWEN3, "--no-cache", "--batch-size", "auto", "--jobs", "2"),
    "dryrun": ("dryrun", QWEN3),
    "prove": ("prove", LLAMA.parent / "cpu/case3_op_swap.yaml", "--layers", "2", "-o", "{folder}/proof"),
}
CASES = [
    ("simulate", signal.SIGTERM, AT_FIRST_FOLDER, 0),
    ("simulate", signal.SIGINT, AT_FIRST_FOLDER, 0.7),
    ("verify", signal.SIGHUP, AT_FIRST_FOLDER, 0),
    ("verify", signal.SIGTERM, AT_FIRST_FOLDER, 0.7),
    ("inspect", signal.SIGINT, AT_FIRST_FOLDER, 0),
    ("inspect", signal.SIGHUP, AT_FIRST_FOLDER, 0.7),
    ("compare", signal.SIGTERM, AT_FIRST_FOLDER, 0.3),
    ("plan", signal.SIGHUP, AT_FIRST_FOLDER, 0.3),
    *(("plan", number, WITH_CHILD, 0.3) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
    ("plan", signal.SIGTERM, WITH_CHILD, 0),
    ("plan with processes", signal.SIGTERM, AT_FIRST_FOLDER, 3),
    ("dryrun", signal.SIGINT, WITH_CHILD, 0),
    ("dryrun", signal.SIGTERM, WITH_CHILD, 5),
    ("dryrun", signal.SIGHUP, WITH_CHILD, 5),
    ("prove", signal.SIGTERM, WITH_CHILD, 1),
]


def processes_of(mark: str) -> list[str]:
    """Command lines of the processes that inherited a variable."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            pass
    return [words for words in found if words]  # a zombie has none


def all_gone(mark: str, timeout_s: float = 2) -> bool:
    """Check that no such process is left; Python's own resource tracker ends when it sees that its parent has."""
    limit_s = time.monotonic() + timeout_s
    while processes_of(mark) and time.monotonic() < limit_s:
        time.sleep(0.05)
    assert not processes_of(mark)
    return True


@pytest.mark.mindspore
@pytest.mark.parametrize(("name", "number", "moment", "delay_s"), CASES)
def test_nothing_stays(name, number, moment, delay_s, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [str(word).format(folder=tmp_path) for word in COMMANDS[name]]
    environ = {**os.environ, "TMPDIR": str(scratch), MARK: str(tmp_path)}
    done = forked.run(["-c", PROGRAM, int(number), moment, delay_s, *words], env=environ, timeout=300)
    # While MindSpore compiles it takes Ctrl-C, and sends SIGTERM to its own process.
    numbers = [number, signal.SIGTERM] if number == signal.SIGINT else [number]
    assert done.returncode in [128 + number for number in numbers], done.stdout + done.stderr
    assert "mindswap: interrupted" in done.stderr or name == "prove"
    assert "Traceback" not in done.stderr
    assert all_gone(str(tmp_path))
    assert list(scratch.iterdir()) == []


@pytest.mark.mindspore
def test_of_a_killed_plan_the_next_command_removes_what_is_left(tmp_path, monkeypatch):
    """Nothing of it can act any more; its child is told by the kernel, and removes its own folder."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [str(word).format(folder=tmp_path) for word in COMMANDS["plan"]]
    # With a cache of its own the child compiles, and is still there when the command is killed.
    cache = {"MINDSWAP_CACHE": str(tmp_path / "cache")}
    environ = {**os.environ, **cache, "TMPDIR": str(scratch), MARK: str(tmp_path)}
    done = forked.run(["-c", PROGRAM, int(signal.SIGKILL), WITH_CHILD, 0.2, *words], env=environ, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert all_gone(str(tmp_path), timeout_s=60)
    assert [path.name.rpartition("-")[0] for path in scratch.iterdir()] == ["mindswap-plan"]
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    remove_abandoned()
    assert list(scratch.iterdir()) == []


@pytest.mark.mindspore
@pytest.mark.parametrize("seconds", [1, 2, 3])
def test_timeout_ends_a_command_that_is_still_importing(tmp_path, seconds):
    """The program of coreutils, which sends SIGTERM to the command, and then to the whole group."""
    words = ["timeout", "--verbose", str(seconds), sys.executable, "-m", "mindswap"]
    command = [*words, "simulate", str(QWEN3), "--no-cache"]
    environ = {**os.environ, "TMPDIR": str(tmp_path), MARK: str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    # On a loaded machine it may come before anything is imported that handles it.
    assert done.returncode == 124 and "Fatal" not in done.stderr and "Traceback" not in done.stderr
    assert all_gone(str(tmp_path)) and list(tmp_path.iterdir()) == []


@pytest.mark.mindspore
def test_what_nohup_started_goes_on_after_the_terminal_has_gone(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{PROGRAM}"
    words = ["-c", program, int(signal.SIGHUP), AT_FIRST_FOLDER, 0, "inspect", QWEN3, "--no-cache"]
    done = forked.run(words, env={**os.environ, "TMPDIR": str(scratch)}, timeout=300)
    assert done.returncode == 0 and "interrupted" not in done.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.mindspore
def test_a_plan_is_verified_whatever_is_in_the_working_folder(tmp_path):
    """Its child imported a checkout of MindFormers there, and a file `yaml.py`."""
    for name in ("yaml", "numpy", "runpy", "mindspore"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__file__} was imported')")
    (tmp_path / "mindformers").mkdir()
    (tmp_path / "mindformers" / "__init__.py").write_text("raise SystemExit(f'{__file__} was imported')")
    code = "import sys; from mindswap.cli import main; sys.exit(main(sys.argv[1:]))"
    done = forked.run(["-c", code, "plan", QWEN3, "-o", tmp_path / "plan.yaml"], cwd=tmp_path, timeout=600)
    assert done.returncode == 0 and "verified: the compiled graph follows the plan" in done.stdout, done
