"""What comes through while the process is kept quiet."""

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from mindswap.adapters.quiet import quiet, tell
tell("before")
with quiet():
    print("noise", file=sys.stderr)
    tell("compiling")
tell("after")
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


def test_nothing_is_told_where_stderr_is_no_terminal():
    result = subprocess.run(COMMAND, capture_output=True, check=True, cwd=ROOT)
    assert (result.stdout, result.stderr) == (b"", b"")
