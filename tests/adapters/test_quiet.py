"""What comes through while the process is kept quiet."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from mindswap.adapters.quiet import quiet, report_progress
report_progress("before")
with quiet():
    print("noise", file=sys.stderr)
    report_progress("compiling")
report_progress("after")
"""
COMMAND = [sys.executable, "-c", SCRIPT]


def test_a_terminal_is_told_what_takes_its_time():
    ours, theirs = pty.openpty()
    try:
        environ = {**os.environ, "TERM": "xterm"}
        result = subprocess.run(COMMAND, stdout=subprocess.PIPE, stderr=theirs, check=True, cwd=ROOT, env=environ)
        said = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    # Each line in place of the one before it, and none is left at the end.
    lines = ["mindswap: starting MindSpore and MindFormers ...", "mindswap: compiling ...", ""]
    assert said.split("\r\x1b[K") == ["", *lines]
    assert result.stdout == b""


def test_what_another_process_does_is_told_too():
    """Nothing is kept quiet here; after 0.2, 0.4 and 0.8 s, of one that takes 1 s."""
    script = """
import mindswap.adapters.quiet as q, sys, time
q.heartbeat.FIRST_S = 0.2
with q.progress_reporting("verifying"):
    print("heard", file=sys.stderr)
    time.sleep(1)
"""
    environ = {**os.environ, "MINDSWAP_PROGRESS": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environ)
    assert done.stderr == "heard\n" + "mindswap: verifying, 0 s so far\n" * 2 + "mindswap: verifying, 1 s so far\n"


def test_a_notebook_is_quiet_too(tmp_path):
    """There the streams of Python are not the descriptors. A logger that was made meanwhile still writes afterwards."""
    script = """
import io, logging, os, sys
from mindswap.adapters.quiet import quiet
sys.stdout = notebook = io.StringIO()
with quiet():
    print("noise")
    os.write(1, b"noise of C++")
    logger = logging.StreamHandler(sys.stdout)
assert sys.stdout is notebook
print("heard")
logger.emit(logging.makeLogRecord({"msg": "later"}))
assert notebook.getvalue() == "heard\\n"
"""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "later\n", "")


def test_what_takes_long_is_told_where_stderr_is_no_terminal_too():
    """After 0.2, 0.4 and 0.8 s, of one that takes 1 s."""
    first = "import mindswap.adapters.quiet as q, time; q.heartbeat.FIRST_S = 0.2"
    slow = SCRIPT.replace("with quiet", f"{first}\nwith quiet")
    slow = slow.replace('report_progress("compiling")', 'report_progress("compiling"); time.sleep(1)')
    lines = "mindswap: compiling, 0 s so far\n" * 2 + "mindswap: compiling, 1 s so far\n"
    for progress, expected in (("1", lines), ("0", "")):
        environ = {**os.environ, "MINDSWAP_PROGRESS": progress}
        command = [sys.executable, "-c", slow]
        result = subprocess.run(command, capture_output=True, check=True, cwd=ROOT, text=True, env=environ)
        assert (result.stdout, result.stderr) == ("", expected)


def test_nothing_is_told_where_stderr_is_no_terminal():
    result = subprocess.run(COMMAND, capture_output=True, check=True, cwd=ROOT)
    assert (result.stdout, result.stderr) == (b"", b"")


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_log_that_cannot_be_written_is_named_and_all_is_restored(is_flushed, tmp_path):
    """As on a disk that is full: no file may grow while MindSpore is used."""
    script = f"""
import os, resource
from mindswap.adapters.quiet import quiet
from mindswap.system.streams import prepare_streams
prepare_streams()
folder, (_, most) = os.getcwd(), resource.getrlimit(resource.RLIMIT_FSIZE)
try:
    with quiet():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
        print("noise", flush={is_flushed})
except Exception as error:
    print(type(error).__name__, error)
assert os.getcwd() == folder
print("heard")
"""
    environ = {**os.environ, "TMPDIR": str(tmp_path), "MINDSWAP_PROGRESS": "0"}
    environ.pop("PYTHONUNBUFFERED", None)  # with it nothing is in a buffer
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    *errors, last = done.stdout.splitlines()
    assert last == "heard" and bool(errors) == is_flushed
    if is_flushed:
        expected = rf"DataError {tmp_path}/mindswap-compile-\w+/compile.log: cannot be written: File too large"
        assert re.fullmatch(expected, "\n".join(errors))
